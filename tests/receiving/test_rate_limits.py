"""Rate limits of message types: exact over all threads and processes of an endpoint, and nothing lost or handled twice."""

from __future__ import annotations

import json
import threading
import time
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import Any
from uuid import uuid4

import pytest

from sqlqueue_app import handles, send_many
from sqlqueue_app.checks import check_rate_limits
from sqlqueue_app.conf import get_settings
from sqlqueue_app.messages.errors import ConfigurationError, ConnectionLost, HandlerError
from sqlqueue_app.messages.times import parse_time
from sqlqueue_app.models import RateReservation
from sqlqueue_app.policies.rates import SECOND
from sqlqueue_app.receiving.endpoint import ReceivingEndpoint
from sqlqueue_app.receiving.rate_limits import TypeLimits
from sqlqueue_app.sending.dispatcher import notified_of_delays
from sqlqueue_app.tables.delayed import DelayedTable
from sqlqueue_app.tables.installation import delayed_address, migrate_command
from sqlqueue_app.tables.managed import RateTable
from sqlqueue_app.testing import drain
from sqlqueue_app.worker.run import _connections_needed
from tests.support.bench import MODES, Bench, Calls, Running, write_instance, written
from tests.support.waiting import poll_until
from tests.support.worker_processes import address, handled, prepare, wait_until_released, worker_process

RESERVATION = "SqlQueue.RateReservation"


class Clock:
    """The database's clock for rate limits, which stands still unless a test advances it."""

    def __init__(self) -> None:
        # Reservations are in the future of the real clock, which moves delayed messages.
        self.now = int(time.time() + 3_600) * SECOND

    def advance(self, seconds: float) -> None:
        self.now += int(seconds * SECOND)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    read = RateTable.read
    monkeypatch.setattr(RateTable, "read", lambda table, key: (made.now, read(table, key)[1]))
    return made


def table(bench: Bench) -> DelayedTable:
    book = get_settings().address_book(bench.database.vendor, bench.database.catalog())
    return DelayedTable(bench.database.alias, delayed_address(book, "Sales"))


def delayed(bench: Bench) -> list[dict[str, Any]]:
    return [json.loads(row.headers or "") for row in table(bench).peek(1_000)]


def all_due(bench: Bench) -> None:
    """Make the waiting messages due by the real clock, which moves them."""
    table(bench).bring_nearer(timedelta(days=1))


def spread(bench: Bench) -> list[float]:
    """The seconds between the times that are reserved for the waiting messages."""
    times = sorted(parse_time(each[RESERVATION]) for each in delayed(bench))
    return [(later - earlier).total_seconds() for earlier, later in pairwise(times)]


def more_than(bench: Bench, number: int) -> bool:
    return len(handled(bench)) > number


def put(bench: Bench, number: int, message_type: str = "Test.Message", **body: Any) -> None:
    for n in range(number):
        bench.put_message_of(n, message_type, {"n": n, **body})


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("batch", [1, 10])
def test_messages_that_come_too_early_wait_for_their_time(bench: Bench, calls: Calls, clock: Clock, mode: str, batch: int) -> None:
    handles("Test.Message", rate_limit="10/m")(lambda message, context: calls.add(message["n"]) and None)
    bench.configure(TRANSACTION_MODE=mode, BATCH_SIZE=batch, MAX_CONCURRENCY=1)
    put(bench, 4)
    bench.run()

    assert calls.seen == [0]
    assert bench.rows("Sales") == bench.rows("error") == []
    assert spread(bench) == [6.0] * 2


@pytest.mark.parametrize("mode", ["transaction_scope", "none"])
def test_waiting_message_wakes_the_mover_of_its_process(bench: Bench, calls: Calls, clock: Clock, mode: str) -> None:
    handles("Test.Message", rate_limit="10/m")(lambda message, context: calls.add(message["n"]) and None)
    bench.configure(TRANSACTION_MODE=mode, MAX_CONCURRENCY=1)
    put(bench, 3)
    notified: list[float] = []
    with notified_of_delays(bench.database.alias, notified.append):
        bench.run()
    assert [notified[1] - notified[0]] == pytest.approx([6.0], abs=1)


@pytest.mark.parametrize(
    ("body", "content_type"),
    [(b'{"$type": "Test.Message, Shop"}', ""), (b'<Message xmlns="http://tempuri.net/Test"/>', "text/xml")],
)
def test_limit_holds_for_messages_that_name_their_type_in_the_body(
    bench: Bench, calls: Calls, clock: Clock, body: bytes, content_type: str
) -> None:
    handles("Test.Message", rate_limit="10/m")(lambda message, context: calls.add(1) and None)
    bench.configure(MAX_CONCURRENCY=1)
    for number in range(3):
        headers = json.dumps({"NServiceBus.ContentType": content_type} if content_type else {})
        bench.put(headers, body, row_id=f"00000000-0000-0000-0000-{number:012}")
    bench.put("{}", b"unreadable", row_id="11111111-0000-0000-0000-000000000000")
    bench.run()
    assert calls.seen == [1]
    assert spread(bench) == [6.0]
    assert len(bench.rows("error")) == 1


def test_message_begins_when_it_returns_and_shows_nothing_of_its_wait(bench: Bench, calls: Calls, clock: Clock) -> None:
    @handles("Test.Message", rate_limit="10/m")
    def handler(message: Any, context: Any) -> None:
        calls.add((message["n"], context.attempt, context.message_id))
        assert RESERVATION not in context.headers

    bench.configure(AUDIT_QUEUE="audit")
    bench.put_message_of(1, "Test.Message", {"n": 1})
    bench.put_message_of(2, "Test.Message", {"n": 2})
    bench.run(max_concurrency=1)
    (waiting,) = delayed(bench)
    assert waiting["NServiceBus.MessageId"] == "00000000-0000-0000-0000-000000000002"

    clock.advance(6)
    all_due(bench)
    bench.run()
    ids = [f"00000000-0000-0000-0000-00000000000{n}" for n in (1, 2)]
    assert calls.seen == [(1, 1, ids[0]), (2, 1, ids[1])]
    assert bench.rows("error") == []
    assert [RESERVATION in each for each in bench.headers("audit")] == [False, False]


def test_messages_that_return_late_together_are_spread_again(bench: Bench, calls: Calls, clock: Clock) -> None:
    handles("Test.Message", rate_limit="10/m")(lambda message, context: calls.add(message["n"]) and None)
    bench.configure(MAX_CONCURRENCY=1)
    put(bench, 10)
    bench.run()
    clock.advance(3_600)
    all_due(bench)
    bench.run()
    # One message is on time, and one is within the tolerance.
    assert calls.seen == [0, 1, 2]
    assert spread(bench) == [6.0] * 6


def test_other_types_are_not_delayed(bench: Bench, calls: Calls, clock: Clock) -> None:
    handles("Test.Message", rate_limit="1/d")(lambda message, context: calls.add("limited"))
    handles("Test.Other")(lambda message, context: calls.add("other"))
    for number in range(4):
        bench.put_message_of(number, "Test.Message" if number % 2 == 0 else "Test.Other")
    bench.run(max_concurrency=1)
    assert calls.seen == ["limited", "other", "other"]
    assert len(delayed(bench)) == 1


def test_delayed_retry_takes_a_time_of_its_own_and_an_immediate_one_does_not(bench: Bench, calls: Calls, clock: Clock) -> None:
    @handles("Test.Message", rate_limit="1/m")
    def handler(message: Any, context: Any) -> None:
        calls.add(context.attempt)
        write_instance(bench, "undone")
        raise LookupError

    bench.configure(IMMEDIATE_RETRIES=1, DELAYED_RETRIES=1, DELAYED_RETRY_INCREASE=0)
    bench.put_message("Test.Message")
    bench.run()
    # The failed attempts have used their time: the retry, which was due at once, waits for the next.
    assert calls.seen == [1, 2]
    assert written(bench) == []
    (waiting,) = delayed(bench)
    assert waiting["NServiceBus.Retries"] == "1"
    clock.advance(60)
    all_due(bench)
    bench.run()
    assert calls.seen == [1, 2, 1, 2]
    (failed,) = bench.headers("error")
    assert RESERVATION not in failed


def test_several_workers_share_a_limit(bench: Bench, calls: Calls, clock: Clock) -> None:
    """While the clock stands still, one message is handled, whichever worker receives it, and each other has its own time."""
    handles("Test.Message", rate_limit="10/m")(lambda message, context: calls.add(message["n"]) and None)
    bench.configure(MAX_CONCURRENCY=4, CONCURRENCY_MODEL="fixed")
    put(bench, 60)
    with Running(bench), Running(bench), Running(bench):
        poll_until(lambda: bench.rows("Sales") == [] and len(delayed(bench)) == 59)
    assert len(calls.seen) == 1
    assert spread(bench) == [6.0] * 58


def test_handler_runs_without_holding_the_row_of_the_limit(postgresql_bench: Bench, calls: Calls, clock: Clock) -> None:
    """Another message of the type reserves its time while a handler runs."""
    bench, release = postgresql_bench, threading.Event()

    @handles("Test.Message", rate_limit="10/m")
    def handler(message: Any, context: Any) -> None:
        calls.add(message["n"])
        assert release.wait(60)

    bench.configure(MAX_CONCURRENCY=2, CONCURRENCY_MODEL="fixed")
    bench.put_message_of(1, "Test.Message", {"n": 1})
    with Running(bench):
        poll_until(lambda: calls.seen)
        bench.put_message_of(2, "Test.Message", {"n": 2})
        poll_until(lambda: len(delayed(bench)) == 1)
        assert calls.seen == [1]
        release.set()


def test_reservation_of_a_lost_transaction_is_used_for_nothing(
    bench: Bench, calls: Calls, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same follows from a kill between the reservation and the commit: the message stays in its queue and is handled once."""
    handles("Test.Message", rate_limit="10/m")(lambda message, context: calls.add(message["n"]) and None)
    bench.configure(MAX_CONCURRENCY=1)
    put(bench, 3)
    postpones, lost = TypeLimits.postpones, iter([True])

    def losing(self: Any, *arguments: Any) -> bool:
        found = postpones(self, *arguments)
        if found and next(lost, False):
            raise ConnectionLost("killed")
        return found

    monkeypatch.setattr(TypeLimits, "postpones", losing)
    bench.run()
    assert calls.seen == [0]
    assert sorted(each["NServiceBus.MessageId"][-1] for each in delayed(bench)) == ["1", "2"]
    # SQLite has rolled the reservation back; elsewhere one time stays free.
    assert spread(bench) == [6.0]


@pytest.mark.parametrize("kills", [4])
def test_killed_workers_lose_nothing_and_handle_nothing_twice(bench: Bench, kills: int) -> None:
    prepare(bench, RATE_LIMITS={"Worker.*": "40/s"})
    send_many("Worker.Count", [{"number": number} for number in range(120)], to=address(bench, "Sales"))
    for number in range(kills):
        with worker_process(bench) as process:
            poll_until(partial(more_than, bench, 20 * number))
            process.kill()
            process.wait()
        wait_until_released(bench)
    with worker_process(bench):
        poll_until(lambda: len(handled(bench)) >= 120)
    assert [number for number, _ in handled(bench)] == list(range(120))
    assert bench.rows("Sales") == bench.rows("error") == []
    assert delayed(bench) == []


# --- settings -----------------------------------------------------------------------------------------------------------------


def rates(name: str = "Sales") -> dict[str, str]:
    return {each: str(rate) for each, rate in ReceivingEndpoint(get_settings(), name).handlers.rates.items()}


def test_setting_takes_precedence_over_handlers_whose_slowest_limit_counts(bench: Bench) -> None:
    handles("Test.One", "Test.Two", "Other.Three", rate_limit="10/s")(lambda message, context: None)
    handles("Test.One", rate_limit="5/s")(lambda message, context: None)
    handles("Other.Four")(lambda message, context: None)
    assert rates() == {"Test.One": "5/s", "Test.Two": "10/s", "Other.Three": "10/s"}
    bench.configure(RATE_LIMITS={"Test.*": "1/m", "Test.Two": "2/m"})
    assert rates() == {"Test.One": "1/m", "Test.Two": "2/m", "Other.Three": "10/s"}


def test_without_limits_nothing_is_checked(bench: Bench, counting: object) -> None:
    endpoint = ReceivingEndpoint(get_settings(), "Sales")
    assert endpoint.type_limits is None
    assert endpoint.processor_config(endpoint.receiving_queues(None)[0]).type_limits is None


@pytest.mark.parametrize("value", ["10", "ten/m", "", 10, "0/s"])
def test_wrong_limit_of_a_handler_is_refused(value: Any) -> None:
    with pytest.raises(HandlerError, match=r"@handles\(…, rate_limit=.*\): expected a number of messages per second, minute"):
        handles("Test.Message", rate_limit=value)


@pytest.mark.parametrize("value", ["10", "ten/m", "", 10, "0/s", None])
def test_wrong_limit_in_the_settings_is_refused(bench: Bench, value: Any) -> None:
    bench.database.configure(ENDPOINTS={"Sales": {"RATE_LIMITS": {"Test.Message": value}}})
    with pytest.raises(
        ConfigurationError, match=r'"RATE_LIMITS"\]\["Test.Message"\] is .*, expected a number of messages per second'
    ):
        get_settings()


def test_app_tables_in_another_database_are_refused(sqlite_bench: Bench) -> None:
    bench = sqlite_bench
    handles("Test.Message", rate_limit="10/m")(lambda message, context: None)
    bench.configure(HANDLERS=[__name__])
    assert check_rate_limits() == []
    bench.database.settings.DATABASE_ROUTERS = ["tests.receiving.test_duplicates.OtherDatabaseRouter"]
    (error,) = check_rate_limits()
    assert (error.id, error.level) == ("sqlqueue.E032", 40)
    assert "in the database of the queues, 'default', but the routers keep the tables of sqlqueue_app in 'elsewhere'" in error.msg
    with pytest.raises(ConfigurationError, match="but the routers keep the tables of sqlqueue_app in 'elsewhere'"):
        bench.run()
    bench.configure(HANDLERS=[])
    assert check_rate_limits() == []


def test_missing_table_is_reported_at_the_start(bench: Bench) -> None:
    handles("Test.Message", rate_limit="10/m")(lambda message, context: None)
    with bench.database.connection.schema_editor() as editor:
        editor.delete_model(RateReservation)
    try:
        expected = f"the rate limits of endpoint 'Sales' need the table .*: run {migrate_command(bench.database.alias)}$"
        with pytest.raises(ConfigurationError, match=expected):
            bench.run()
    finally:
        with bench.database.connection.schema_editor() as editor:
            editor.create_model(RateReservation)


def test_drain_has_no_limits(bench: Bench, calls: Calls) -> None:
    handles("Test.Message", rate_limit="1/d")(lambda message, context: calls.add(message["n"]) and None)
    put(bench, 3)
    assert drain().handled == 3
    assert not RateReservation.objects.using(bench.database.alias).exists()


def test_limits_need_a_second_connection_for_each_thread(bench: Bench) -> None:
    def needed() -> int:
        endpoint = ReceivingEndpoint(get_settings(), "Sales")
        return _connections_needed([endpoint], {"Sales": endpoint.receiving_queues(None)})

    bench.configure(MAX_CONCURRENCY=5)
    before = needed()
    handles("Test.Message", rate_limit="1/d")(lambda message, context: None)
    assert needed() == before + 5


def test_clock_is_that_of_the_database(bench: Bench) -> None:
    now, state = RateTable(bench.database.alias, RateReservation._meta.db_table).read(uuid4())
    assert abs(now - time.time() * SECOND) < 60 * SECOND
    assert state is None
