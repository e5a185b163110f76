"""The wheel, and environments of users that have it and nothing of this checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.databases import ROOT


def run(*command: str | Path, cwd: Path) -> str:
    """Runs a program that knows nothing of this checkout; returns what it printed, and shows it where the program fails."""
    ours = {"DJANGO_SETTINGS_MODULE", "PYTHONPATH", "SQLQUEUE_TEST_CHILD", "VIRTUAL_ENV"}
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    answer = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=200
    )
    assert answer.returncode == 0, f"{command} ended with {answer.returncode}:\n{answer.stdout}\n{answer.stderr}"
    return answer.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", target, ROOT, cwd=ROOT)
    (built,) = target.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python_of_a_user(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an empty environment with the wheel and what it depends on."""
    environment = tmp_path_factory.mktemp("user") / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=environment.parent)
    python = environment / "bin" / "python"
    # by our own pip: an environment with one of its own takes seconds more to make
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", wheel, cwd=environment.parent)
    return python
