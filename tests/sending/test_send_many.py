"""Many messages: the same as the same number of `send()`s, all or none, in few statements."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import transaction
from django.test.utils import CaptureQueriesContext

from sqlqueue_app import send, send_many
from sqlqueue_app.messages.envelope import IncomingMessage, OutgoingMessage
from sqlqueue_app.messages.errors import ConfigurationError, MessageBodyError, MessageTypeError, QueueNotFound
from sqlqueue_app.sending.sender import Handling
from tests.sending.conftest import Desk
from tests.sending.types import NotRegistered, Pair, PlaceOrder

VARYING = ("NServiceBus.MessageId", "NServiceBus.ConversationId", "NServiceBus.CorrelationId", "NServiceBus.TimeSent")


def order_ids(desk: Desk, name: str = "Sales") -> list[str]:
    return [body["order_id"] for body in desk.bodies(name)]


def test_objects_keep_their_order_and_ids_are_returned(desk: Desk) -> None:
    ids = send_many([PlaceOrder(str(number)) for number in range(1200)])

    assert order_ids(desk) == [str(number) for number in range(1200)]
    assert [headers["NServiceBus.MessageId"] for headers in desk.headers()] == ids
    assert len(set(ids)) == 1200


def test_pairs_of_type_and_body_are_sent(desk: Desk) -> None:
    send_many([("Sending.A", {"order_id": "1"}), ("Sending.B", {"order_id": "2"}), ("Sending.A", {"order_id": "3"})])

    assert order_ids(desk) == ["1", "2", "3"]
    types = [headers["NServiceBus.EnclosedMessageTypes"] for headers in desk.headers()]
    assert types == ["Sending.A", "Sending.B", "Sending.A"]


def test_bodies_of_one_type_are_sent(desk: Desk) -> None:
    send_many("Sending.A", [{"order_id": str(number)} for number in range(3)])

    assert order_ids(desk) == ["0", "1", "2"]


def test_objects_and_pairs_may_be_mixed(desk: Desk) -> None:
    send_many([PlaceOrder("1"), ("Sending.PlaceOrder", {"order_id": "2"}), PlaceOrder("3")])

    assert order_ids(desk) == ["1", "2", "3"]
    assert len({headers["NServiceBus.EnclosedMessageTypes"] for headers in desk.headers()}) == 1


def test_named_tuple_of_two_is_a_message_and_no_pair(desk: Desk) -> None:
    send_many([Pair("Sending.A", 1)])

    assert desk.bodies() == [{"name": "Sending.A", "value": 1}]
    assert desk.headers()[0]["NServiceBus.EnclosedMessageTypes"] == "Sending.Pair"


@pytest.mark.parametrize("messages", [[], (), iter(())])
def test_empty_iterable_sends_nothing(desk: Desk, messages: Any) -> None:
    assert send_many(messages) == []
    assert desk.rows() == []


def test_rows_equal_those_of_single_sends(desk: Desk) -> None:
    desk.configure(SEND_AS="Web")
    extra: dict[str, Any] = {"headers": {"Tenant": "a/ü"}, "time_to_be_received": timedelta(hours=1)}
    send(PlaceOrder("42"), **extra)
    send_many([PlaceOrder("42"), PlaceOrder("42")], **extra)

    single, *many = desk.headers()
    for headers in many:
        assert list(headers) == list(single)
        assert {name: headers[name] for name in headers if name not in VARYING} == {
            name: single[name] for name in single if name not in VARYING
        }
        same = headers["NServiceBus.MessageId"]
        assert headers["NServiceBus.ConversationId"] == headers["NServiceBus.CorrelationId"] == same
    rows = desk.rows()
    assert len({row.body for row in rows}) == 1
    assert len({row.id for row in rows}) == 3
    assert all(row.reply_to_address == rows[0].reply_to_address for row in rows)
    if desk.database.vendor == "sqlite":
        assert [row.correlation_id for row in rows] == [headers["NServiceBus.MessageId"] for headers in desk.headers()]
        assert [row.id for row in rows] == [uuid.UUID(headers["NServiceBus.MessageId"]) for headers in desk.headers()]


def test_database_counts_the_expiry_of_many(desk: Desk) -> None:
    send_many([PlaceOrder("1")] * 700, time_to_be_received=timedelta(days=1))
    send_many([PlaceOrder("2")] * 700, time_to_be_received=timedelta(milliseconds=-1))

    rows = desk.rows()
    assert [row.expired for row in rows] == [False] * 700 + [True] * 700
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    assert all(row.expires and abs(row.expires - tomorrow) < timedelta(minutes=5) for row in rows[:700])


def test_each_queue_gets_its_messages_in_order(desk: Desk) -> None:
    desk.configure(ROUTES={"Sending.PlaceOrder": "Sales", "Sending.Bill": "Billing"})
    mixed: list[Any] = [PlaceOrder(str(n)) if n % 3 else ("Sending.Bill", {"order_id": str(n)}) for n in range(900)]

    ids = send_many(mixed)

    assert order_ids(desk, "Sales") == [str(n) for n in range(900) if n % 3]
    assert order_ids(desk, "Billing") == [str(n) for n in range(900) if not n % 3]
    found = {headers["NServiceBus.MessageId"] for name in ("Sales", "Billing") for headers in desk.headers(name)}
    assert found == set(ids)


def test_address_applies_to_all_messages(desk: Desk) -> None:
    send_many([PlaceOrder("1"), ("Without.Route", {})], to="Billing")

    assert len(desk.rows("Billing")) == 2


@pytest.mark.parametrize("inside", [False, True], ids=["outside", "inside a transaction"])
def test_one_missing_queue_leaves_all_queues_empty(desk: Desk, inside: bool) -> None:
    desk.configure(ROUTES={"Sending.PlaceOrder": "Sales", "Sending.Bill": "Billing", "Sending.Lost": "Nowhere"})
    messages: list[Any] = [PlaceOrder("1"), ("Sending.Bill", {}), ("Sending.Lost", {})]

    if inside:
        with transaction.atomic(using=desk.alias):
            Group.objects.using(desk.alias).create(name="kept")
            with pytest.raises(QueueNotFound):
                send_many(messages)
        assert Group.objects.using(desk.alias).count() == 1
    else:
        with pytest.raises(QueueNotFound):
            send_many(messages)

    assert [len(desk.rows(name)) for name in ("Sales", "Billing")] == [0, 0]


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [(NotRegistered("1"), MessageTypeError), (PlaceOrder("1", lines=[object()]), MessageBodyError)],  # type: ignore[list-item]
)
def test_wrong_message_at_the_end_sends_none(desk: Desk, wrong: object, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        send_many([*(PlaceOrder(str(number)) for number in range(600)), wrong])

    assert desk.rows() == []


def test_iterable_may_query_the_same_database(desk: Desk) -> None:
    """As in `send_many(Welcome(user.id) for user in User.objects.all())`."""
    groups = Group.objects.using(desk.alias)
    groups.bulk_create([Group(name=str(number)) for number in range(700)])

    def messages() -> Iterator[PlaceOrder]:
        for group in groups.order_by("id").iterator(chunk_size=100):
            yield PlaceOrder(group.name)

    send_many(messages())

    assert order_ids(desk) == [str(number) for number in range(700)]


def test_failing_iterable_sends_nothing(desk: Desk) -> None:
    def messages() -> Iterator[PlaceOrder]:
        yield PlaceOrder("1")
        raise LookupError("no more")

    with pytest.raises(LookupError, match="no more"):
        send_many(messages())

    assert desk.rows() == []


def test_large_bodies_need_several_statements(desk: Desk) -> None:
    texts = [character * (1024 * 1024) for character in "abcdefghij"]

    send_many("Sending.Large", [{"order_id": text} for text in texts])

    assert order_ids(desk) == texts


def test_few_hundred_rows_need_one_statement(desk: Desk) -> None:
    send(PlaceOrder("the columns of the table are looked up once"))

    with CaptureQueriesContext(desk.database.connection) as captured:
        send_many([PlaceOrder("42")] * 100)

    inserts = [query["sql"] for query in captured if query["sql"].lstrip().upper().startswith(("INSERT", "COPY"))]
    assert len(inserts) <= 1
    assert len(captured) <= 3


@pytest.mark.parametrize("blank", [None, ""])
def test_blank_correlation_id_of_the_caller_stays_blank(desk: Desk, blank: str | None) -> None:
    headers = {"NServiceBus.CorrelationId": blank}
    send(PlaceOrder("1"), headers=headers)
    send_many([PlaceOrder("2")], headers=headers)

    assert [row.correlation_id for row in desk.rows()] == [None, None]
    assert [each["NServiceBus.CorrelationId"] for each in desk.headers()] == [blank, blank]


def test_messages_continue_the_conversation_of_the_handled_message(desk: Desk) -> None:
    incoming = IncomingMessage(
        uuid.uuid4(), {"NServiceBus.MessageId": "m", "NServiceBus.ConversationId": "c", "NServiceBus.CorrelationId": "k"}, b"{}"
    )
    desk.configure(ENDPOINTS={"Web": {}})
    with Handling(incoming, "Web"):
        send_many([PlaceOrder("1"), PlaceOrder("2")])

    for headers in desk.headers():
        assert headers["NServiceBus.RelatedTo"] == "m"
        assert headers["NServiceBus.ConversationId"] == "c"
        assert headers["NServiceBus.CorrelationId"] == "k"
        assert headers["NServiceBus.OriginatingEndpoint"] == "Web"
        assert headers["NServiceBus.MessageId"] not in ("m", "c", "k")
    if desk.database.vendor == "sqlite":
        assert [row.correlation_id for row in desk.rows()] == ["k", "k"]


def test_collected_messages_are_complete(desk: Desk) -> None:
    incoming = IncomingMessage(uuid.uuid4(), {"NServiceBus.MessageId": "m"}, b"{}")
    desk.configure(ENDPOINTS={"Web": {}})
    collected: list[OutgoingMessage] = []
    with Handling(incoming, "Web", collected.extend):
        ids = send_many([PlaceOrder("1"), PlaceOrder("2")], headers={"Tenant": "ü/"}, time_to_be_received=timedelta(seconds=1.5))

    assert desk.rows() == []
    assert [message.message_id for message in collected] == ids
    assert {message.destination.table for message in collected} == {"Sales"}
    assert {message.time_to_be_received for message in collected} == {timedelta(seconds=1.5)}
    assert {message.headers["Tenant"] for message in collected} == {"ü/"}
    assert b'"order_id":"2"' in collected[1].body


# --- arguments that cannot be combined ----------------------------------------------------------------------------------------


def test_type_name_without_bodies_is_refused(desk: Desk) -> None:
    with pytest.raises(MessageTypeError, match=r"'Sending\.PlaceOrder' without bodies"):
        send_many("Sending.PlaceOrder")


def test_bodies_beside_objects_are_refused(desk: Desk) -> None:
    with pytest.raises(MessageTypeError, match="bodies as well as messages"):
        send_many([PlaceOrder("1")], [{}])


def test_single_object_instead_of_a_list_is_refused(desk: Desk) -> None:
    with pytest.raises(MessageTypeError, match="one PlaceOrder: pass a list, or call send"):
        send_many(PlaceOrder("1"))  # type: ignore[arg-type]


def test_one_message_id_for_all_is_refused(desk: Desk) -> None:
    with pytest.raises(ConfigurationError, match=r"'NServiceBus\.MessageId', which would give every message the same id"):
        send_many([PlaceOrder("1"), PlaceOrder("2")], headers={"NServiceBus.MessageId": "x"})

    assert desk.rows() == []
