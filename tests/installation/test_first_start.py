"""The first commands of a new project warn neither about what they are about to create nor about what cannot be imported."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from sqlqueue_app.models import queue_model, queues
from tests.support.databases import ROOT, QueueDatabase

SETTINGS = """
INSTALLED_APPS += ["sqlqueue_app"]
DATABASES["default"]["OPTIONS"] = {"transaction_mode": "IMMEDIATE", "timeout": 30, "init_command": "PRAGMA journal_mode=WAL"}
SQLQUEUE = {"ENDPOINTS": {"Sales": {}}}
"""


def manage(project: Path, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    environment = {
        name: value for name, value in os.environ.items() if name not in {"DJANGO_SETTINGS_MODULE", "SQLQUEUE_TEST_CHILD"}
    }
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=project,
        env={**environment, "PYTHONPATH": str(ROOT)},
        input=stdin,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A minimal project with one endpoint, on a SQLite file that does not exist yet."""
    manage(tmp_path, "-m", "django", "startproject", "shop", ".")
    with (tmp_path / "shop" / "settings.py").open("a", encoding="utf-8") as settings:
        settings.write(SETTINGS)
    return tmp_path


def test_the_first_migrate_and_the_shell_print_no_warning(project: Path) -> None:
    checked = manage(project, "manage.py", "check", "--database", "default")
    migrated = manage(project, "manage.py", "migrate")
    shell = manage(project, "manage.py", "shell", stdin="print(Sales.objects.count(), error.objects.count())\n")

    assert "(sqlqueue.W031) the " in checked.stderr
    assert migrated.stderr == ""
    assert "WARNING" not in migrated.stdout
    assert "Created queue table Sales" in migrated.stdout
    assert shell.stderr == ""
    assert "could not be automatically imported" not in shell.stdout
    assert shell.stdout.splitlines()[-1] == "0 0"


def test_migrate_lists_missing_queues_that_it_does_not_create(project: Path) -> None:
    with (project / "shop" / "settings.py").open("a", encoding="utf-8") as settings:
        settings.write('SQLQUEUE["INSTALL_AFTER_MIGRATE"] = False\n')

    assert "(sqlqueue.W031) the " in manage(project, "manage.py", "migrate").stderr


def test_queue_models_are_imported_by_their_names(sqlite_database: QueueDatabase) -> None:
    sqlite_database.configure(ENDPOINTS={"Sales": {}})
    model = queue_model("Sales")

    assert queues.Sales is model
    assert pickle.loads(pickle.dumps(model)) is model
    with pytest.raises(AttributeError, match="has no attribute 'sales'"):
        _ = queues.sales
