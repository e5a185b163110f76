"""The wheel and isolated environments that have it installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.databases import ROOT


def run(*command: str | Path, cwd: Path) -> str:
    """Run a program without settings or paths of this checkout and return its output; a failure shows it."""
    ours = {"DJANGO_SETTINGS_MODULE", "PYTHONPATH", "SQLQUEUE_TEST_CHILD", "VIRTUAL_ENV"}
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    answer = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=200
    )
    assert answer.returncode == 0, f"{command} ended with {answer.returncode}:\n{answer.stdout}\n{answer.stderr}"
    return answer.stdout


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", target, ROOT, cwd=ROOT)
    (built,) = target.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python_of_a_user(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment with the wheel and its dependencies."""
    environment = tmp_path_factory.mktemp("user") / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=environment.parent)
    python = environment / "bin" / "python"
    # with our own pip: installing pip into the environment takes seconds longer
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", wheel, cwd=environment.parent)
    return python
