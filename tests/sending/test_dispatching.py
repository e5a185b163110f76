"""Sends of handlers, written together: grouped by queue, in few statements, all or none."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from django.db import transaction

from sqlqueue_app.conf import get_settings
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.envelope import OutgoingMessage
from sqlqueue_app.messages.errors import QueueNotFound
from sqlqueue_app.sending.dispatcher import Dispatcher
from tests.sending.conftest import Desk
from tests.support.tables import statements


def dispatcher(desk: Desk) -> Dispatcher:
    return Dispatcher(desk.alias, get_settings().address_book(desk.database.vendor))


def outgoing(desk: Desk, queue: str, body: str, message_id: str | None = None) -> OutgoingMessage:
    headers: dict[str, str | None] = {"NServiceBus.MessageId": message_id or str(uuid.uuid4())}
    return OutgoingMessage(QueueAddress(queue, form=desk.database.vendor), headers, b'"%s"' % body.encode(), timedelta(days=1))


def test_one_message_of_a_handler_needs_one_statement(desk: Desk) -> None:
    chosen = dispatcher(desk)
    chosen.dispatch([outgoing(desk, "Sales", "the columns are looked up once")])

    with transaction.atomic(using=desk.alias), statements(desk.database) as seen:
        chosen.dispatch([outgoing(desk, "Sales", "1")])

    assert seen == (["DECLARE"] if desk.database.vendor == "sqlserver" else ["INSERT"])


def test_messages_for_each_queue_need_one_statement(desk: Desk) -> None:
    chosen = dispatcher(desk)
    chosen.dispatch([outgoing(desk, "Sales", "looked up"), outgoing(desk, "Billing", "looked up")])
    mixed = [outgoing(desk, ("Sales", "Billing")[number % 2], str(number)) for number in range(40)]

    with transaction.atomic(using=desk.alias), statements(desk.database) as seen:
        chosen.dispatch(mixed)

    assert len([word for word in seen if word in ("INSERT", "DECLARE")]) == 2
    assert desk.bodies("Sales")[1:] == [str(number) for number in range(0, 40, 2)]
    assert desk.bodies("Billing")[1:] == [str(number) for number in range(1, 40, 2)]


def test_no_savepoint_is_taken_if_the_caller_rolls_back(desk: Desk) -> None:
    chosen = dispatcher(desk)
    messages = [outgoing(desk, "Sales", "1"), outgoing(desk, "Billing", "2")]
    chosen.dispatch(messages)

    with transaction.atomic(using=desk.alias), statements(desk.database) as seen:
        chosen.dispatch([outgoing(desk, "Sales", "1"), outgoing(desk, "Billing", "2")], begun=True)

    assert len(seen) == 2


def test_messages_with_the_same_id_are_written_once(desk: Desk) -> None:
    same = str(uuid.uuid4())
    dispatcher(desk).dispatch(
        [outgoing(desk, "Sales", "1", same), outgoing(desk, "Billing", "2", same), outgoing(desk, "Sales", "3"),
         outgoing(desk, "Sales", "4", same)]
    )  # fmt: skip

    assert desk.bodies("Sales") == ["4", "3"]
    assert desk.bodies("Billing") == ["2"]


@pytest.mark.parametrize("inside", [False, True], ids=["outside", "inside a transaction"])
def test_missing_queue_leaves_nothing_in_the_others(desk: Desk, inside: bool) -> None:
    chosen = dispatcher(desk)
    messages = [outgoing(desk, "Sales", "1"), outgoing(desk, "Nowhere", "2")]

    if inside:
        with transaction.atomic(using=desk.alias):
            with pytest.raises(QueueNotFound):
                chosen.dispatch(messages)
            chosen.dispatch([outgoing(desk, "Sales", "after")])
    else:
        with pytest.raises(QueueNotFound):
            chosen.dispatch(messages)

    assert desk.bodies("Sales") == (["after"] if inside else [])


def test_empty_dispatch_writes_nothing(desk: Desk) -> None:
    with statements(desk.database) as seen:
        dispatcher(desk).dispatch([])

    assert seen == []
