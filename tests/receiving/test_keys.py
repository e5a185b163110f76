"""`@handles(…, key=…)`: messages with the same key are handled one at a time, in the order of the rows."""

from __future__ import annotations

import random
import signal
import sys
import threading
import uuid
from typing import Any

import pytest
from django.db import connections

from sqlqueue_app import handles, send
from sqlqueue_app.conf import get_settings
from sqlqueue_app.messages.errors import ConfigurationError, HandlerError
from sqlqueue_app.receiving.endpoint import ReceivingEndpoint
from sqlqueue_app.receiving.handlers import Handler
from sqlqueue_app.receiving.keys import key_bytes, lock_of_key
from sqlqueue_app.testing import InMemoryEndpoint
from tests.support import keyed_app
from tests.support.bench import MODES, Bench, Calls, Running
from tests.support.forking import RECEIVE, ForkedProcesses
from tests.support.waiting import poll_until
from tests.support.worker_processes import wait_until_released

SECONDS = 60.0


def customer(message: Any) -> Any:
    return message.get("customer")


def put(bench: Bench, *messages: tuple[object, int]) -> None:
    """Send messages of these keys and numbers."""
    for key, number in messages:
        bench.put_message_of(number, "Test.Message", {"customer": key, "n": number})


class Recorder:
    """A handler that records its messages, and whether another one of the same key was handled at the same time."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, int]] = []
        self.together: list[Any] = []
        self._now: set[Any] = set()
        self._lock = threading.Lock()

    def __call__(self, message: Any, context: Any) -> None:
        key = message["customer"]
        with self._lock:
            if key in self._now:
                self.together.append(key)
            self._now.add(key)
            self.seen.append((key, message["n"]))
        # Lets other threads run.
        with context.connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        with self._lock:
            self._now.discard(key)

    def check(self, count: int) -> None:
        assert len(self.seen) == count
        assert self.together == []
        for key in {key for key, _ in self.seen}:
            own = [n for other, n in self.seen if other == key]
            assert own == sorted(own)


@pytest.mark.parametrize("model", ["adaptive", "fixed", "monitor"])
def test_messages_of_a_key_are_handled_one_at_a_time_in_order(bench: Bench, model: str) -> None:
    recorder = Recorder()
    handles("Test.Message", key=customer)(recorder)
    bench.configure()
    put(bench, *((f"c{number % 7}", number) for number in range(210)))
    bench.run(max_concurrency=8, model=model)
    recorder.check(210)


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "none"])
def test_all_modes_with_a_transaction_keep_the_order(bench: Bench, mode: str) -> None:
    recorder = Recorder()
    handles("Test.Message", key=customer)(recorder)
    bench.configure(TRANSACTION_MODE=mode, BATCH_SIZE="auto")
    put(bench, *((number % 3, number) for number in range(60)))
    bench.run(max_concurrency=4, model="fixed")
    recorder.check(60)


def test_async_handler_has_a_key(bench: Bench, calls: Calls) -> None:
    @handles("Test.Message", key=customer)
    async def handler(message: Any, context: Any) -> None:
        calls.add(message["n"])

    bench.configure()
    put(bench, *(("c", number) for number in range(20)))
    bench.run(max_concurrency=4, model="fixed")
    assert calls.seen == list(range(20))


def test_messages_of_other_keys_and_without_a_key_pass(bench: Bench, calls: Calls) -> None:
    if bench.database.vendor == "sqlite":
        pytest.skip("SQLite has one writer: one message is handled at a time")
    others = threading.Event()

    @handles("Test.Message", key=customer)
    def handler(message: Any, context: Any) -> None:
        if message["n"] == 1:
            assert others.wait(SECONDS)
        if calls.add(message["n"]) == 4:
            others.set()

    bench.configure()
    put(bench, ("a", 1), ("a", 2), ("b", 3), (None, 4), ("b", 5), (None, 6))
    bench.run(max_concurrency=2, model="fixed")
    assert calls.seen == [3, 4, 5, 6, 1, 2]


def test_many_messages_of_a_taken_key_delay_no_other(bench: Bench, calls: Calls) -> None:
    if bench.database.vendor == "sqlite":
        pytest.skip("SQLite has one writer: one message is handled at a time")
    other = threading.Event()

    @handles("Test.Message", key=customer)
    def handler(message: Any, context: Any) -> None:
        if message["n"] == 0:
            assert other.wait(SECONDS)
        if message["customer"] == "b":
            other.set()
        calls.add(message["n"])

    bench.configure()
    put(bench, *(("a", number) for number in range(500)), ("b", 500))
    bench.run(max_concurrency=2, model="fixed")
    assert calls.seen == [500, *range(500)]


def test_failed_attempt_keeps_its_place_and_a_given_up_message_frees_its_key(bench: Bench, calls: Calls) -> None:
    @handles("Test.Message", key=customer)
    def handler(message: Any, context: Any) -> None:
        calls.add((message["n"], context.attempt))
        if message["n"] == 1:
            raise LookupError("always")

    bench.configure(IMMEDIATE_RETRIES=2)
    put(bench, ("a", 1), ("a", 2))
    bench.run(max_concurrency=4, model="fixed")
    assert calls.seen == [(1, 1), (1, 2), (1, 3), (2, 1)]
    assert len(bench.rows("error")) == 1


def test_delayed_retry_lets_the_next_message_of_the_key_go_first(bench: Bench, calls: Calls) -> None:
    @handles("Test.Message", key=customer)
    def handler(message: Any, context: Any) -> None:
        calls.add(message["n"])
        if calls.seen == [1]:
            raise LookupError("once")

    bench.configure(DELAYED_RETRIES=1, DELAYED_RETRY_INCREASE=0)
    put(bench, ("a", 1), ("a", 2))
    bench.run(max_concurrency=1)
    assert calls.seen == [1, 2, 1]


def test_message_whose_transaction_is_lost_keeps_its_place(bench: Bench, calls: Calls) -> None:
    @handles("Test.Message", key=customer)
    def handler(message: Any, context: Any) -> None:
        if calls.add(message["n"]) == 1:
            connections[bench.database.alias].close()
            raise LookupError("and the connection is closed")

    bench.configure(IMMEDIATE_RETRIES=3)
    put(bench, ("a", 1), ("a", 2))
    bench.run(max_concurrency=4, model="fixed")
    assert calls.seen == [1, 1, 2]


def test_error_of_the_key_is_an_error_of_the_message(bench: Bench, calls: Calls) -> None:
    @handles("Test.Message", key=lambda message: message["nothing"])
    def handler(message: Any, context: Any) -> None:
        calls.add(message)

    bench.configure(IMMEDIATE_RETRIES=1)
    put(bench, ("a", 1))
    bench.run()
    assert calls.seen == []
    (headers,) = bench.headers("error")
    assert headers["NServiceBus.ExceptionInfo.ExceptionType"] == "KeyError"
    assert "raised by the key of handler" in headers["NServiceBus.ExceptionInfo.StackTrace"]


def test_error_about_a_key_does_not_show_the_body(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    @handles("Test.Message", key=lambda message: message)
    def handler(message: Any, context: Any) -> None:
        """Not called."""

    bench.configure()
    put(bench, ("a-secret", 1))
    bench.run()
    (headers,) = bench.headers("error")
    assert "is of the type dict: expected a str, int" in (headers["NServiceBus.ExceptionInfo.Message"] or "")
    assert "a-secret" not in f"{headers} {caplog.text}"


def test_key_that_exits_fails_its_message_only(bench: Bench, calls: Calls) -> None:
    handles("Test.Message", key=lambda message: sys.exit("out of the key") if message["n"] == 1 else "a")(
        lambda message, context: calls.add(message["n"])
    )
    put(bench, ("a", 1), ("a", 2))
    bench.run()
    assert calls.seen == [2]
    (headers,) = bench.headers("error")
    assert headers["NServiceBus.ExceptionInfo.Message"] == "out of the key"


def test_key_that_fails_only_ahead_of_the_receive_fails_the_message(postgresql_bench: Bench, calls: Calls) -> None:
    bench, computed = postgresql_bench, Calls()

    def key(message: Any) -> str:
        if computed.add(message["n"]) == 1:
            raise LookupError("not now")
        return "a"

    handles("Test.Message", key=key)(lambda message, context: calls.add(message["n"]))
    bench.configure(DELAYED_RETRIES=1, DELAYED_RETRY_INCREASE=0)
    put(bench, ("a", 1))
    bench.run()
    assert calls.seen == [1]
    assert bench.rows("error") == []


@pytest.mark.parametrize("key", [1.5, True, ["a"], ("a", 1)])
def test_key_of_another_type_goes_to_the_error_queue_at_once(bench: Bench, calls: Calls, key: object) -> None:
    handles("Test.Message", key=lambda message: key)(lambda message, context: calls.add(message))
    bench.configure(IMMEDIATE_RETRIES=5)
    put(bench, ("a", 1))
    bench.run()
    assert calls.seen == []
    (headers,) = bench.headers("error")
    assert "expected a str, int, UUID or bytes" in headers["NServiceBus.ExceptionInfo.Message"]


def test_number_and_uuid_are_the_same_key_as_their_text() -> None:
    handler = Handler("Test.Message", lambda message, context: None, None)
    one = uuid.UUID(int=1)
    for key, text in ((7, "7"), (one, str(one)), (b"7", "7"), ("Zoë", "Zoë")):
        assert key_bytes(key, handler) == key_bytes(text, handler)
    assert key_bytes(None, handler) is None
    assert lock_of_key("Sales", b"7") == lock_of_key("Sales", b"7") != lock_of_key("Billing", b"7")
    assert -(2**63) <= lock_of_key("Sales", b"7") < 2**63


def test_readers_of_other_types_are_not_asked_for_a_key(bench: Bench, calls: Calls) -> None:
    handles("Test.Message", key=customer)(lambda message, context: calls.add("keyed"))
    handles("Test.Other")(lambda message, context: calls.add("other"))
    bench.configure()
    put(bench, ("a", 1))
    bench.put_message_of(2, "Test.Other")
    bench.put_message_of(3, "Test.Unknown")
    bench.put("no json", b"", row_id="00000000-0000-0000-0000-000000000004")
    bench.run(max_concurrency=1)
    assert calls.seen == ["keyed", "other"]
    assert len(bench.rows("error")) == 2


def test_one_key_counts_for_all_handlers_of_a_message(bench: Bench, calls: Calls) -> None:
    handles("Test.Message", key=customer)(lambda message, context: calls.add("first"))
    handles("Test.Message")(lambda message, context: calls.add("second"))
    handles("Test.Message", "Test.Other", key=customer)(lambda message, context: calls.add("third"))
    bench.configure()
    put(bench, ("a", 1))
    bench.run()
    assert calls.seen == ["first", "second", "third"]


def test_two_keys_of_a_type_are_refused(bench: Bench) -> None:
    handles("Test.Message", key=customer)(lambda message, context: None)
    handles("Test.Message", key=lambda message: message["n"])(lambda message, context: None)
    bench.configure()
    with pytest.raises(ConfigurationError, match=r"different keys of 'Test\.Message': expected one key"):
        bench.run()


def test_message_of_two_types_with_different_keys_fails(bench: Bench, calls: Calls) -> None:
    handles("Test.Message", key=customer)(lambda message, context: calls.add("derived"))
    handles("Test.Base", key=lambda message: message["n"])(lambda message, context: calls.add("base"))
    bench.configure(IMMEDIATE_RETRIES=5)
    bench.put_message_of(1, "Test.Message;Test.Base", {"customer": "a", "n": 1})
    bench.run()
    assert calls.seen == []
    (headers,) = bench.headers("error")
    assert "different keys of one message" in headers["NServiceBus.ExceptionInfo.Message"]


@pytest.mark.parametrize(
    ("endpoint", "text"),
    [({"TRANSACTION_MODE": "none"}, "TRANSACTION_MODE of endpoint 'Sales' is 'none'"), ({"BATCH_SIZE": 50}, "BATCH_SIZE .* is 50")],
)
def test_settings_that_cannot_keep_the_order_are_refused(bench: Bench, endpoint: dict[str, Any], text: str) -> None:
    handles("Test.Message", key=customer)(lambda message, context: None)
    bench.configure(**endpoint)
    with pytest.raises(ConfigurationError, match=text):
        bench.run()


async def coroutine(message: Any) -> str:
    return "a"


def test_asynchronous_key_is_named_as_such() -> None:
    with pytest.raises(HandlerError, match=r"key=tests.receiving.test_keys.coroutine\): it is `async def`; expected a function"):
        handles("Test.Message", key=coroutine)


@pytest.mark.parametrize("key", ["customer_id", 7, coroutine, lambda: "a", lambda message, context: "a"])
def test_key_that_is_no_function_of_the_message_is_refused(key: Any) -> None:
    with pytest.raises(HandlerError, match="expected a function of the message"):
        handles("Test.Message", key=key)


def test_endpoint_without_keys_receives_as_before(bench: Bench) -> None:
    handles("Test.Message")(lambda message, context: None)
    bench.configure()
    endpoint = ReceivingEndpoint(get_settings(), "Sales")
    (queue,) = endpoint.receiving_queues(None)
    assert endpoint.processor_config(queue).keys is None
    assert type(endpoint.handlers).__name__ == "HandlerTable"


def test_endpoint_in_memory_handles_keyed_messages(bench: Bench, calls: Calls) -> None:
    handles("Test.Message", key=customer)(lambda message, context: calls.add(message["n"]))
    bench.configure()
    with InMemoryEndpoint("Sales") as sales:
        sales.handle("Test.Message", {"customer": "a", "n": 1})
        with pytest.raises(HandlerError, match="expected a str, int, UUID or bytes"):
            sales.handle("Test.Message", {"customer": 1.5, "n": 2})
    assert calls.seen == [1]


def test_eager_send_handles_keyed_messages(bench: Bench, calls: Calls) -> None:
    handles("Test.Message", key=customer)(lambda message, context: calls.add(message["n"]))
    bench.database.configure(ENDPOINTS={"Sales": {}}, ROUTES={"Test.*": "Sales"}, EAGER=True)
    bench.install()
    send("Test.Message", {"customer": "a", "n": 1})
    assert calls.seen == [1]


def test_idle_worker_waits_for_a_key_of_another_process_without_spinning(bench: Bench, calls: Calls) -> None:
    """Another worker holds the key, in another thread of this process; the two share only the database."""
    if bench.database.vendor == "sqlite":
        pytest.skip("SQLite has one writer: the second worker would wait for the first")
    taken, release = threading.Event(), threading.Event()

    @handles("Test.Message", key=customer)
    def handler(message: Any, context: Any) -> None:
        calls.add(message["n"])
        if message["n"] == 1:
            taken.set()
            assert release.wait(SECONDS)

    bench.configure()
    put(bench, ("a", 1), ("a", 2))
    with Running(bench, max_concurrency=1, model="fixed"):
        assert taken.wait(SECONDS)
        put(bench, ("b", 3))
        with Running(bench, max_concurrency=1, model="fixed"):
            poll_until(lambda: calls.seen == [1, 3], what="the other key is handled")
            release.set()
            poll_until(lambda: calls.seen == [1, 3, 2], what="the next message of the key is handled")


KEYS, ROUNDS, WORKERS, LONGEST = 5, 10, 3, 15


def test_thirty_kills_keep_each_key_in_order(bench: Bench) -> None:
    """Each worker kills itself in a handler, while two more handlers run."""
    chosen = random.Random()
    bench.configure(HANDLERS=[keyed_app.MODULE])
    with bench.database.connection.cursor() as cursor:
        cursor.execute("CREATE TABLE keyed (customer integer NOT NULL, number integer NOT NULL, place integer NOT NULL)")
    # More than the workers can handle before they die.
    numbers = range(ROUNDS * WORKERS * LONGEST)
    for number in numbers:
        bench.put_message_of(number, "Keyed.Work", {"key": number % KEYS, "number": number})
    options = {"max_concurrency": 3, "model": "fixed"}
    with ForkedProcesses(bench) as forked:
        for _ in range(ROUNDS):
            workers = [forked.begin(keyed_app.RECEIVE_SOME, chosen.randint(1, LONGEST), options) for _ in range(WORKERS)]
            assert [forked.exit_code(worker) for worker in workers] == [-signal.SIGKILL] * WORKERS
        wait_until_released(bench)
        assert forked.run(RECEIVE, {**options, "until_empty": True}) == 0
    with bench.database.connection.cursor() as cursor:
        cursor.execute("SELECT customer, number, place FROM keyed ORDER BY customer, number")
        found = [tuple(map(int, each)) for each in cursor.fetchall()]
    assert found == [(key, number, place) for key in range(KEYS) for place, number in enumerate(numbers[key::KEYS])]
    assert bench.rows("Sales") == bench.rows("error") == []
