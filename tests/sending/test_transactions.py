"""`send()` and transactions: with the caller's rows, immediately, or after the commit of another database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connections, transaction

from sqlqueue_app import send, send_many
from sqlqueue_app.messages.errors import QueueNotFound
from tests.sending.conftest import Desk
from tests.sending.types import PlaceOrder
from tests.support.other_databases import made_beside
from tests.support.provisioning import PostgresqlProvider
from tests.support.tables import elsewhere


@contextmanager
def rolled_back(alias: str) -> Iterator[None]:
    """A block of atomic() that ends with an exception."""
    with suppress(InterruptedError), transaction.atomic(using=alias):
        yield
        raise InterruptedError


def send_one() -> None:
    send(PlaceOrder("42"))


def send_several() -> None:
    send_many([PlaceOrder("42")])


BOTH = pytest.mark.parametrize("sending", [send_one, send_several])
Sending = Callable[[], None]


def groups(desk: Desk) -> Any:
    return Group.objects.using(desk.alias)


@BOTH
def test_message_outside_a_transaction_is_sent_at_once(desk: Desk, sending: Sending) -> None:
    sending()

    assert elsewhere(lambda: len(desk.rows())) == 1


@BOTH
def test_message_commits_with_the_callers_rows(desk: Desk, sending: Sending) -> None:
    with transaction.atomic(using=desk.alias):
        groups(desk).create(name="order 42")
        sending()
        assert elsewhere(lambda: len(desk.rows())) == 0

    assert elsewhere(lambda: (len(desk.rows()), groups(desk).count())) == (1, 1)


@BOTH
def test_message_rolls_back_with_the_callers_rows(desk: Desk, sending: Sending) -> None:
    with rolled_back(desk.alias):
        groups(desk).create(name="order 42")
        sending()

    assert (len(desk.rows()), groups(desk).count()) == (0, 0)


@BOTH
def test_rolled_back_savepoint_drops_its_messages(desk: Desk, sending: Sending) -> None:
    with transaction.atomic(using=desk.alias):
        sending()
        with rolled_back(desk.alias):
            sending()
        sending()

    assert len(desk.rows()) == 2


@BOTH
def test_message_in_an_on_commit_hook_is_sent_at_once(desk: Desk, sending: Sending) -> None:
    with transaction.atomic(using=desk.alias):
        transaction.on_commit(sending, using=desk.alias)
        assert desk.rows() == []

    assert elsewhere(lambda: len(desk.rows())) == 1


def test_missing_queue_leaves_the_callers_transaction_intact(desk: Desk) -> None:
    with transaction.atomic(using=desk.alias):
        groups(desk).create(name="order 42")
        with pytest.raises(QueueNotFound):
            send(PlaceOrder("42"), to="Nowhere")
        send(PlaceOrder("43"))

    assert (len(desk.rows()), groups(desk).count()) == (1, 1)


# --- another database ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def other(postgresql_desk: Desk) -> str:
    """The alias of a database without queues, beside `postgresql_desk`, which has them."""
    assert postgresql_desk.alias != "default"
    return "default"


@BOTH
def test_message_waits_for_the_commit_of_another_database(
    postgresql_desk: Desk, other: str, warnings: Callable[[], list[str]], sending: Sending
) -> None:
    with transaction.atomic(using=other):
        sending()
        assert postgresql_desk.rows() == []

    assert elsewhere(lambda: len(postgresql_desk.rows())) == 1
    (warning,) = warnings()
    assert "'default'" in warning
    assert "transaction.atomic(using='postgresql')" in warning


@pytest.fixture
def third(postgresql_desk: Desk) -> Iterator[str]:
    """The alias of one more database without queues."""
    provider = postgresql_desk.database.provider
    assert isinstance(provider, PostgresqlProvider)
    with made_beside(provider, "third", unique=False) as made:
        yield made.alias


@BOTH
def test_message_waits_for_the_last_of_several_databases(postgresql_desk: Desk, other: str, third: str, sending: Sending) -> None:
    for outer, inner in ((other, third), (third, other)):
        with transaction.atomic(using=outer):
            with transaction.atomic(using=inner):
                sending()
            assert postgresql_desk.rows() == []
        assert len(postgresql_desk.rows()) == 1
        postgresql_desk.table("Sales").purge()


def test_rollback_of_any_of_several_databases_drops_the_message(postgresql_desk: Desk, other: str, third: str) -> None:
    for outer, inner in ((other, third), (third, other)):
        with rolled_back(outer), transaction.atomic(using=inner):
            send(PlaceOrder("42"))
        with transaction.atomic(using=outer), rolled_back(inner):
            send(PlaceOrder("42"))

    assert postgresql_desk.rows() == []


@BOTH
def test_rollback_of_the_other_database_drops_the_message(postgresql_desk: Desk, other: str, sending: Sending) -> None:
    with rolled_back(other):
        sending()

    assert postgresql_desk.rows() == []


def test_message_waits_for_the_outermost_block_and_follows_the_savepoint(postgresql_desk: Desk, other: str) -> None:
    with transaction.atomic(using=other):
        with transaction.atomic(using=other):
            send(PlaceOrder("kept"))
        with rolled_back(other):
            send(PlaceOrder("undone"))
        assert postgresql_desk.rows() == []

    assert [body["order_id"] for body in postgresql_desk.bodies()] == ["kept"]


def test_warning_is_logged_once(postgresql_desk: Desk, other: str, warnings: Callable[[], list[str]]) -> None:
    for _ in range(3):
        with transaction.atomic(using=other):
            send(PlaceOrder("42"))
            send_many([PlaceOrder("42")])

    assert len(warnings()) == 1
    assert len(postgresql_desk.rows()) == 6


def test_message_joins_the_transaction_of_the_queues_if_both_are_open(
    postgresql_desk: Desk, other: str, warnings: Callable[[], list[str]]
) -> None:
    with transaction.atomic(using=other):
        with rolled_back(postgresql_desk.alias):
            send(PlaceOrder("undone"))
        with transaction.atomic(using=postgresql_desk.alias):
            send(PlaceOrder("42"))
        assert elsewhere(lambda: len(postgresql_desk.rows())) == 1

    assert len(postgresql_desk.rows()) == 1
    assert warnings() == []


def test_mistake_is_reported_at_the_call_and_not_at_the_commit(postgresql_desk: Desk, other: str) -> None:
    postgresql_desk.configure(ROUTES={})

    with transaction.atomic(using=other), pytest.raises(Exception, match="has no route"):
        send(PlaceOrder("42"))


def test_deferred_message_is_composed_before_the_commit(postgresql_desk: Desk, other: str) -> None:
    """Later changes of the object do not change the message."""
    order = PlaceOrder("42")
    with transaction.atomic(using=other):
        message_id = send(order)
        order.order_id = "changed"

    assert [body["order_id"] for body in postgresql_desk.bodies()] == ["42"]
    assert postgresql_desk.headers()[0]["NServiceBus.MessageId"] == message_id


def test_unused_connection_does_not_count_as_another_database(postgresql_desk: Desk, other: str) -> None:
    connections[other].close()

    send(PlaceOrder("42"))

    assert len(postgresql_desk.rows()) == 1
