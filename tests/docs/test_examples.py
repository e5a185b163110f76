"""Every example of README and docs runs, in a fresh project on SQLite."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import django
import pytest

from tests.support.databases import ROOT
from tests.support.doc_pages import Block, blocks, pages
from tests.support.spark import has_spark

MAX_NOT_RUN = 14

# Contributors run the commands of CONTRIBUTING.md themselves.
EXAMPLES = [page for page in pages() if page.name != "CONTRIBUTING.md"]
PAGES = [page for page in EXAMPLES if any(block.is_example and block.reason is None for block in blocks(page))]
# These start from an empty folder; the others continue after the quickstart.
FROM_THE_START = {"README.md", "docs/quickstart.md"}


def has_tasks_framework() -> bool:
    """Whether Django Tasks can be imported: part of Django from 6.0, else the package django-tasks."""
    return django.VERSION >= (6, 0) or find_spec("django_tasks") is not None


def run(project: Path, *command: str) -> str:
    environ = {
        **{name: value for name, value in os.environ.items() if name not in {"SQLQUEUE_TEST_CHILD", "DATABASE_URL", "VAR_DIR"}},
        "DJANGO_SETTINGS_MODULE": "mysite.settings",
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "default",
    }
    answer = subprocess.run(
        [sys.executable, *command], cwd=project, env=environ, capture_output=True, text=True, check=False, timeout=600
    )
    assert answer.returncode == 0, f"{answer.stdout}\n{answer.stderr}"
    return answer.stdout


def start_project(folder: Path) -> Path:
    """Create a project with `django-admin startproject` and `startapp`."""
    folder.mkdir()
    run(folder, "-m", "django", "startproject", "mysite", ".", "--settings=")
    run(folder, "manage.py", "startapp", "shop")
    return folder


@pytest.fixture(scope="module")
def project_after_the_quickstart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = start_project(tmp_path_factory.mktemp("docs") / "project")
    run(folder, "-m", "tests.docs.play", str(ROOT / "docs" / "quickstart.md"))
    return folder


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_examples_of_a_page_run(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if page.name == "django-tasks.md" and not has_tasks_framework():
        pytest.skip("django-tasks is not installed: python -m pip install -r requirements.txt")
    if page.name == "read-queues-with-spark.md" and not has_spark():
        pytest.skip("the extra spark is not installed: python -m pip install -r requirements.txt")
    folder = tmp_path / "project"
    if page.relative_to(ROOT).as_posix() in FROM_THE_START:
        start_project(folder)
    else:
        shutil.copytree(request.getfixturevalue("project_after_the_quickstart"), folder)

    run(folder, "-m", "tests.docs.play", str(page))


def test_few_examples_are_skipped() -> None:
    left_out = [block for page in EXAMPLES for block in blocks(page) if block.is_example and block.reason is not None]

    assert len(left_out) <= MAX_NOT_RUN, [block.place for block in left_out]


def test_every_block_has_a_language() -> None:
    nameless = [block.place for page in pages() for block in blocks(page) if not block.kind]

    assert nameless == []


# --- the runner itself: a wrong example must fail ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "```python\nassert 1 == 2\n```\n",
        "```console\n$ python -c 'import sys; sys.exit(1)'\n```\n",
        "```console\n$ python -c 'print(1)'\n2\n```\n",
    ],
)
def test_wrong_example_is_found(text: str, tmp_path: Path, project_after_the_quickstart: Path) -> None:
    page = tmp_path / "wrong.md"
    page.write_text(text, "utf-8")

    with pytest.raises(AssertionError):
        run(project_after_the_quickstart, "-m", "tests.docs.play", str(page))


def test_block_reports_its_place_and_file() -> None:
    page = ROOT / "README.md"

    found = Block(page, 3, "python", "# shop/handlers.py\nx = 1\n", None)

    assert (found.place, found.file) == ("README.md:3", "shop/handlers.py")
