"""The messages of a conversation are found in all places on every database."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from sqlqueue_app.browsing import conversations
from sqlqueue_app.browsing.conversations import ConversationResult, MessageOutcome, forest, newest_conversations, read_conversation
from sqlqueue_app.conf import get_settings
from sqlqueue_app.messages.failure_groups import deterministic_guid
from sqlqueue_app.models import FailedMessage, FailureStatus
from sqlqueue_app.status.queues import address_book_of, address_of_queue
from sqlqueue_app.tables.delayed import DelayedTable
from sqlqueue_app.tables.installation import delayed_address
from sqlqueue_app.tables.row_selection import remove_rows
from sqlqueue_app.tables.rows import NewRow
from tests.support.conversations import BEGIN, audited, failed_one, sent
from tests.support.databases import QueueDatabase
from tests.support.error_rows import failed
from tests.support.failing import fail
from tests.support.filling import install, row, table

ENDPOINTS: dict[str, Any] = {"Sales": {"CALLBACKS": False, "AUDIT_QUEUE": "audit"}, "Billing": {"CALLBACKS": False}}


@pytest.fixture
def shop(queue_database: QueueDatabase) -> QueueDatabase:
    install(queue_database, ENDPOINTS=ENDPOINTS)
    return queue_database


def read(conversation: str = "c-1") -> ConversationResult:
    return read_conversation(get_settings(), conversation)


def delay(database: QueueDatabase, message: NewRow) -> None:
    address = delayed_address(address_book_of(get_settings()), "Sales")
    DelayedTable(database.alias, address).add(message.headers, b"{}", BEGIN + timedelta(days=9_000))


def test_conversation_joins_handled_failed_waiting_and_delayed_messages(shop: QueueDatabase) -> None:
    table(shop, "audit").send([audited("order"), audited("other", NServiceBus_ConversationId="c-2")])
    fail(shop, [failed_one("bill", "order")])
    table(shop, "Billing").send([sent("remind", "order", by="Sales"), sent("bystander", conversation="c-10")])
    delay(shop, sent("cancel", "order", by="Sales", NServiceBus_SqlServer_ForwardDestination="Billing"))
    found = read()
    assert {(each.message_id, each.outcome.value, each.sending, each.receiving) for each in found.messages} == {
        ("order", "handled", "Web", "Sales"),
        ("bill", "failed", "Sales", "Billing"),
        ("remind", "waiting", "Sales", "Billing"),
        ("cancel", "delayed", "Sales", "Billing"),
    }
    tree = forest(found.messages)
    assert [(branch.depth, branch.message.message_id) for branch in tree.branches][:2] == [(0, "order"), (1, "bill")]
    assert all(branch.depth == 1 for branch in tree.branches[1:])
    assert (found.problems, found.extent.longer, found.is_cut) == ((), {}, False)


def test_large_conversation_is_cut_at_the_limit(shop: QueueDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    table(shop, "audit").send([audited(f"m-{number}", "m-0") for number in range(700)])
    found = read()
    assert (len(found.messages), found.is_cut) == (700, False)
    monkeypatch.setattr(conversations, "MAX_MESSAGES", 600)
    found = read()
    assert (len(found.messages), found.is_cut) == (600, True)


def test_failures_are_found_in_a_long_error_queue(shop: QueueDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations, "SCAN_ROWS_TOTAL", 1)
    monkeypatch.setattr(conversations, "MIN_SCAN_ROWS", 3)
    fail(shop, [failed_one("bill", "order"), *(failed(f"n-{number}") for number in range(5))])
    found = read()
    assert {each.message_id for each in found.messages} == {"bill", *(f"n-{number}" for number in range(5))}
    (bill,) = [each for each in found.messages if each.message_id == "bill"]
    assert (bill.related_to, bill.sending, bill.failure) == ("order", "Sales", deterministic_guid("bill", "Billing"))
    assert set(found.extent.longer) == {"error"}


def test_failure_that_is_not_indexed_is_found(shop: QueueDatabase) -> None:
    table(shop, "error").send([failed_one("bill", "order"), failed_one("bill", "order")])
    (bill,) = read().messages
    assert (bill.outcome, bill.failure, bill.queue) == (MessageOutcome.FAILED, None, "error")


def test_retried_failure_is_shown_at_its_present_location(shop: QueueDatabase) -> None:
    fail(shop, [failed_one("bill", "order"), failed_one("gone", "order")])
    for each in FailedMessage.objects.all():
        remove_rows(table(shop, "error"), [each.row_version or 0])
    bill, gone = deterministic_guid("bill", "Billing"), deterministic_guid("gone", "Billing")
    FailedMessage.objects.update(row_version=None, status=FailureStatus.RETRY_ISSUED, retried_to=address_of_queue("Billing"))
    table(shop, "Billing").send([sent("bill", "order", by="Sales", ServiceControl_Retry_UniqueMessageId=str(bill))])
    found = {each.message_id: each for each in read().messages}
    assert (found["bill"].outcome, found["bill"].failure, found["bill"].queue) == (MessageOutcome.WAITING, bill, "Billing")
    assert (found["gone"].outcome, found["gone"].failure, found["gone"].related_to) == (MessageOutcome.RETRIED, gone, "")
    assert found["gone"].queue == "Billing"


@pytest.mark.parametrize("name", ["o'c\"x", "a/b", "\u0639\u0631", "</>", "%", "_2F", "\U0001f600", "x" * 300, "nul\0nul", "a b"])
def test_conversation_ids_of_any_shape_are_found(shop: QueueDatabase, name: str) -> None:
    table(shop, "Sales").send([sent("order", conversation=name), sent("other", conversation="else")])
    fail(shop, [failed_one("bill", "order", conversation=name)])
    assert {each.message_id for each in read(name).messages} == {"order", "bill"}


def test_ids_escaped_by_other_writers_are_found(shop: QueueDatabase) -> None:
    microsoft = '{"NServiceBus.MessageId":"1","NServiceBus.ConversationId":"a\\u002B\\u0645/\\u0022"}'
    table(shop, "Sales").send([row(microsoft), row(microsoft.replace("645", "646"))])
    assert [each.message_id for each in read('a+\u0645/"').messages] == ["1"]


def test_newest_conversations_count_their_failures(shop: QueueDatabase) -> None:
    fail(
        shop,
        [
            failed_one("a", "x", conversation="c-1"),
            failed_one("b", "x", conversation="c-2"),
            failed_one("c", "x", conversation="c-1"),
            failed("d"),
        ],
    )
    found = {each.id: each.failed for each in newest_conversations()}
    assert found == {"c-1": 3, "c-2": 1}


def test_two_hundred_queues_take_few_statements(postgresql_database: QueueDatabase) -> None:
    satellites: dict[str, Any] = {f"Sales.{number}": {} for number in range(200)}
    install(postgresql_database, ENDPOINTS={"Sales": {"SATELLITES": satellites, "AUDIT_QUEUE": "audit"}})
    fail(postgresql_database, [failed_one("bill", "order")])
    with (
        CaptureQueriesContext(connections[postgresql_database.alias]) as own,
        CaptureQueriesContext(connections["default"]) as other,
    ):
        assert len(read().messages) == 1
    assert len(own) + (0 if postgresql_database.alias == "default" else len(other)) <= 10
