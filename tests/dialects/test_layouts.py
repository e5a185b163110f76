"""Which tables are queues, and the consequences of their columns."""

from __future__ import annotations

import re

import pytest

from sqlqueue_app.dialects.dialect import DIALECTS, TableShape, dialect, dialect_of_vendor, layout_of
from sqlqueue_app.dialects.schema import TableKind, create_statements, drop_statement, grant_statements, installation_lock
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.errors import ConfigurationError, TableMismatch

ALL = ("Id", "CorrelationId", "ReplyToAddress", "Recoverable", "Expires", "Headers", "Body", "RowVersion")
INDEXES = (("RowVersion", "CLUSTERED"), ("Expires", "NONCLUSTERED"))


def shape(*names: str, headers: str = "nvarchar", indexes: tuple[tuple[str, str], ...] = INDEXES) -> TableShape:
    return TableShape(tuple((name, headers if name.lower() == "headers" else "x") for name in names), indexes)


def test_all_known_columns_are_sent() -> None:
    layout = layout_of("sqlserver", "t", shape(*ALL))
    assert layout.send_columns == ALL[:-1]
    assert (layout.correlation_columns, layout.expires_index, layout.unicode_headers) == (True, True, True)


@pytest.mark.parametrize("missing", ["Recoverable", "CorrelationId", "ReplyToAddress"])
def test_missing_optional_column_is_not_sent(missing: str) -> None:
    layout = layout_of("sqlserver", "t", shape(*(name for name in ALL if name != missing)))
    assert layout.send_columns == tuple(name for name in ALL[:-1] if name != missing)
    assert layout.correlation_columns is (missing == "Recoverable")


def test_unknown_column_is_not_sent() -> None:
    assert layout_of("sqlserver", "t", shape(*ALL, "BodyString")).send_columns == ALL[:-1]


@pytest.mark.parametrize(("kind", "unicode"), [("nvarchar", True), ("varchar", False), ("VARCHAR", False), ("ntext", True)])
def test_type_of_headers_column_is_recognised(kind: str, unicode: bool) -> None:
    assert layout_of("sqlserver", "t", shape(*ALL, headers=kind)).unicode_headers is unicode


def test_type_of_headers_column_matters_only_on_sql_server() -> None:
    assert layout_of("sqlite", "t", shape(*ALL, headers="text")).unicode_headers is True


def test_any_index_that_starts_with_expires_counts() -> None:
    assert layout_of("sqlserver", "t", shape(*ALL, indexes=(("expires", "CLUSTERED"),))).expires_index is True
    assert layout_of("sqlserver", "t", shape(*ALL, indexes=INDEXES[:1])).expires_index is False


def test_postgresql_needs_its_own_columns() -> None:
    layout = layout_of("postgresql", "t", shape("id", "expires", "headers", "body", "seq", headers="text"))
    assert layout.send_columns == ("Id", "Expires", "Headers", "Body")
    with pytest.raises(TableMismatch, match=r"table t is not a queue table: column\(s\) seq are missing, found Id"):
        layout_of("postgresql", "t", shape(*ALL))


def test_columns_of_sql_server_are_not_sent_on_postgresql() -> None:
    layout = layout_of("postgresql", "t", shape(*(name.lower() for name in ALL[:-1]), "seq"))
    assert (layout.send_columns, layout.correlation_columns) == (("Id", "Expires", "Headers", "Body"), False)
    assert dialect("postgresql").send_statement("t", layout, 1).sql.startswith("INSERT INTO t (Id, Expires, Headers, Body)")


@pytest.mark.parametrize("missing", ["Id", "Expires", "Headers", "Body", "RowVersion"])
def test_table_without_a_required_column_is_refused(missing: str) -> None:
    with pytest.raises(TableMismatch, match=missing.lower()):
        layout_of("sqlserver", "t", shape(*(name for name in ALL if name != missing)))


@pytest.mark.parametrize("name", DIALECTS)
def test_every_created_column_is_sent_except_the_row_number(name: str) -> None:
    known = dialect(name)
    ddl = create_statements(known, TableKind.QUEUE, QueueAddress("Sales", form=name))[0]
    made = re.findall(r"^    \[?(\w+)", ddl, re.MULTILINE)

    layout = layout_of(name, "t", shape(*made))

    assert [column.lower() for column in layout.send_columns] == [column.lower() for column in made[:-1]]
    statement = known.send_statement("t", layout, 1)
    assert {"id", "headers", "body", "time_to_be_received_ms"} <= set(statement.names)


def test_unknown_dialect_vendor_or_layout_is_named() -> None:
    with pytest.raises(ConfigurationError, match="'oracle'"):
        dialect("oracle")
    with pytest.raises(ConfigurationError, match="'mysql'"):
        dialect_of_vendor("mysql")
    with pytest.raises(ConfigurationError, match="'moderne'"):
        create_statements(dialect("sqlserver"), TableKind.QUEUE, QueueAddress("Sales"), "moderne")


def test_missing_address_parts_get_defaults() -> None:
    address = {name: QueueAddress("Sales", form=name) for name in DIALECTS}
    assert [dialect(name).qualified(address[name]) for name in DIALECTS] == ["[dbo].[Sales]", '"public"."Sales"', '"Sales"']
    assert drop_statement(dialect("postgresql"), address["postgresql"]) == 'DROP TABLE "public"."Sales"'


def test_installer_lock_is_that_of_the_transport() -> None:
    """`[catalog].[schema].[table]_lock` (docs/internals/wire.md#table-creation), at most 255 characters."""
    known = dialect("sqlserver")
    assert installation_lock(known, QueueAddress("Sales", "dbo", "nsb")) == "[nsb].[dbo].[Sales]_lock"
    assert len(installation_lock(known, QueueAddress("x" * 128, "y" * 128, "z" * 128))) == 255


@pytest.mark.parametrize("kind", TableKind)
def test_grants_are_those_that_the_transport_needs(kind: TableKind) -> None:
    address = QueueAddress("Sales", "ops", form="postgresql")
    grants = grant_statements(dialect("postgresql"), kind, address, 'sh"op')
    assert grants[:2] == [
        'GRANT USAGE ON SCHEMA "ops" TO "sh""op"',
        'GRANT SELECT, INSERT, UPDATE, DELETE ON "ops"."Sales" TO "sh""op"',
    ]
    sequence = ['GRANT USAGE ON SEQUENCE "ops"."Sales_seq_seq" TO "sh""op"'] if kind is TableKind.QUEUE else []
    assert grants[2:] == sequence
    assert grant_statements(dialect("sqlite"), kind, QueueAddress("Sales", form="sqlite"), "shop") == []
    assert grant_statements(dialect("sqlserver"), kind, QueueAddress("Sales"), "sh]op") == [
        "GRANT SELECT, INSERT, UPDATE, DELETE ON [dbo].[Sales] TO [sh]]op]"
    ]
