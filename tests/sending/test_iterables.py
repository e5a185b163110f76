"""`send_many()` with any iterable: read while messages are written, few of them in memory, all or none in any failure."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import IntegrityError, transaction

from sqlqueue_app import send, send_many
from sqlqueue_app.messages.errors import MessageBodyError, MessageTypeError, QueueNotFound
from sqlqueue_app.sending.composer import MESSAGES_PER_TEMPLATE
from sqlqueue_app.tables import queue
from sqlqueue_app.tables.queue import ROWS_PER_COPY
from tests.sending.conftest import Desk
from tests.sending.types import PlaceOrder
from tests.support.tables import elsewhere

# More than two statements on every database.
MANY = ROWS_PER_COPY * 2 + 100
BODY_BYTES = 1_000


def orders(count: int) -> Iterator[PlaceOrder]:
    for number in range(count):
        yield PlaceOrder(str(number))


def order_ids(desk: Desk, name: str = "Sales") -> list[str]:
    return [body["order_id"] for body in desk.bodies(name)]


def count(desk: Desk, name: str = "Sales") -> int:
    return desk.table(name).depth(100_000).waiting


# --- memory -------------------------------------------------------------------------------------------------------------------


def peak_of_sending(messages: Iterable[object]) -> int:
    """Return the peak of additional Python memory during the call, in bytes."""
    gc.collect()
    tracemalloc.start()
    try:
        send_many(messages)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def to_one_queue(number: int) -> tuple[str, dict[str, str]]:
    return "Sending.PlaceOrder", {"order_id": str(number).rjust(BODY_BYTES)}


def to_two_queues(number: int) -> tuple[str, dict[str, str]]:
    return ("Sending.PlaceOrder", "Sending.Bill")[number % 2], {"order_id": str(number).rjust(BODY_BYTES)}


@pytest.mark.parametrize("make", [to_one_queue, to_two_queues])
def test_memory_grows_only_by_the_ids(desk: Desk, make: Callable[[int], object]) -> None:
    desk.configure(ROUTES={"Sending.PlaceOrder": "Sales", "Sending.Bill": "Billing"})
    peak_of_sending(make(number) for number in range(200))  # fills caches

    few = peak_of_sending(make(number) for number in range(4_000))
    many = peak_of_sending(make(number) for number in range(20_000))

    grown = (many - few) / 16_000
    # A text of 36 characters takes 85 bytes, its list entry 8; headers and body of a message take 1,500 here.
    assert grown < 200, f"{grown:.0f} bytes a message ({few:,} bytes for 4,000 messages, {many:,} for 20,000)"
    assert count(desk, "Sales") + count(desk, "Billing") == 24_200


def test_large_messages_are_written_in_small_statements(desk: Desk) -> None:
    """Three hundred messages of 128 KiB would be 38 MiB; only four megabytes are in memory, plus the copies of the driver."""
    peak = peak_of_sending(("Sending.Large", {"order_id": "x" * 131_072}) for _ in range(300))

    assert peak < 8 * queue.SEND_BYTES_PER_STATEMENT
    assert count(desk) == 300


# --- order, ids, time ---------------------------------------------------------------------------------------------------------


def test_many_statements_keep_the_order_of_queues_and_ids(desk: Desk) -> None:
    desk.configure(ROUTES={"Sending.PlaceOrder": "Sales", "Sending.Bill": "Billing"})

    ids = send_many(PlaceOrder(str(n)) if n % 3 else ("Sending.Bill", {"order_id": str(n)}) for n in range(MANY * 2))

    assert order_ids(desk, "Sales") == [str(n) for n in range(MANY * 2) if n % 3]
    assert order_ids(desk, "Billing") == [str(n) for n in range(MANY * 2) if not n % 3]
    found = [pair for name in ("Sales", "Billing") for pair in zip(desk.headers(name), desk.bodies(name), strict=True)]
    sent = {headers["NServiceBus.MessageId"]: int(body["order_id"]) for headers, body in found}
    assert [sent[message_id] for message_id in ids] == list(range(MANY * 2))


def test_long_iterable_gets_new_time_stamps(desk: Desk) -> None:
    send_many(orders(MESSAGES_PER_TEMPLATE * 2))

    stamps = [headers["NServiceBus.TimeSent"] for headers in desk.headers()]
    assert stamps == sorted(stamps)
    assert len(set(stamps)) == 2


def test_bodies_may_be_any_iterable(desk: Desk) -> None:
    send_many("Sending.A", map(dict, [[("order_id", "1")], [("order_id", "2")]]))

    assert order_ids(desk) == ["1", "2"]


# --- all or none --------------------------------------------------------------------------------------------------------------


def failing(after: int) -> Iterator[PlaceOrder]:
    yield from orders(after)
    raise LookupError("no more")


def wrong(after: int) -> Iterator[object]:
    yield from orders(after)
    yield PlaceOrder("wrong", lines=[object()])  # type: ignore[list-item]


def to_nowhere(after: int) -> Iterator[object]:
    yield from orders(after)
    yield "Sending.Lost", {}


FAILURES = pytest.mark.parametrize(
    ("messages", "error"), [(failing, LookupError), (wrong, MessageBodyError), (to_nowhere, QueueNotFound)]
)


@FAILURES
@pytest.mark.parametrize("kind", [list, iter], ids=["list", "iterable"])
def test_failure_after_full_statements_leaves_nothing(
    desk: Desk, messages: Callable[[int], Iterator[object]], error: type[Exception], kind: Callable[[Any], Any]
) -> None:
    desk.configure(ROUTES={"Sending.PlaceOrder": "Sales", "Sending.Lost": "Nowhere"})

    with pytest.raises(error):
        send_many(kind(messages(MANY)))

    assert not desk.database.connection.in_atomic_block
    assert elsewhere(lambda: count(desk)) == 0


@FAILURES
@pytest.mark.parametrize("kind", [list, iter], ids=["list", "iterable"])
def test_caught_failure_keeps_the_rest_of_the_callers_transaction(
    desk: Desk, messages: Callable[[int], Iterator[object]], error: type[Exception], kind: Callable[[Any], Any]
) -> None:
    desk.configure(ROUTES={"Sending.PlaceOrder": "Sales", "Sending.Lost": "Nowhere"})

    with transaction.atomic(using=desk.alias):
        send(PlaceOrder("before"))
        with pytest.raises(error):
            send_many(kind(messages(MANY)))
        send(PlaceOrder("after"))

    assert order_ids(desk) == ["before", "after"]


def test_writes_of_the_iterable_belong_to_the_send(desk: Desk) -> None:
    groups = Group.objects.using(desk.alias)

    def messages(end: Exception | None) -> Iterator[PlaceOrder]:
        for number in range(10):
            groups.create(name=str(number))
            yield PlaceOrder(str(number))
        if end is not None:
            raise end

    with pytest.raises(LookupError):
        send_many(messages(LookupError()))
    assert (groups.count(), count(desk)) == (0, 0)
    send_many(messages(None))
    assert (groups.count(), count(desk)) == (10, 10)


def in_a_block_of_its_own(desk: Desk, numbers: int) -> Iterator[PlaceOrder]:
    """Like `for order in Order.objects.select_for_update()`: the block is open around each yield."""
    with transaction.atomic(using=desk.alias):
        for number in range(numbers):
            if number % 700 == 0:
                Group.objects.using(desk.alias).create(name=str(number))
            yield PlaceOrder(str(number))


@pytest.mark.parametrize("numbers", [3, MANY])
@pytest.mark.parametrize("inside", [False, True], ids=["outside", "inside a transaction"])
def test_generator_may_hold_a_transaction_open(desk: Desk, numbers: int, inside: bool) -> None:
    if inside:
        with transaction.atomic(using=desk.alias):
            send_many(in_a_block_of_its_own(desk, numbers))
    else:
        send_many(in_a_block_of_its_own(desk, numbers))

    assert not desk.database.connection.in_atomic_block
    assert elsewhere(lambda: (count(desk), Group.objects.using(desk.alias).count())) == (numbers, (numbers + 699) // 700)


@pytest.mark.parametrize("inside", [False, True], ids=["outside", "inside a transaction"])
def test_generator_with_open_transaction_is_closed_before_rollback(desk: Desk, inside: bool) -> None:
    """The database raises the error at the first full statement, while the generator waits at a yield inside its block."""
    desk.configure(ROUTES={"Sending.PlaceOrder": "Nowhere"})
    messages = in_a_block_of_its_own(desk, MANY)

    if inside:
        with transaction.atomic(using=desk.alias):
            Group.objects.using(desk.alias).create(name="kept")
            with pytest.raises(QueueNotFound):
                send_many(messages)
    else:
        with pytest.raises(QueueNotFound):
            send_many(messages)

    assert next(messages, None) is None
    assert not desk.database.connection.in_atomic_block
    names = elsewhere(lambda: list(Group.objects.using(desk.alias).values_list("name", flat=True)))
    assert names == (["kept"] if inside else [])


def test_error_of_the_callers_own_query_is_unchanged(desk: Desk) -> None:
    Group.objects.using(desk.alias).create(name="there")

    def messages() -> Iterator[PlaceOrder]:
        yield PlaceOrder("1")
        Group.objects.using(desk.alias).create(name="there")

    with pytest.raises(IntegrityError):
        send_many(messages())

    assert count(desk) == 0


# --- the position of a wrong message ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "error", "text"),
    [
        (object(), MessageTypeError, r"^messages\[1234\]: the class builtins\.object is not a message type"),
        (PlaceOrder("1", lines=[object()]), MessageBodyError, r"^messages\[1234\]: the body of PlaceOrder .* lines"),  # type: ignore[list-item]
        (("Other.Type", {}), MessageTypeError, r"^messages\[1234\]: message type 'Other\.Type' has no route"),
        ((PlaceOrder("1"), {}), MessageTypeError, r"^messages\[1234\]: a body was passed with the message PlaceOrder"),
        (("Sending.A", {}, 1), MessageTypeError, r"^messages\[1234\]: the class builtins\.tuple is not a message type"),
    ],
)
def test_error_names_the_position_of_a_wrong_message(desk: Desk, bad: object, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        send_many([*orders(1234), bad, *orders(3)])

    assert count(desk) == 0


def test_error_names_the_position_of_a_wrong_body(sqlite_desk: Desk) -> None:
    with pytest.raises(MessageBodyError, match=r"^bodies\[2\]: the body of dict cannot be written"):
        send_many("Sending.A", iter([{}, {}, {"a": object()}]))


def test_error_inside_a_message_keeps_its_type_and_notes_the_position(sqlite_desk: Desk) -> None:
    class Broken(dict[str, object]):
        def items(self) -> Any:
            raise ZeroDivisionError("of the message")

    with pytest.raises(ZeroDivisionError) as caught:
        send_many("Sending.A", [{}, Broken(a=1)])

    assert caught.value.__notes__ == ["while bodies[1] of send_many() was composed"]


@pytest.mark.parametrize("bodies", [{"order_id": "1"}, "text", b"bytes", 5])
def test_single_body_instead_of_a_list_is_refused(sqlite_desk: Desk, bodies: Any) -> None:
    with pytest.raises(MessageTypeError, match=rf"one {type(bodies).__name__} as bodies: pass a list of bodies"):
        send_many("Sending.A", bodies)


@pytest.mark.parametrize("messages", [{"Sending.A": {}}, b"Sending.A", 5])
def test_invalid_list_of_messages_is_refused(sqlite_desk: Desk, messages: Any) -> None:
    with pytest.raises(MessageTypeError, match=rf"one {type(messages).__name__}: pass a list"):
        send_many(messages)
