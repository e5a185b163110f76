"""`sqlqueue_install --make-migration APP` writes a migration for a project's own app."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from pytest_django import Settings

from tests.support.databases import QueueDatabase

ENDPOINTS = {
    "Sales": {"SATELLITES": {"Sales.Priority": {}}},
    'It\'s "odd"': {"CALLBACKS": False},
    "A name so long that the call needs more than one line of the file, as black breaks them": {"CALLBACKS": False},
}
EXPECTED = """\
from django.db import migrations

from sqlqueue_app.migration_operations import (
    CreateDelayedTable,
    CreateQueue,
    CreateSubscriptionTable,
)


class Migration(migrations.Migration):
    dependencies = [
        ("depot", "0001_initial"),
    ]

    operations = [
        CreateQueue("Sales"),
        CreateQueue("Sales.Priority"),
        CreateDelayedTable("Sales.Delayed"),
        CreateQueue("error"),
        CreateQueue('It\\'s "odd"'),
        CreateDelayedTable('It\\'s "odd".Delayed'),
        CreateQueue(
            "A name so long that the call needs more than one line of the file, as black breaks them"
        ),
        CreateDelayedTable(
            "A name so long that the call needs more than one line of the file, as black breaks them.Delayed"
        ),
        CreateSubscriptionTable("SubscriptionRouting"),
    ]
"""
FIRST = """\
from django.db import migrations


class Migration(migrations.Migration):
    initial = True
    dependencies = []
    operations = []
"""


@pytest.fixture
def depot(tmp_path: Path, settings: Settings) -> Iterator[Path]:
    """An app named depot with one migration; the folder of its migrations."""
    folder = tmp_path / "depot" / "migrations"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    (folder / "__init__.py").touch()
    (folder / "0001_initial.py").write_text(FIRST)
    sys.path.insert(0, str(tmp_path))
    importlib.invalidate_caches()
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "depot"]
    yield folder
    sys.path.remove(str(tmp_path))
    for name in [name for name in sys.modules if name.partition(".")[0] == "depot"]:
        del sys.modules[name]


def make_migration(*more: str, app: str = "depot") -> str:
    out = StringIO()
    call_command("sqlqueue_install", "--make-migration", app, *more, stdout=out)
    importlib.invalidate_caches()
    return out.getvalue().strip()


def test_the_next_migration_is_written(depot: Path, settings: Settings) -> None:
    settings.SQLQUEUE = {"ENDPOINTS": ENDPOINTS}
    written = depot / "0002_create_queues.py"
    assert make_migration() == f"wrote {written}"
    assert written.read_text("utf-8") == EXPECTED


def test_command_reports_no_changes_and_adds_new_tables(depot: Path, settings: Settings) -> None:
    settings.SQLQUEUE = {"ENDPOINTS": {"Sales": {}}}
    make_migration()
    assert make_migration().startswith("nothing new")
    settings.SQLQUEUE = {"ENDPOINTS": {"Sales": {"AUDIT_QUEUE": "audit"}}}
    make_migration()
    text = (depot / "0003_create_queue.py").read_text("utf-8")
    assert 'operations = [\n        CreateQueue("audit"),\n    ]' in text
    assert '("depot", "0002_create_queues"),' in text
    assert text.startswith(
        "from django.db import migrations\n\nfrom sqlqueue_app.migration_operations import CreateQueue\n\n\nclass"
    )


def test_callback_queues_are_written_for_named_machines(depot: Path, settings: Settings) -> None:
    settings.SQLQUEUE = {"ENDPOINTS": {"Web": {"CALLBACK_QUEUES": 2}}}
    make_migration("--instance", "web1")
    text = (depot / "0002_create_queues.py").read_text("utf-8")
    assert 'CreateQueue("Web.web1"),\n        CreateQueue("Web.web1-2"),' in text


def test_an_app_without_migrations_gets_its_first(depot: Path, settings: Settings) -> None:
    for file in [*depot.glob("*.py")]:
        file.unlink()
    depot.rmdir()
    importlib.invalidate_caches()
    settings.SQLQUEUE = {"ENDPOINTS": {"Sales": {}}}
    make_migration()
    text = (depot / "0001_create_queues.py").read_text("utf-8")
    assert "    initial = True\n\n    dependencies = []\n" in text
    assert (depot / "__init__.py").exists()


def test_schemas_missing_in_the_settings_are_written(depot: Path, settings: Settings) -> None:
    settings.SQLQUEUE = {
        "DATABASE": "postgresql",
        "SCHEMA_FOR_QUEUE": {"Sales": "sal"},
        "ENDPOINTS": {"Sales": {"CALLBACKS": False, "ERROR_QUEUE": '"ops"."error"'}},
    }
    make_migration()
    text = (depot / "0002_create_queues.py").read_text("utf-8")
    assert (
        'CreateQueue("Sales"),\n        CreateDelayedTable("Sales.Delayed"),\n        CreateQueue("error", schema="ops"),' in text
    )


def test_conflicting_leaves_are_refused(depot: Path, settings: Settings) -> None:
    settings.SQLQUEUE = {"ENDPOINTS": {"Sales": {}}}
    for name in ("0002_left", "0002_right"):
        (depot / f"{name}.py").write_text(FIRST.replace("[]", '[("depot", "0001_initial")]', 1))
    with pytest.raises(CommandError, match="several leaf nodes, 0002_left, 0002_right; run makemigrations --merge first"):
        make_migration()


def test_app_of_an_installed_package_is_refused(depot: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.SQLQUEUE = {"ENDPOINTS": {"Sales": {}}}
    monkeypatch.setattr("sysconfig.get_path", lambda _name: str(depot.parent.parent))

    with pytest.raises(CommandError, match=r"'depot' is an installed package in .*: name an app of your project"):
        make_migration()

    assert [path.name for path in depot.glob("0*")] == ["0001_initial.py"]


def test_disabled_migrations_are_refused(depot: Path, settings: Settings) -> None:
    settings.SQLQUEUE = {"ENDPOINTS": {"Sales": {}}}
    settings.MIGRATION_MODULES = {"depot": None}
    with pytest.raises(CommandError, match="disabled via the MIGRATION_MODULES"):
        make_migration()


def test_written_migration_creates_and_drops_the_tables(depot: Path, queue_database: QueueDatabase, settings: Settings) -> None:
    queue_database.configure(ENDPOINTS={"Sales": {"CALLBACKS": False}}, INSTALL_AFTER_MIGRATE=False)
    make_migration()
    names = {"Sales", "Sales.Delayed", "error", "SubscriptionRouting"}

    def migrate(*target: str) -> set[str]:
        call_command("migrate", *target, database=queue_database.alias, verbosity=0, interactive=False)
        return set(queue_database.connection.introspection.table_names()) & names

    assert migrate() == names
    assert migrate("depot", "0001") == set()
    # an existing table and its rows stay unchanged
    call_command("sqlqueue_install", stdout=StringIO())
    assert migrate() == names


def test_written_file_is_formatted_like_black(depot: Path, settings: Settings) -> None:
    settings.SQLQUEUE = {"ENDPOINTS": ENDPOINTS}
    make_migration()
    written = depot / "0002_create_queues.py"
    formatter = [sys.executable, "-m", "ruff", "format", "--isolated", "--check", str(written)]
    if subprocess.run([sys.executable, "-m", "ruff", "--version"], capture_output=True, timeout=120).returncode != 0:
        formatter = [sys.executable, "-m", "py_compile", str(written)]  # an environment without the linters
    assert subprocess.run(formatter, capture_output=True, text=True, timeout=120).returncode == 0
