"""`migrate` creates missing tables: once, in the right database, and only if configured to."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from sqlqueue_app import installation
from sqlqueue_app.messages.errors import AddressError
from sqlqueue_app.tables.installation import install_tables
from tests.installation.shop import ENDPOINTS, NAMES, TABLES
from tests.support.databases import QueueDatabase


def migrate(database: QueueDatabase, verbosity: int = 1) -> str:
    out = StringIO()
    call_command("migrate", database=database.alias, verbosity=verbosity, interactive=False, stdout=out, stderr=out)
    return out.getvalue()


def tables_in(database: QueueDatabase) -> set[str]:
    return set(database.connection.introspection.table_names()) & NAMES


def test_missing_tables_are_made(queue_database: QueueDatabase) -> None:
    queue_database.configure(ENDPOINTS=ENDPOINTS)
    output = migrate(queue_database)
    assert tables_in(queue_database) == NAMES
    assert output.count("  Created ") == len(TABLES)
    assert "Created" not in migrate(queue_database)


def test_verbosity_0_is_quiet(queue_database: QueueDatabase) -> None:
    queue_database.configure(ENDPOINTS=ENDPOINTS)
    assert migrate(queue_database, verbosity=0) == ""
    assert tables_in(queue_database) == NAMES


def test_installation_can_be_turned_off(queue_database: QueueDatabase) -> None:
    queue_database.configure(ENDPOINTS=ENDPOINTS, INSTALL_AFTER_MIGRATE=False)
    migrate(queue_database)
    assert tables_in(queue_database) == set()


def test_other_databases_get_no_queues(postgresql_database: QueueDatabase) -> None:
    postgresql_database.configure(ENDPOINTS=ENDPOINTS, DATABASE="default")
    migrate(postgresql_database)
    assert tables_in(postgresql_database) == set()


def test_installation_runs_once_per_migrate(sqlite_database: QueueDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def counted(alias: str, *arguments: Any, **options: Any) -> Any:
        calls.append(alias)
        return install_tables(alias, *arguments, **options)

    monkeypatch.setattr(installation, "install_tables", counted)
    sqlite_database.configure(ENDPOINTS=ENDPOINTS)
    migrate(sqlite_database)
    assert calls == ["default"]


def test_too_long_name_stops_the_installation(postgresql_database: QueueDatabase) -> None:
    postgresql_database.configure(ENDPOINTS={"Sales": {"CALLBACKS": True, "INSTANCE": "x" * 60}})
    with pytest.raises(AddressError, match=r"Sales\.xxx"):
        call_command("migrate", database="postgresql", verbosity=0, skip_checks=True, stdout=StringIO())


def test_a_missing_schema_is_one_line(postgresql_database: QueueDatabase) -> None:
    postgresql_database.configure(ENDPOINTS={"Sales": {}}, DEFAULT_SCHEMA="ops")
    with pytest.raises(CommandError, match=r'^failed to install "ops"\."Sales": schema "ops" does not exist: .*CREATE SCHEMA'):
        migrate(postgresql_database)
