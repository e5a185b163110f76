"""Queues with any name and in any schema work, and no name breaks out of its quotes."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from sqlqueue_app.dialects.schema import PlannedTable, TableKind
from sqlqueue_app.messages.errors import AddressError
from sqlqueue_app.tables.installation import inspect_tables, install_tables
from sqlqueue_app.tables.queue import QueueTable
from sqlqueue_app.tables.receive_transaction import receive_transaction
from tests.support.databases import QueueDatabase
from tests.support.tables import address_of, execute, layout_without_findings, make_table, receive_all, row

NAMES = [
    "with space",
    "dots.and.more",
    "a]b]]c",
    'a"b""c',
    "a'b''c",
    "a`b",
    "a;DROP TABLE Sales--",
    "a/*b*/",
    "100%",
    "%s %(name)s %%",
    "{table} {0}",
    ":limit ::int ?",
    "line\nbreak\r\n",
    "tab\t",
    "Käse→日本",
    "back\\slash",
    "$sqlqueue$",
    "-- name: send",
    " leading and trailing ",
    "SELECT",
]


def use(queue: QueueTable) -> None:
    """Use a queue in every way."""
    queue.send([row(b"1", time_to_be_received_ms=-1), row(b"2")])
    assert [peeked.body for peeked in queue.peek(9)] == [b"1", b"2"]
    assert queue.depth().expired == 1
    assert queue.depth(limit=1).waiting == 2
    assert queue.purge_expired(5) == 1
    receiving = receive_transaction(queue)
    assert receiving.receive() is not None
    receiving.undo_handler()
    receiving.commit()
    queue.send([row(b"3")])
    assert receive_all(queue) == [b"3"]
    assert queue.purge() == 0


@pytest.mark.parametrize("name", NAMES)
def test_queue_of_any_name_works(queue_database: QueueDatabase, name: str) -> None:
    layout = layout_without_findings(queue_database)
    tables = [
        PlannedTable(TableKind.QUEUE, address_of(queue_database, name)),
        PlannedTable(TableKind.DELAYED, address_of(queue_database, f"{name}.Delayed")),
        PlannedTable(TableKind.SUBSCRIPTIONS, address_of(queue_database, f"{name}.Subscriptions")),
    ]
    before = set(queue_database.connection.introspection.table_names())

    assert install_tables(queue_database.alias, tables, layout=layout) == tables

    made = set(queue_database.connection.introspection.table_names()) - before
    assert made == {table.address.table for table in tables}
    assert install_tables(queue_database.alias, tables, layout=layout) == []
    assert inspect_tables(queue_database.alias, tables, layout=layout) == []
    use(QueueTable(queue_database.alias, tables[0].address))


@pytest.mark.parametrize("case", [("postgresql", "ours"), ("postgresql", "nservicebus")], indirect=True, ids="-".join)
@pytest.mark.parametrize("schema", ["Sales", 'odd "schema" %s', "select"])
def test_queue_in_another_schema_works(database: QueueDatabase, layout: str, schema: str) -> None:
    quoted = '"' + schema.replace('"', '""') + '"'
    execute(database, f"CREATE SCHEMA {quoted}")
    in_public = make_table(database, layout, "Sales")
    elsewhere = make_table(database, layout, "Sales", schema)
    in_public.send([row(b"public")])
    use(elsewhere)
    assert receive_all(in_public) == [b"public"]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12))
def test_no_name_breaks_out_of_its_quotes(queue_database: QueueDatabase, name: str) -> None:
    before = set(queue_database.connection.introspection.table_names())
    try:
        address = address_of(queue_database, name)
        made = install_tables(queue_database.alias, [PlannedTable(TableKind.QUEUE, address)])
    except AddressError:
        return  # only white space, or a temporary table on SQL Server
    after = set(queue_database.connection.introspection.table_names())
    assert after - before == {name for _ in made}
    use(QueueTable(queue_database.alias, address))
