"""Queue tables in every layout and rows for the contract tests."""

from __future__ import annotations

import json
import threading
import traceback
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from django.db import connections, transaction

from sqlqueue_app.dialects.dialect import dialect
from sqlqueue_app.dialects.schema import PlannedTable, TableKind
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.errors import DatabaseError
from sqlqueue_app.tables.installation import install_tables
from sqlqueue_app.tables.listing import current_catalog
from sqlqueue_app.tables.queue import QueueTable, forget_tables
from sqlqueue_app.tables.receive_transaction import receive_transaction
from sqlqueue_app.tables.rows import NewRow
from tests.support.databases import ROOT, QueueDatabase
from tests.support.provisioning import configured
from tests.support.waiting import join_all

T = TypeVar("T")

GOLDEN = json.loads((Path(ROOT) / "tests" / "golden" / "postgresql-tables.json").read_text("utf-8"))

# layout names: "ours" is created by the installer, "nservicebus" by an NServiceBus endpoint
LAYOUTS = {"sqlite": ["ours"], "postgresql": ["ours", "nservicebus"], "sqlserver": ["classic", "modern"]}


def cases() -> list[tuple[str, str]]:
    """All pairs of product and layout in this session."""
    return [(vendor, layout) for vendor in configured() for layout in LAYOUTS[vendor]]


def server_cases() -> list[tuple[str, str]]:
    """The cases on servers, where several threads receive concurrently; SQLite has one writer."""
    return [(vendor, layout) for vendor, layout in cases() if vendor != "sqlite"]


def sqlserver_cases() -> list[tuple[str, str]]:
    """The cases on SQL Server, for its own features; empty if it is not tested."""
    return [(vendor, layout) for vendor, layout in cases() if vendor == "sqlserver"]


def address_of(database: QueueDatabase, name: str, schema: str | None = None) -> QueueAddress:
    known = dialect(database.vendor)
    return QueueAddress(name, schema or known.default_schema, form=database.vendor)


def in_catalog(database: QueueDatabase, address: QueueAddress) -> QueueAddress:
    """The address as listings show it: on SQL Server, with the name of the database."""
    return replace(address, catalog=current_catalog(database.connection))


def layout_without_findings(database: QueueDatabase) -> str:
    """A layout without findings; the classic layout of SQL Server has non-Unicode headers."""
    return "modern" if database.vendor == "sqlserver" else "classic"


def make_table(database: QueueDatabase, layout: str = "ours", name: str = "Sales", schema: str | None = None) -> QueueTable:
    """An empty queue table in that layout."""
    address = address_of(database, name, schema)
    if layout == "nservicebus":
        for statement in golden_statements("Sales", dialect("postgresql").qualified(address)):
            execute(database, statement)
        forget_tables()
    else:
        planned = PlannedTable(TableKind.QUEUE, address)
        made = install_tables(database.alias, [planned], layout="classic" if layout == "ours" else layout)
        assert made == [planned]
    return QueueTable(database.alias, address)


def golden_statements(table: str, qualified: str) -> list[str]:
    """The DDL of a table exactly as NServiceBus created it."""
    columns = []
    for column in GOLDEN[table]["columns"]:
        kind, default = column["type"], column["default"]
        if default and default.startswith("nextval"):
            kind, default = {"integer": "serial"}[kind], None
        if column["length"]:
            kind = f"varchar({column['length']})"
        null = " NOT NULL" if column["nullable"] == "NO" else ""
        columns.append(f"{column['name']} {kind}{null}" + (f" DEFAULT {default}" if default else ""))
    keys = [constraint["definition"] for constraint in GOLDEN[table]["constraints"]]
    indexes = [text for name, text in GOLDEN[table]["indexes"].items() if not name.endswith(("_pkey", "_key"))]
    return [f"CREATE TABLE {qualified} ({', '.join([*columns, *keys])})", *indexes]


def execute(database: QueueDatabase, statement: str, *values: str) -> list[tuple[Any, ...]]:
    """Run a statement without our code and return its rows, if any."""
    with database.connection.cursor() as cursor:
        cursor.execute(statement, values or None)
        return [tuple(row) for row in cursor.fetchall()] if cursor.description else []


def row(body: bytes = b"body", headers: str = "{}", **values: Any) -> NewRow:
    return NewRow(str(uuid.uuid4()), headers, body, **values)


def rows(count: int) -> list[NewRow]:
    return [row(b"%d" % number) for number in range(count)]


def receive_all(table: QueueTable) -> list[bytes | None]:
    """Receive every row, each in its own transaction. Returns the bodies in the order of arrival."""
    receiving = receive_transaction(table)
    bodies = []
    while (received := receiving.receive()) is not None:
        receiving.commit()
        bodies.append(received.body)
    return bodies


def refuse_a_second_copy(database: QueueDatabase, table: QueueTable) -> None:
    """Let the database refuse a row with the correlation id of one in the table; on PostgreSQL, with its headers."""
    column = "headers" if database.vendor == "postgresql" else "CorrelationId"
    execute(database, f"CREATE UNIQUE INDEX refuses_copies ON {table.qualified} ({column})")


def elsewhere(work: Callable[[], T]) -> T:
    """Call `work` in another thread and so on another connection; return its result or raise its exception."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - handed to the test's own thread
            errors.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=run, name="elsewhere")
    thread.start()
    join_all([thread])
    if errors:
        raise errors[0]
    return results[0]


@contextmanager
def held_elsewhere(queue: QueueTable, statement: str) -> Iterator[None]:
    """Within the context, another connection has run the statement in an open transaction."""
    ready, done = threading.Event(), threading.Event()

    def hold() -> None:
        connection = connections[queue.alias]
        if connection.vendor == "sqlite":
            connection.transaction_mode = "IMMEDIATE"  # type: ignore[attr-defined]
        with transaction.atomic(using=queue.alias):
            with connection.cursor() as cursor:
                cursor.execute(statement)
            ready.set()
            done.wait(60)
            transaction.set_rollback(True, using=queue.alias)
        connections.close_all()

    thread = threading.Thread(target=hold, name="holder")
    thread.start()
    assert ready.wait(60)
    try:
        yield
    finally:
        done.set()
        join_all([thread])


def fails(kind: type[DatabaseError], work: Callable[[], object]) -> DatabaseError:
    with pytest.raises(DatabaseError) as caught:
        work()
    assert type(caught.value) is kind, repr(caught.value)
    error: BaseException | None = caught.value
    assert caught.value.__cause__ is not None
    while error is not None:
        # cursors in traceback frames would keep the database open
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__
    return caught.value


@contextmanager
def statements(database: QueueDatabase) -> Iterator[list[str]]:
    """The first keywords of the statements that Django cursors run within the context."""
    seen: list[str] = []

    def note(
        run: Callable[[str, Any, bool, dict[str, Any]], Any], sql: str, values: Any, many: bool, context: dict[str, Any]
    ) -> Any:
        seen.append(str(sql).split(maxsplit=1)[0].upper())
        return run(sql, values, many, context)

    with database.connection.execute_wrapper(note):
        yield seen
