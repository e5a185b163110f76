"""Tables created by the installer, by NServiceBus and by other programs."""

from __future__ import annotations

from typing import Any

import pytest

from sqlqueue_app.dialects.dialect import dialect
from sqlqueue_app.dialects.schema import PlannedTable, TableKind
from sqlqueue_app.messages.errors import QueueNotFound, TableMismatch
from sqlqueue_app.tables.installation import FindingKind, inspect_tables, install_tables
from sqlqueue_app.tables.queue import QueueTable
from sqlqueue_app.tables.receive_transaction import receive_transaction
from tests.support.databases import QueueDatabase
from tests.support.tables import GOLDEN, address_of, execute, golden_statements, layout_without_findings, make_table, row

KINDS = {"Sales": TableKind.QUEUE, "Sales.Delayed": TableKind.DELAYED, "SubscriptionRouting": TableKind.SUBSCRIPTIONS}


def described(database: QueueDatabase, table: str) -> dict[str, Any]:
    """Describe a PostgreSQL table in the format of the recorded file."""
    columns = execute(
        database,
        "SELECT column_name, data_type, character_maximum_length, is_nullable, column_default"
        " FROM information_schema.columns WHERE table_name = %s ORDER BY ordinal_position",
        table,
    )
    indexes = execute(database, "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = %s", table)
    constraints = execute(
        database,
        "SELECT conname, contype, pg_get_constraintdef(oid) FROM pg_constraint"
        " WHERE conrelid = (SELECT oid FROM pg_class WHERE relname = %s) AND contype IN ('p', 'u') ORDER BY conname",
        table,
    )
    names = ("name", "type", "length", "nullable", "default")
    return {
        "columns": [dict(zip(names, column, strict=True)) for column in columns],
        "indexes": dict(indexes),
        "constraints": [dict(zip(("name", "type", "definition"), each, strict=True)) for each in constraints],
    }


@pytest.mark.parametrize("table", GOLDEN)
def test_recorded_tables_are_created_exactly(postgresql_database: QueueDatabase, table: str) -> None:
    for statement in golden_statements(table, f'public."{table}"'):
        execute(postgresql_database, statement)
    assert described(postgresql_database, table) == GOLDEN[table]


@pytest.mark.parametrize("table", GOLDEN)
def test_our_tables_differ_from_recorded_ones_as_documented(postgresql_database: QueueDatabase, table: str) -> None:
    """seq is bigint, and there is an index on expires (docs/internals/decisions.md#table-layouts); nothing else differs."""
    planned = PlannedTable(KINDS[table], address_of(postgresql_database, table))
    assert install_tables(postgresql_database.alias, [planned]) == [planned]
    made, recorded = described(postgresql_database, table), GOLDEN[table]
    if table == "Sales":
        assert made["columns"][4].pop("type") == "bigint"
        assert made["indexes"].pop("Sales_Expires").endswith("(expires) WHERE (expires IS NOT NULL)")
        recorded = {**recorded, "columns": [dict(column) for column in recorded["columns"]]}
        assert recorded["columns"][4].pop("type") == "integer"
    assert made == recorded


@pytest.mark.parametrize("table", GOLDEN)
def test_tables_of_nservicebus_are_used_unchanged(postgresql_database: QueueDatabase, table: str) -> None:
    for statement in golden_statements(table, f'public."{table}"'):
        execute(postgresql_database, statement)
    planned = PlannedTable(KINDS[table], address_of(postgresql_database, table))
    assert install_tables(postgresql_database.alias, [planned]) == []
    assert described(postgresql_database, table) == GOLDEN[table]
    found = inspect_tables(postgresql_database.alias, [planned])
    assert [finding.kind for finding in found] == ([FindingKind.NO_EXPIRES_INDEX] if table == "Sales" else [])
    for finding in found:
        # the SQL in the finding repairs it
        execute(postgresql_database, finding.sql)
    assert inspect_tables(postgresql_database.alias, [planned]) == []


def test_sqlite_table_has_the_expected_columns(sqlite_database: QueueDatabase) -> None:
    make_table(sqlite_database)
    columns = execute(sqlite_database, "SELECT name, type, \"notnull\", pk FROM pragma_table_info('Sales')")
    assert columns == [
        ("Id", "char(32)", 1, 0),
        ("CorrelationId", "varchar(255)", 0, 0),
        ("ReplyToAddress", "varchar(255)", 0, 0),
        ("Recoverable", "bool", 1, 0),
        ("Expires", "datetime", 0, 0),
        ("Headers", "TEXT", 1, 0),
        ("Body", "BLOB", 0, 0),
        ("RowVersion", "INTEGER", 0, 1),
    ]


def test_row_version_is_never_reused(queue: QueueTable) -> None:
    queue.send([row()])
    (first,) = queue.peek(1)
    queue.purge()
    queue.send([row()])
    assert queue.peek(1)[0].row_version > first.row_version


@pytest.mark.parametrize("kind", TableKind)
def test_foreign_table_is_refused_by_name(queue_database: QueueDatabase, kind: TableKind) -> None:
    planned = PlannedTable(kind, address_of(queue_database, "Orders"))
    execute(queue_database, f"CREATE TABLE {dialect(queue_database.vendor).qualified(planned.address)} (id int, body int)")
    assert install_tables(queue_database.alias, [planned]) == []
    (finding,) = inspect_tables(queue_database.alias, [planned])
    assert finding.kind is FindingKind.MISMATCH
    assert "Orders" in finding.text
    assert "found id, body" in finding.text


def test_foreign_table_is_not_used(queue_database: QueueDatabase) -> None:
    queue = QueueTable(queue_database.alias, address_of(queue_database, "Orders"))
    execute(queue_database, f"CREATE TABLE {queue.qualified} (id int, headers int)")
    for work in (lambda: queue.send([row()]), queue.depth):
        with pytest.raises(TableMismatch, match=r"body, .*expires"):
            work()


def test_missing_table_is_reported_with_the_sql_that_creates_it(queue_database: QueueDatabase) -> None:
    tables = [PlannedTable(kind, address_of(queue_database, name)) for name, kind in KINDS.items()]
    layout = layout_without_findings(queue_database)
    findings = inspect_tables(queue_database.alias, tables, layout=layout)
    assert [finding.kind for finding in findings] == [FindingKind.MISSING] * 3
    for finding in findings:
        # PostgreSQL accepts all at once, including a function whose lines end with semicolons.
        whole = [finding.sql] if queue_database.vendor == "postgresql" else finding.sql.removesuffix(";").split(";\n")
        for statement in whole:
            execute(queue_database, statement)
    assert inspect_tables(queue_database.alias, tables, layout=layout) == []


def test_queue_is_found_after_it_was_created(queue_database: QueueDatabase) -> None:
    queue = QueueTable(queue_database.alias, address_of(queue_database, "Sales"))
    assert queue.exists() is False
    with pytest.raises(QueueNotFound, match="sqlqueue_install"):
        queue.layout()
    make_table(queue_database)
    assert queue.exists() is True
    assert queue.layout().expires_index is True


def test_unknown_columns_do_no_harm(queue: QueueTable, database: QueueDatabase) -> None:
    kind = "text GENERATED ALWAYS AS (encode(body, 'escape')) STORED" if database.vendor == "postgresql" else "varchar(10)"
    execute(database, f"ALTER TABLE {queue.qualified} ADD bodystring {kind}")
    queue.forget_layout()
    queue.send([row(b"text")])
    assert queue.peek(1)[0].body == b"text"
    receiving = receive_transaction(queue)
    received = receiving.receive()
    receiving.commit()
    assert received is not None
    assert received.body == b"text"
