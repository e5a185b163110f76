"""The subscription table: its rows, and that it is independent of the caller's transaction.

See docs/internals/wire.md#subscription-table.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from django.db import connections, transaction

from sqlqueue_app.dialects.dialect import dialect
from sqlqueue_app.dialects.schema import PlannedTable, TableKind
from sqlqueue_app.messages.errors import ConfigurationError, QueueNotFound
from sqlqueue_app.tables.installation import install_tables
from sqlqueue_app.tables.subscriptions import MAX_VALUE_LENGTH, SubscriptionRow, SubscriptionTable
from tests.support.databases import ROOT, QueueDatabase
from tests.support.tables import address_of, elsewhere, execute, golden_statements
from tests.support.waiting import poll_until

BILLING = SubscriptionRow("Billing", "Shop.OrderPlaced", "Billing")
OUTER = SubscriptionRow("Billing", "Shop.Outer+Inner", "Billing")
SHIPPING = SubscriptionRow("Shipping", "Shop.OrderPlaced", "Shipping")


@pytest.fixture
def table(queue_database: QueueDatabase) -> SubscriptionTable:
    return installed(queue_database)


def installed(database: QueueDatabase) -> SubscriptionTable:
    address = address_of(database, "SubscriptionRouting")
    install_tables(database.alias, [PlannedTable(TableKind.SUBSCRIPTIONS, address)])
    return SubscriptionTable(database.alias, address)


def test_subscribers_are_found_by_any_of_their_topics(table: SubscriptionTable) -> None:
    for each in (BILLING, OUTER, SHIPPING):
        table.subscribe(each)

    assert table.subscribers(["Shop.OrderPlaced"]) == [BILLING, SHIPPING]
    assert table.subscribers(["Shop.Outer+Inner", "Shop.OrderPlaced", "x' OR 1=1 --"]) == [BILLING, OUTER, SHIPPING]
    assert table.subscribers(["Shop.Outer"]) == []
    assert table.subscribers([]) == []
    assert table.all() == [BILLING, OUTER, SHIPPING]


def test_subscribing_again_keeps_the_row_or_changes_its_address(table: SubscriptionTable) -> None:
    table.subscribe(BILLING)
    table.subscribe(BILLING)
    assert table.all() == [BILLING]

    moved = SubscriptionRow("Billing", "Shop.OrderPlaced", "Elsewhere")
    table.subscribe(moved)
    assert table.all() == [moved]


def test_unsubscribe_deletes_one_row_and_returns_whether_it_existed(table: SubscriptionTable) -> None:
    for each in (BILLING, OUTER, SHIPPING):
        table.subscribe(each)

    assert table.unsubscribe("Billing", "Shop.OrderPlaced") is True
    assert table.unsubscribe("Billing", "Shop.OrderPlaced") is False
    assert table.all() == [OUTER, SHIPPING]


def test_concurrent_subscribers_leave_one_row(queue_database: QueueDatabase) -> None:
    table = installed(queue_database)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(elsewhere, [lambda: table.subscribe(BILLING)] * 8))

    assert table.all() == [BILLING]


@pytest.mark.parametrize("value", ["", " ", "x" * (MAX_VALUE_LENGTH + 1)])
@pytest.mark.parametrize("what", ["endpoint", "topic", "address"])
def test_value_that_does_not_fit_its_column_is_refused(table: SubscriptionTable, what: str, value: str) -> None:
    values = {"endpoint": "Billing", "topic": "Shop.OrderPlaced", "address": "Billing", what: value}

    with pytest.raises(ConfigurationError, match=f"its {what} .* expected 1 to 200"):
        table.subscribe(SubscriptionRow(**values))


def test_longest_values_are_stored(table: SubscriptionTable) -> None:
    longest = SubscriptionRow("e" * MAX_VALUE_LENGTH, "t" * MAX_VALUE_LENGTH, "a" * MAX_VALUE_LENGTH)

    table.subscribe(longest)

    assert table.all() == [longest]


def test_missing_table_is_named(queue_database: QueueDatabase) -> None:
    table = SubscriptionTable(queue_database.alias, address_of(queue_database, "SubscriptionRouting"))

    for call in (
        table.all,
        lambda: table.subscribers(["x"]),
        lambda: table.unsubscribe("a", "b"),
        lambda: table.subscribe(BILLING),
    ):
        with pytest.raises(QueueNotFound, match=r'["\[]SubscriptionRouting["\]] does not exist .* run sqlqueue_install'):
            call()


def test_rollback_of_the_caller_keeps_the_subscription(postgresql_database: QueueDatabase) -> None:
    table = installed(postgresql_database)
    with suppress(InterruptedError), transaction.atomic(using=postgresql_database.alias):
        table.subscribe(BILLING)
        assert elsewhere(table.all) == [BILLING]
        raise InterruptedError

    assert table.all() == [BILLING]


def test_rollback_of_a_caller_without_autocommit_keeps_the_subscription(postgresql_database: QueueDatabase) -> None:
    table = installed(postgresql_database)
    transaction.set_autocommit(False, using=table.alias)
    try:
        table.subscribe(BILLING)
        transaction.rollback(using=table.alias)
    finally:
        transaction.set_autocommit(True, using=table.alias)
    assert table.all() == [BILLING]


def test_subscription_joins_the_callers_transaction_on_sqlite(sqlite_database: QueueDatabase) -> None:
    table = installed(sqlite_database)
    with suppress(InterruptedError), transaction.atomic(using=sqlite_database.alias):
        table.subscribe(BILLING)
        assert table.all() == [BILLING]
        assert table.has_joined_changes()
        raise InterruptedError

    assert table.all() == []
    assert not table.has_joined_changes()


def test_subscribers_are_current_and_ignore_the_callers_snapshot(postgresql_database: QueueDatabase) -> None:
    table = installed(postgresql_database)
    with transaction.atomic(using=postgresql_database.alias):
        execute(postgresql_database, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        execute(postgresql_database, "SELECT 1")
        elsewhere(lambda: table.subscribe(BILLING))

        assert table.subscribers(["Shop.OrderPlaced"]) == [BILLING]
        assert execute(postgresql_database, f"SELECT count(*) FROM {table.qualified}") == [(0,)]


def test_second_connection_of_a_call_is_closed(postgresql_database: QueueDatabase) -> None:
    table = installed(postgresql_database)
    first = connections[postgresql_database.alias]
    with transaction.atomic(using=postgresql_database.alias):
        table.subscribe(BILLING)
        table.subscribers(["Shop.OrderPlaced"])

        assert connections[postgresql_database.alias] is first
        poll_until(lambda: len(postgresql_database.sessions()) == 1, what="one session is left")


def test_joined_change_commits_and_rolls_back_with_the_caller(queue_database: QueueDatabase) -> None:
    changes: list[str] = []
    installed(queue_database)
    table = SubscriptionTable(
        queue_database.alias, address_of(queue_database, "SubscriptionRouting"), changed=lambda: changes.append("changed")
    )
    with suppress(InterruptedError), transaction.atomic(using=queue_database.alias):
        table.subscribe(BILLING, join=True)
        # visible in the transaction that made it; no other session waits for it
        assert table.subscribers(["Shop.OrderPlaced"]) == [BILLING]
        raise InterruptedError
    assert (table.all(), changes) == ([], ["changed"])

    with transaction.atomic(using=queue_database.alias):
        table.subscribe(BILLING, join=True)
        assert table.unsubscribe("Billing", "Shop.OrderPlaced", join=True) is True
        table.subscribe(SHIPPING, join=True)
    assert table.all() == [SHIPPING]
    assert changes == ["changed"] * 7


def test_table_of_a_real_endpoint_is_used(postgresql_database: QueueDatabase) -> None:
    address = address_of(postgresql_database, "SubscriptionRouting")
    qualified = dialect("postgresql").qualified(address)
    for statement in golden_statements("SubscriptionRouting", qualified):
        execute(postgresql_database, statement)
    lines = (ROOT / "tests" / "golden" / "json.jsonl").read_text("utf-8").splitlines()
    rows = [line["row"] for line in map(json.loads, lines) if line["table"] == "SubscriptionRouting"]
    for row in rows:
        execute(
            postgresql_database,
            f"INSERT INTO {qualified} (queueaddress, endpoint, topic) VALUES (%s, %s, %s)",
            row["queueaddress"],
            row["endpoint"],
            row["topic"],
        )
    table = SubscriptionTable(postgresql_database.alias, address)

    found = table.subscribers(["Shop.Messages.OrderShippedFast", "Shop.Messages.OrderShipped", "Shop.Messages.IOrderEvent"])
    assert [(each.endpoint, each.address) for each in found] == [("Billing", '"public"."Billing"'), ("Web", '"public"."Web"')]
    for row in rows:
        # our rows are identical, so nothing changes
        table.subscribe(SubscriptionRow(row["endpoint"], row["topic"], row["queueaddress"]))
    assert len(table.all()) == len(rows) == 3
