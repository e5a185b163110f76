"""The one connection on which a worker listens: unavailable or silent servers, poolers, triggers created and dropped."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connections
from psycopg import ConnectionInfo

from sqlqueue_app.dialects.schema import wake_up_channel
from sqlqueue_app.messages.errors import ConnectionLost
from sqlqueue_app.receiving.stopping import StopSignal
from sqlqueue_app.receiving.waiting import WakeUp, WakeUpListener, listening
from sqlqueue_app.tables import announcements
from sqlqueue_app.tables.announcements import Interrupted, ListeningConnection
from tests.receiving.wake_ups import NEVER, Line, by_insert, by_own_send, prepare
from tests.support.bench import Bench
from tests.support.postgresql import ThrowAwayServer
from tests.support.proxy import Proxy
from tests.support.tables import execute
from tests.support.waiting import poll_until


@pytest.fixture
def bench(postgresql_bench: Bench) -> Bench:
    return postgresql_bench


@pytest.fixture
def listened(bench: Bench) -> Iterator[tuple[WakeUp, StopSignal]]:
    prepare(bench)
    stop = StopSignal()
    yield WakeUp("Sales", bench.table("Sales").qualified, stop), stop
    stop.set()


def test_listener_waits_for_an_unavailable_server(
    bench: Bench, postgresql_server: ThrowAwayServer, listened: tuple[WakeUp, StopSignal], events: Callable[[], list[str]]
) -> None:
    wake_up, stop = listened
    connections.close_all()
    postgresql_server.stop()
    with listening(bench.database.alias, [wake_up, None], stop):
        try:
            poll_until(lambda: "wake_up_lost" in events())
        finally:
            postgresql_server.start()
        wake_up.wait(NEVER)  # each thread polls once after the listener has started
        poll_until(lambda: "wake_up_on" in events(), 60)
        by_own_send(bench, 1)
        wake_up.wait(NEVER)


def test_listener_detects_created_and_dropped_triggers(
    bench: Bench, listened: tuple[WakeUp, StopSignal], events: Callable[[], list[str]]
) -> None:
    wake_up, stop = listened
    execute(bench.database, "DROP FUNCTION sqlqueue_wake_up() CASCADE")
    with WakeUpListener(bench.database.alias, [wake_up], stop, find_seconds=0.05).running():
        poll_until(lambda: "wake_up_without_trigger" in events())
        call_command("sqlqueue_install", "--wake-up", verbosity=0)
        poll_until(lambda: wake_up.push_enabled)
        wake_up.wait(0.0)  # the wake-up that came with it
        resting = threading.Thread(target=lambda: wake_up.idle_wait(NEVER))
        resting.start()
        poll_until(lambda: wake_up.waiting == 1)
        execute(bench.database, 'DROP TRIGGER sqlqueue_wake_up ON "Sales"')
        resting.join(60)  # it must poll again
        assert not resting.is_alive()
        assert not wake_up.push_enabled
    assert events().count("wake_up_without_trigger") == 2


def test_nothing_rests_behind_a_pooler(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pooler gives its clients session numbers of its own."""
    prepare(bench)

    table = bench.table("Sales").qualified
    with Line(bench, "Sales") as line:
        assert line.connection.channels_with_trigger({table: wake_up_channel(table)}) == {wake_up_channel(table)}
    monkeypatch.setattr(ConnectionInfo, "backend_pid", 1)
    with Line(bench, "Sales") as line:
        assert line.connection.channels_with_trigger({table: wake_up_channel(table)}) == frozenset()


def test_stop_between_an_answer_and_its_use_is_harmless(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(bench)
    table = bench.table("Sales").qualified
    with Line(bench, "Sales") as line:
        answer = line.connection._fetch

        def interrupted(*arguments: Any) -> list[tuple[Any, ...]]:
            found = answer(*arguments)
            line.connection._connection.pgconn.finish()
            return found

        monkeypatch.setattr(line.connection, "_fetch", interrupted)
        assert line.connection.channels_with_trigger({table: wake_up_channel(table)}) == {wake_up_channel(table)}


def test_many_announcements_lose_no_answer(bench: Bench) -> None:
    """Notifications arrive between the answers to the listener's own query."""
    prepare(bench)
    table = bench.table("Sales").qualified
    with Line(bench, "Sales") as line:
        for number in range(20):
            by_insert(bench, number)
            assert line.connection.channels_with_trigger({table: wake_up_channel(table)}) == {wake_up_channel(table)}
            assert line.wait() == {"Sales"}


@pytest.fixture
def silent_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        text = f"host=127.0.0.1 port={server.getsockname()[1]} sslmode=disable gssencmode=disable"
        monkeypatch.setattr(announcements, "_conninfo", lambda alias: (text, 0.05))
        yield


def test_unresponsive_server_is_given_up(bench: Bench, silent_server: None) -> None:
    line = ListeningConnection(bench.database.alias)
    with pytest.raises(ConnectionLost, match="does not answer"):
        line.open(["sqlqueue_x"])
    line.dispose()


def test_stop_does_not_wait_for_an_unresponsive_server(bench: Bench, silent_server: None, monkeypatch: pytest.MonkeyPatch) -> None:
    text, _ = announcements._conninfo(bench.database.alias)
    monkeypatch.setattr(announcements, "_conninfo", lambda alias: (text, NEVER))
    line = ListeningConnection(bench.database.alias)
    interrupter = threading.Timer(0.05, line.interrupt)
    interrupter.start()
    with pytest.raises(Interrupted):
        line.open(["sqlqueue_x"])
    interrupter.join()
    line.dispose()
    line.interrupt()  # late, and harmless


@pytest.fixture
def proxy(postgresql_server: ThrowAwayServer) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", postgresql_server.port) as started:
        yield started


@pytest.fixture
def stalled(
    bench: Bench, postgresql_server: ThrowAwayServer, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ListeningConnection]:
    """A listening connection to a server that has stopped answering."""
    name = connections[bench.database.alias].settings_dict["NAME"]
    url = postgresql_server.url(name).replace(f":{postgresql_server.port}/", f":{proxy.port}/")
    monkeypatch.setattr(announcements, "_conninfo", lambda alias: (url, NEVER))
    line = ListeningConnection(bench.database.alias)
    line.open(["sqlqueue_x"])
    proxy.stall()
    yield line
    line.dispose()


def test_server_that_stops_answering_is_given_up(stalled: ListeningConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcements, "ANSWER_SECONDS", 0.05)
    with pytest.raises(ConnectionLost, match=r"does not answer within 0\.05 s"):
        stalled.channels_with_trigger({})


def test_stop_does_not_wait_for_a_server_that_stops_answering(
    stalled: ListeningConnection, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """psycopg ends a statement by a request on a second connection, and waits for its effect."""
    monkeypatch.setattr(announcements, "ANSWER_SECONDS", NEVER)
    interrupter = threading.Timer(0.05, stalled.interrupt)
    interrupter.start()
    with pytest.raises(Interrupted):
        stalled.channels_with_trigger({})
    assert not proxy.has_waiting_client()
    interrupter.join()
    with pytest.raises(Interrupted):
        stalled.wait(NEVER)


def test_missing_connection_parameters_count_as_a_lost_connection(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> dict[str, Any]:
        raise RuntimeError("no token")

    monkeypatch.setattr(connections[bench.database.alias], "get_connection_params", refuse)
    line = ListeningConnection(bench.database.alias)
    with pytest.raises(ConnectionLost, match="no token"):
        line.open(["sqlqueue_x"])
    line.dispose()


class ManualClock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def is_listening(bench: Bench) -> bool:
    """Return whether a session requests announcements."""
    where = "locktype = 'advisory' AND mode = 'ShareLock' AND pid <> pg_backend_pid()"
    return execute(bench.database, f"SELECT count(*) > 0 FROM pg_locks WHERE {where}") == [(True,)]


def test_bursts_are_not_announced_until_polls_find_nothing(bench: Bench) -> None:
    prepare(bench)
    stop, clock = StopSignal(), ManualClock()
    wake_up = WakeUp("Sales", bench.table("Sales").qualified, stop, clock=clock)
    # Its clock stands still, so all announcements seem to come at once.
    with WakeUpListener(bench.database.alias, [wake_up], stop, clock=lambda: 0.0).running():
        poll_until(lambda: wake_up.push_enabled)
        for number in range(2000):
            by_own_send(bench, number)
            if not wake_up.push_enabled:
                break
        assert not wake_up.push_enabled
        poll_until(lambda: not is_listening(bench))

        # A poll may find nothing between two messages of a burst: only two empty polls with a pause between them count.
        wake_up.polled(False)
        assert not wake_up.is_quiet
        clock.now = 0.04
        wake_up.polled(False)
        wake_up.polled(True)
        clock.now = 1.0
        wake_up.polled(False)
        assert not wake_up.is_quiet

        def is_announced_again() -> bool:
            # A worker keeps polling: the listener may take up its new state after the first of these.
            clock.now += 0.05
            wake_up.polled(False)
            return wake_up.push_enabled

        poll_until(is_announced_again)
        assert is_listening(bench)


def test_programming_error_stops_the_worker(
    bench: Bench, listened: tuple[WakeUp, StopSignal], monkeypatch: pytest.MonkeyPatch, events: Callable[[], list[str]]
) -> None:
    wake_up, stop = listened
    monkeypatch.setattr(ListeningConnection, "open", lambda *_: 1 / 0)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    with listening(bench.database.alias, [wake_up], stop):
        assert stop.wait(60)
    assert "thread_died" in events()
