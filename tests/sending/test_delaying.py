"""Delayed sends: the rows in the delayed table, their due times, and arguments that are refused before anything is written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from django.db import connections, transaction

from sqlqueue_app import RetryLater, send, send_many
from sqlqueue_app.conf import get_settings
from sqlqueue_app.installation import planned_tables
from sqlqueue_app.messages.envelope import OutgoingMessage
from sqlqueue_app.messages.errors import ConfigurationError, QueueNotFound, SqlQueueError, WireFormatError
from sqlqueue_app.messages.times import parse_time
from sqlqueue_app.sending.dispatcher import Dispatcher, SeparateDispatcher, notified_of_delays
from sqlqueue_app.tables.delayed import DelayedTable
from sqlqueue_app.tables.installation import delayed_address, install_tables
from sqlqueue_app.testing import FakeContext, assert_sent
from tests.sending.conftest import Desk
from tests.sending.types import PlaceOrder
from tests.support.golden import rows as golden_rows

DELIVER_AT = "NServiceBus.DeliverAt"
FORWARD = "NServiceBus.SqlServer.ForwardDestination"


@pytest.fixture
def web(desk: Desk) -> Desk:
    """A process that sends as Web; its delayed table is installed."""
    desk.configure(SEND_AS="Web")
    install_tables(desk.alias, planned_tables(get_settings(), desk.database.vendor))
    return desk


def table(desk: Desk) -> DelayedTable:
    return DelayedTable(desk.alias, delayed_address(get_settings().address_book(desk.database.vendor), "Web"))


def delayed(desk: Desk) -> list[tuple[dict[str, Any], float]]:
    """The headers of each delayed message and the seconds from the database's now until it is due, the earliest first."""
    seconds = {
        "sqlite": "(julianday(Due) - julianday('now')) * 86400.0",
        "postgresql": "CAST(EXTRACT(EPOCH FROM due - clock_timestamp()) AS float)",
        "sqlserver": "DATEDIFF_BIG(second, GETUTCDATE(), Due)",
    }[desk.database.vendor]
    with desk.database.connection.cursor() as cursor:
        cursor.execute(f"SELECT headers, {seconds} FROM {table(desk).qualified} ORDER BY due")
        return [(json.loads(headers), float(until)) for headers, until in cursor.fetchall()]


def due_in(desk: Desk) -> float:
    ((_, seconds),) = delayed(desk)
    return seconds


@contextmanager
def session_in(desk: Desk, zone: str) -> Iterator[None]:
    """On PostgreSQL: sends of this thread use a session in this time zone."""
    with desk.database.connection.cursor() as cursor:
        cursor.execute(f"SET TIME ZONE '{zone}'")
    yield
    desk.database.connection.close()


@contextmanager
def rolled_back(desk: Desk) -> Iterator[None]:
    with transaction.atomic(using=desk.alias):
        yield
        transaction.set_rollback(True, using=desk.alias)


def test_delayed_message_has_the_headers_of_a_real_endpoint(web: Desk) -> None:
    message_id = send(PlaceOrder("42"), delay=timedelta(minutes=5))

    assert web.rows() == []
    ((headers, seconds),) = delayed(web)
    recorded = json.loads(next(row for row in golden_rows("json") if row["table"] == "Web.Delayed")["headers"])
    recorded.pop("NServiceBus.OpenTelemetry.StartNewTrace")
    assert list(headers) == list(recorded)
    assert headers["NServiceBus.MessageId"] == message_id
    assert 240 < seconds < 301
    waits = parse_time(headers[DELIVER_AT]) - parse_time(headers["NServiceBus.TimeSent"])
    assert timedelta(minutes=5) <= waits < timedelta(minutes=6)
    book = get_settings().address_book(web.database.vendor, web.database.catalog())
    assert headers[FORWARD] == book.canonical(book.of_queue("Sales"))


def test_deliver_at_is_kept_exactly(web: Desk) -> None:
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=3)
    send(PlaceOrder("42"), deliver_at=at.astimezone(timezone(timedelta(hours=-7))))

    ((headers, seconds),) = delayed(web)
    assert parse_time(headers[DELIVER_AT]) == at
    assert 10_000 < seconds < 10_801


@pytest.mark.parametrize("days", [1, 24, 25, 400, 100_000])
def test_long_delay_is_kept_exactly(web: Desk, days: int) -> None:
    send(PlaceOrder("42"), delay=timedelta(days=days, milliseconds=1))
    assert days * 86_400 - 60 < due_in(web) <= days * 86_400 + 1


@pytest.mark.parametrize(
    "when",
    [
        {"delay": timedelta()},
        {"delay": timedelta(seconds=-1)},
        {"delay": timedelta.min},
        {"deliver_at": datetime(2026, 1, 1, tzinfo=UTC)},
        {"deliver_at": datetime(1, 1, 1, tzinfo=UTC)},
    ],
)
def test_past_due_time_is_due_immediately(web: Desk, when: dict[str, Any]) -> None:
    send(PlaceOrder("42"), **when)
    assert due_in(web) < 0.01  # SQLite counts in days, to some 40 microseconds


@pytest.mark.parametrize("zone", ["Asia/Kolkata", "America/New_York", "UTC"])
def test_due_time_is_independent_of_the_session_time_zone(postgresql_desk: Desk, zone: str) -> None:
    postgresql_desk.configure(SEND_AS="Web")
    install_tables(postgresql_desk.alias, planned_tables(get_settings(), "postgresql"))
    with session_in(postgresql_desk, zone):
        send(PlaceOrder("1"), delay=timedelta(minutes=1))
        send(PlaceOrder("2"), deliver_at=datetime.now(UTC) + timedelta(minutes=2))
    assert [round(seconds / 60) for _, seconds in delayed(postgresql_desk)] == [1, 2]


def test_day_with_time_change_has_24_hours(postgresql_desk: Desk) -> None:
    postgresql_desk.configure(SEND_AS="Web")
    install_tables(postgresql_desk.alias, planned_tables(get_settings(), "postgresql"))
    with session_in(postgresql_desk, "America/New_York"):
        send(PlaceOrder("1"), delay=timedelta(days=200))
    assert round(due_in(postgresql_desk) / 3600) == 200 * 24


def test_rollback_drops_a_delayed_message(web: Desk) -> None:
    with rolled_back(web):
        send(PlaceOrder("42"), delay=timedelta(hours=1))
    assert delayed(web) == []


def test_many_messages_are_delayed_together(web: Desk) -> None:
    ids = send_many([PlaceOrder(str(number)) for number in range(1_000)], delay=timedelta(hours=1))

    found = delayed(web)
    assert {headers["NServiceBus.MessageId"] for headers, _ in found} == set(ids)
    assert all(3_500 < seconds < 3_601 for _, seconds in found)
    assert all(headers[FORWARD] for headers, _ in found)


@pytest.mark.parametrize("delay", [3600, 3600.0, timedelta(hours=1)])
def test_delay_is_seconds_or_a_timedelta_in_every_call(web: Desk, delay: float | timedelta) -> None:
    context = FakeContext()
    context.send("Sending.Ping", {}, to="Sales", delay=delay)
    send("Sending.Ping", {}, delay=delay)
    send_many("Sending.Ping", [{}], delay=delay)

    assert all(3_500 < seconds < 3_601 for _, seconds in delayed(web))
    assert_sent("Sending.Ping", delay=delay, count=2)
    assert RetryLater(delay).delay == timedelta(hours=1)
    assert [message.delay for message in context.sent] == [timedelta(hours=1)]


def test_all_messages_are_delayed_or_none(web: Desk) -> None:
    with pytest.raises(SqlQueueError, match=r"messages\[700\]"):
        send_many([*(PlaceOrder(str(number)) for number in range(700)), object()], delay=timedelta(hours=1))
    assert delayed(web) == []


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"delay": "5"}, WireFormatError, r"delay is str \('5'\); expected seconds or a timedelta, such as 60"),
    ({"delay": True}, WireFormatError, r"delay is bool \(True\); expected seconds or a timedelta"),
    ({"delay": float("nan")}, WireFormatError, r"delay is float \(nan\); expected seconds or a timedelta"),
    ({"delay": 1e300}, WireFormatError, r"delay is float \(1e\+300\); expected seconds or a timedelta"),
    ({"deliver_at": "tomorrow"}, WireFormatError, r"deliver_at is str \('tomorrow'\); expected an aware datetime"),
    ({"deliver_at": datetime(2026, 1, 1)}, WireFormatError, "has no time zone; expected an aware datetime"),  # noqa: DTZ001
    ({"delay": timedelta.max}, WireFormatError, "ends after the year 9999"),
    ({"delay": timedelta(days=365 * 8_000)}, WireFormatError, "ends after the year 9999"),
    ({"deliver_at": datetime.max.replace(tzinfo=UTC)}, WireFormatError, "after the year 9999"),
    ({"delay": timedelta(1), "deliver_at": datetime(2027, 1, 1, tzinfo=UTC)}, ConfigurationError, "leave one of them out"),
    ({"delay": timedelta(1), "time_to_be_received": timedelta(2)}, ConfigurationError, "time_to_be_received .* with a delay"),
    ({"deliver_at": datetime(2027, 1, 1, tzinfo=UTC), "time_to_be_received": timedelta(2)}, ConfigurationError, "with a delay"),
]


@pytest.mark.parametrize(("when", "error", "text"), REFUSED)
def test_invalid_delay_is_refused_before_anything_is_written(
    web: Desk, when: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        send(PlaceOrder("42"), **when)
    with pytest.raises(error, match=text):
        send_many([PlaceOrder("42")], **when)
    with pytest.raises(error, match=text):
        send_many([], **when)
    assert (web.rows(), delayed(web)) == ([], [])


def test_error_names_send_as_without_an_endpoint(desk: Desk) -> None:
    for call in (lambda: send(PlaceOrder("42"), delay=timedelta(1)), lambda: send_many([PlaceOrder("42")], delay=timedelta(1))):
        with pytest.raises(ConfigurationError, match=r'SQLQUEUE\["SEND_AS"\]'):
            call()
    assert desk.rows() == []


def test_process_without_send_as_uses_the_first_endpoints_table(web: Desk) -> None:
    web.configure(SEND_AS=None, ENDPOINTS={"Web": {}, "Sales": {}})

    send(PlaceOrder("1"), delay=timedelta(1))
    send_many([PlaceOrder("2")], delay=timedelta(1))

    assert (len(delayed(web)), web.rows()) == (2, [])


def test_missing_delayed_table_is_reported(desk: Desk) -> None:
    desk.configure(SEND_AS="Web")
    with pytest.raises(QueueNotFound, match=r"Web\.Delayed"):
        send(PlaceOrder("42"), delay=timedelta(1))


def test_message_in_another_databases_transaction_is_delayed_at_its_commit(postgresql_desk: Desk) -> None:
    postgresql_desk.configure(SEND_AS="Web")
    install_tables(postgresql_desk.alias, planned_tables(get_settings(), "postgresql"))
    with transaction.atomic(using="default"):
        send(PlaceOrder("42"), delay=timedelta(hours=1))
        assert delayed(postgresql_desk) == []
    assert len(delayed(postgresql_desk)) == 1


def message(desk: Desk, number: int, **when: Any) -> OutgoingMessage:
    headers: dict[str, str | None] = {"NServiceBus.MessageId": f"id-{number}"}
    return OutgoingMessage(get_settings().address_book(desk.database.vendor).of_queue("Sales"), headers, b"{}", **when)


def dispatcher(desk: Desk, kind: type[Dispatcher] = Dispatcher) -> Dispatcher:
    return kind(desk.alias, get_settings().address_book(desk.database.vendor), endpoint="Web")


def test_dispatch_writes_delayed_and_other_messages_together(web: Desk) -> None:
    mixed = [message(web, 1), message(web, 2, delay=timedelta(hours=1)), message(web, 3), message(web, 4, delay=timedelta(hours=2))]
    with transaction.atomic(using=web.alias):
        dispatcher(web).dispatch(mixed, begun=True)
    assert [headers["NServiceBus.MessageId"] for headers in web.headers()] == ["id-1", "id-3"]
    assert [headers["NServiceBus.MessageId"] for headers, _ in delayed(web)] == ["id-2", "id-4"]

    web.drop("Sales")
    with pytest.raises(QueueNotFound):
        dispatcher(web).dispatch([message(web, 5, delay=timedelta(hours=1)), message(web, 6)])
    assert len(delayed(web)) == 2


def test_message_delayed_again_gets_new_headers(web: Desk) -> None:
    again = message(web, 1, delay=timedelta(hours=1))
    again.headers.update({DELIVER_AT: "2020-01-01 00:00:00:000000 Z", FORWARD: "Elsewhere"})
    dispatcher(web).dispatch([again])
    ((headers, _),) = delayed(web)
    assert parse_time(headers[DELIVER_AT]) > datetime.now(UTC)
    assert "Sales" in headers[FORWARD]
    assert again.headers[FORWARD] == "Elsewhere"


def test_copies_with_the_same_due_time_are_written_once(web: Desk) -> None:
    hour, day = timedelta(hours=1), timedelta(days=1)
    dispatcher(web).dispatch(
        [message(web, 1, delay=hour), message(web, 1, delay=hour), message(web, 1, delay=day), message(web, 1)]
    )
    assert len(delayed(web)) == 2
    assert len(web.rows()) == 1


def test_separate_dispatcher_commits_independently(postgresql_desk: Desk) -> None:
    postgresql_desk.configure(SEND_AS="Web")
    install_tables(postgresql_desk.alias, planned_tables(get_settings(), "postgresql"))
    separate = dispatcher(postgresql_desk, SeparateDispatcher)
    with rolled_back(postgresql_desk):
        separate.dispatch([message(postgresql_desk, 1, delay=timedelta(hours=1))], begun=True)
    separate.close()
    assert len(delayed(postgresql_desk)) == 1


def test_subscriber_is_notified_of_delays_at_commit(web: Desk) -> None:
    notified: list[float] = []
    with notified_of_delays(web.alias, notified.append):
        send(PlaceOrder("1"), delay=timedelta(seconds=7))
        assert notified == [7.0]
        with transaction.atomic(using=web.alias):
            send_many([PlaceOrder("2"), PlaceOrder("3")], delay=timedelta(seconds=8))
            assert notified == [7.0]
        assert notified == [7.0, 8.0]
        with rolled_back(web):
            send(PlaceOrder("4"), delay=timedelta(seconds=9))
        send(PlaceOrder("5"))
    send(PlaceOrder("6"), delay=timedelta(seconds=10))
    assert notified == [7.0, 8.0]
    connections[web.alias].close()
