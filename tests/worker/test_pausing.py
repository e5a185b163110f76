"""A paused endpoint: messages in progress are finished, the rest waits, replies still arrive."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections
from django.utils import timezone

from sqlqueue_app import handles, pause, resume, send
from sqlqueue_app.management.output import status_document, status_lines
from sqlqueue_app.messages.errors import ConfigurationError
from sqlqueue_app.models import Instance
from sqlqueue_app.receiving import instances
from sqlqueue_app.receiving.concurrency import AdaptiveReceiver, FixedReceiver, MonitorReceiver
from sqlqueue_app.receiving.instances import Heartbeat
from sqlqueue_app.receiving.receiver import Receiver, ReceiverOptions
from sqlqueue_app.receiving.stopping import StopSignal
from sqlqueue_app.receiving.waiting import PauseGate
from sqlqueue_app.status.overview import read_status
from tests.support.bench import Bench, Calls, Running
from tests.support.pages import OVERVIEW, Markup, client_of
from tests.support.receivers import ENDLESS, Handlers, Script, more, ramp_up, running
from tests.support.waiting import done_within, join_all, poll_until
from tests.support.worker_processes import address
from tests.worker.instances import bench_threads, lease, nothing_happens, states

RECEIVERS = [AdaptiveReceiver, FixedReceiver, MonitorReceiver]
MODELS = ["adaptive", "fixed", "monitor"]


def counters(script: Script) -> tuple[int, int, int]:
    return script.messages, script.empty_polls, len(script.peeks)


@pytest.mark.parametrize("kind", RECEIVERS)
def test_message_in_progress_is_finished_and_no_other_is_received(kind: type[Receiver]) -> None:
    handlers = Handlers()
    with running(kind, Script(ENDLESS, work=handlers.work), maximum=3, **more(kind)) as (receiver, _):
        try:
            ramp_up(handlers, receiver, 3)
            finished = handlers.finished
            receiver.pause()
            assert receiver.gate.is_closed
            assert (handlers.busy, handlers.finished) == (3, finished), "nothing is interrupted"
            handlers.finish(3)
            poll_until(lambda: handlers.finished == finished + 3 and handlers.busy == 0, what="all three messages are finished")
            assert nothing_happens(lambda: (handlers.busy, handlers.finished))
            receiver.resume()
            assert not receiver.gate.is_closed
            ramp_up(handlers, receiver, 3)
        finally:
            handlers.finish_all()


@pytest.mark.parametrize("kind", RECEIVERS)
def test_paused_receiver_does_not_poll_and_misses_nothing_afterwards(kind: type[Receiver]) -> None:
    script = Script()
    with running(kind, script, maximum=4, **more(kind)) as (receiver, _):
        receiver.pause()
        threads = 4 if kind is FixedReceiver else 1  # for the monitor model the monitor itself
        poll_until(lambda: receiver.gate.waiting == threads, what="every thread waits during the pause")
        assert receiver.live_threads == 0
        script.put(20)
        assert nothing_happens(lambda: counters(script))
        receiver.resume()
        poll_until(lambda: script.messages == 0, what="all messages are received")


@pytest.mark.parametrize("kind", RECEIVERS)
def test_stop_ends_a_paused_receiver(kind: type[Receiver]) -> None:
    stop = StopSignal()
    options = ReceiverOptions(maximum=2, new_poller=Script(5), stop=stop, name="sqlqueue-test")
    receiver: Receiver = kind("Sales", options, **more(kind))
    receiver.pause()
    receiver.start()
    stop.set()
    done_within(receiver.join, what="the receiver ends")
    assert receiver.live_threads == 0


@pytest.mark.parametrize("kind", RECEIVERS)
def test_number_of_threads_can_change_during_a_pause(kind: type[Receiver]) -> None:
    handlers = Handlers()
    with running(kind, Script(ENDLESS, work=handlers.work), maximum=4, **more(kind)) as (receiver, _):
        try:
            receiver.pause()
            receiver.change_concurrency(2)
            receiver.resume()
            handlers.finish(20)
            ramp_up(handlers, receiver, 2)
        finally:
            handlers.finish_all()


def test_gate_blocks_all_threads_and_reports_whether_it_moved() -> None:
    gate = PauseGate(StopSignal())
    assert (gate.close(), gate.close(), gate.is_closed) == (True, False, True)
    threads = [threading.Thread(target=gate.wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert all(thread.is_alive() for thread in threads)
    assert (gate.open(), gate.open(), gate.is_closed) == (True, False, False)
    join_all(threads)


def test_gate_of_a_stopping_worker_is_open() -> None:
    stop = StopSignal()
    gate = PauseGate(stop)
    gate.close()
    stop.set()
    done_within(gate.wait, what="the wait at the gate")
    assert not gate.is_closed


# --- on databases --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_paused_endpoint_stops_receiving_except_replies(
    bench: Bench, calls: Calls, counting: object, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    monkeypatch.setattr(instances, "HEARTBEAT_SECONDS", 0.1)
    bench.configure(
        CALLBACKS=True, INSTANCE="here", CALLBACK_QUEUES=1, SATELLITES={"Sales.Priority": {"MAX_CONCURRENCY": 1}}, PEEK_DELAY=0.1
    )
    with Running(bench, model=model):
        poll_until(lambda: states(bench) == ["alive"], what="a worker")
        assert pause("Sales") == 1
        poll_until(lambda: states(bench) == ["paused"], what="the worker has paused")
        # A thread that was just receiving may have passed the gate before it closed.
        poll_until(lambda: bench_threads(bench).keys() <= {"Sales.here"}, what="the threads wait during the pause")
        for queue in ("Sales", "Sales.Priority", "Sales.here"):
            send("Test.Message", {"to": queue}, to=address(bench, queue))
        poll_until(lambda: calls.seen == [{"to": "Sales.here"}], what="the reply")
        assert nothing_happens(lambda: (len(calls.seen), len(bench.rows("Sales")), len(bench.rows("Sales.Priority"))))
        assert [len(bench.rows(queue)) for queue in ("Sales", "Sales.Priority")] == [1, 1]
        assert resume("Sales") == 1
        poll_until(lambda: len(calls.seen) == 3, what="the others")
        poll_until(lambda: states(bench) == ["alive"], what="the worker reports that it receives")


def test_status_and_admin_show_requested_and_actual_state(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="sqlqueue")
    held = lease(bench)
    with running(FixedReceiver, Script(), maximum=2) as (main, _), running(FixedReceiver, Script(), maximum=1) as (callback, _):
        beats = Heartbeat(held, [main, callback], [main], unpaused=[callback])
        beats.beat()
        for command, requested, followed in ((pause, "pausing", "paused"), (resume, "resuming", "alive")):
            for _ in range(2):
                assert command("Sales") == 1
            for state in (requested, followed):
                assert states(bench) == [state]
                assert any(f" {state} " in line for line in status_lines(read_status()))
                page = Markup(client_of("superuser").get("/admin/sqlqueue_app/instance/").content.decode()).text()
                assert state.capitalize() in page
                assert state.capitalize() in Markup(client_of("superuser").get(OVERVIEW).content.decode()).text()
                beats.beat()
            assert main.gate.is_closed is (followed == "paused")
            assert not callback.gate.is_closed
    events = [record.event for record in caplog.records if getattr(record, "event", "").startswith("receiving_")]  # type: ignore[attr-defined]
    assert events == ["receiving_paused", "receiving_resumed"]


def test_process_that_takes_over_a_paused_row_is_not_paused(bench: Bench) -> None:
    bench.configure(CALLBACKS=True, INSTANCE="here", CALLBACK_QUEUES=1)
    dead = lease(bench)
    pause("Sales")
    dead.write_paused(True)
    Instance.objects.using(bench.database.alias).update(heartbeat_at=timezone.now() - timedelta(minutes=2), process_identity=None)
    assert states(bench) == ["dead"]
    lease(bench)
    assert states(bench) == ["alive"]


def test_paused_process_that_has_lost_its_row_stays_paused(
    bench: Bench, calls: Calls, counting: object, monkeypatch: pytest.MonkeyPatch, events: Callable[[], list[str]]
) -> None:
    monkeypatch.setattr(instances, "HEARTBEAT_SECONDS", 0.1)
    with Running(bench):
        poll_until(lambda: states(bench) == ["alive"], what="a worker")
        pause("Sales")
        poll_until(lambda: states(bench) == ["paused"], what="the worker has paused")
        # As another worker does if this process is silent for INSTANCE_EXPIRY.
        Instance.objects.using(bench.database.alias).all().delete()
        poll_until(lambda: states(bench) == ["paused"], what="the worker is registered again")
        send("Test.Message", {}, to=address(bench, "Sales"))
        assert nothing_happens(lambda: (len(calls.seen), states(bench)))
        assert resume("Sales") == 1
        poll_until(lambda: len(calls.seen) == 1, what="the message")
    assert events().count("receiving_paused") == events().count("receiving_resumed") == 1


def test_unregistered_process_cannot_be_paused(bench: Bench) -> None:
    for command in (pause, resume):
        with pytest.raises(ConfigurationError, match="no process of endpoint 'Sales', process 1 is registered"):
            command("Sales", pid=1)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"pid": "x"}, "pid is 'x': expected the id of a process"),
        ({"pid": 10**30}, "expected the id of a process"),
        ({"pid": True}, "pid is True"),
        ({"by": 5}, "by is 5: expected the name of an operator"),
        ({"host": 5}, "host is 5: expected the name of a machine"),
        ({"endpoint": 5}, "endpoint is 5: expected the name of an endpoint"),
    ],
)
def test_wrong_argument_is_refused(bench: Bench, arguments: dict[str, Any], error: str) -> None:
    for command in (pause, resume):
        with pytest.raises(ConfigurationError, match=error):
            command(**{"endpoint": "Sales", **arguments})


def test_worker_until_empty_waits_for_the_end_of_its_pause(
    postgresql_bench: Bench, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Not on SQLite: while a handler runs, no other process can write, so that no command reaches the worker.
    bench = postgresql_bench
    monkeypatch.setattr(instances, "HEARTBEAT_SECONDS", 0.1)
    bench.configure(MAX_CONCURRENCY=1)
    handling, go_on = threading.Event(), threading.Event()

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        if calls.add(message) == 1:
            handling.set()
            assert go_on.wait(60)

    def resume_later() -> None:
        try:
            assert handling.wait(60)
            pause("Sales")
            poll_until(lambda: states(bench) == ["paused"], what="the worker pauses while it handles a message")
            go_on.set()
            poll_until(lambda: not bench_threads(bench), what="its thread waits during the pause")
            assert len(bench.rows("Sales")) == len(calls.seen) == 1
            resume("Sales")
        finally:
            connections.close_all()

    send("Test.Message", {"n": 1}, to=address(bench, "Sales"))
    send("Test.Message", {"n": 2}, to=address(bench, "Sales"))
    operator = threading.Thread(target=resume_later)
    operator.start()
    received = bench.run()
    join_all([operator])
    assert received == 2


def test_heartbeat_reports_busy_threads(postgresql_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    # On SQLite no heartbeat is written while a handler runs.
    bench = postgresql_bench
    monkeypatch.setattr(instances, "HEARTBEAT_SECONDS", 0.1)
    bench.configure(MAX_CONCURRENCY=3, CONCURRENCY_MODEL="fixed")
    go_on = threading.Event()

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        assert go_on.wait(60)

    def busy_threads() -> list[Any]:
        return [each["busy"] for each in status_document(read_status())["instances"]]

    for n in range(2):
        send("Test.Message", {"n": n}, to=address(bench, "Sales"))
    with Running(bench):
        try:
            poll_until(lambda: busy_threads() == [{"Sales": 2}], what="two busy threads")
            (line,) = [line.split() for line in status_lines(read_status()) if " alive " in line]
            assert line[-5:-2] == ["3", "2", "3"], "threads, busy, at once"
        finally:
            go_on.set()
        poll_until(lambda: busy_threads() == [{"Sales": 0}], what="no thread is busy")
