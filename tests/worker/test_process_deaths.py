"""Messages that kill their process: real processes, real crashes."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from django.core.management import call_command

from sqlqueue_app import send, send_many
from sqlqueue_app.models import Instance
from sqlqueue_app.receiving.in_flight import InFlightMemory
from sqlqueue_app.receiving.stopping import StopSignal
from sqlqueue_app.worker.supervisor import SUPERVISOR_VARIABLE, CrashCounter, SupervisedProcess, Supervisor, environment_of_child
from tests.support.bench import Bench, Calls
from tests.support.waiting import join_all, poll_until
from tests.support.worker_app import lines
from tests.support.worker_processes import address, handled, prepare, wait_for_event, worker_process

PROCESS_DIED = "sqlqueue_app.messages.errors.ProcessDied"


def supervisor(bench: Bench, stop: StopSignal, *arguments: str, processes: int = 1) -> Supervisor:
    """A supervisor with short pauses between restarts."""
    command = [sys.executable, "-W", "error", "-m", "django", "run_sqlqueue_worker", *arguments]
    return Supervisor(command, processes, stop, environment=bench.database.child_environment(), restart_seconds=0.01)


def send_deadly(bench: Bench, directory: Path, way: str, *, wait_for: int = 0) -> Path:
    """Send a message whose handler ends the process; returns the file that has a line for each try."""
    tries = directory / "tries"
    body = {"tries": str(tries), "way": way, "beside": str(directory / "beside"), "wait_for": wait_for}
    send("Worker.Die", body, to=address(bench, "Sales"), headers={"Shop.Trace": "kept"})
    return tries


def reason(bench: Bench) -> str:
    (headers,) = bench.headers("error")
    found = headers["NServiceBus.ExceptionInfo.Message"]
    assert headers["NServiceBus.EnclosedMessageTypes"] == "Worker.Die"
    assert headers["NServiceBus.ExceptionInfo.ExceptionType"] == PROCESS_DIED
    assert headers["NServiceBus.ExceptionInfo.StackTrace"].startswith(f"{PROCESS_DIED}: {found}\n")
    assert headers["NServiceBus.FailedQ"] == address(bench, "Sales")
    assert headers["NServiceBus.ProcessingEndpoint"] == "Sales"
    assert headers["NServiceBus.TimeOfFailure"]
    assert headers["Shop.Trace"] == "kept"
    return str(found)


def test_deadly_message_moves_after_three_crashes_and_others_are_handled(postgresql_bench: Bench, tmp_path: Path) -> None:
    """Runs the command itself, with its pauses of 1, 2 and 4 seconds; the tests below have shorter ones, on every database."""
    bench = postgresql_bench
    prepare(bench)
    send_many("Worker.Count", [{"number": number} for number in range(20)], to=address(bench, "Sales"))
    tries = send_deadly(bench, tmp_path, "SIGKILL")
    send_many("Worker.Count", [{"number": number} for number in range(20, 40)], to=address(bench, "Sales"))
    with worker_process(bench, "--processes", "1", "--until-empty", "--log-format", "json") as process:
        _, found = process.communicate(timeout=120)
        assert process.returncode == 0, found
    assert reason(bench) == "the process died 3 times while it handled this message, the last time by SIGKILL"
    assert lines(str(tries)) == 3
    assert [number for number, _ in handled(bench)] == list(range(40))
    assert bench.rows("Sales") == []
    events = [json.loads(line) for line in found.splitlines()]
    deaths = [event["message"] for event in events if event.get("event") == "process_died"]
    assert [f"(deaths with it: {count})" in text for count, text in enumerate(deaths, 1)] == [True] * 3
    assert "died by SIGKILL" in deaths[0]
    assert [event["message"] for event in events if event.get("event") == "moved_to_error_queue"]


@pytest.mark.parametrize(("way", "found"), [("SIGSEGV", "SIGSEGV"), ("0", "exit code 0"), ("1", "exit code 1")])
def test_every_kind_of_process_exit_counts(bench: Bench, tmp_path: Path, way: str, found: str) -> None:
    prepare(bench, MAX_CONCURRENCY=1)
    tries = send_deadly(bench, tmp_path, way)
    send("Worker.Count", {"number": 1}, to=address(bench, "Sales"))
    assert supervisor(bench, StopSignal(), "--until-empty").run() == 0
    assert reason(bench) == f"the process died 3 times while it handled this message, the last time by {found}"
    assert lines(str(tries)) == 3
    assert [number for number, _ in handled(bench)] == [1]


def test_crashes_of_several_processes_are_counted_together(bench: Bench, tmp_path: Path) -> None:
    prepare(bench)
    send_many("Worker.Count", [{"number": number} for number in range(100)], to=address(bench, "Sales"))
    tries = send_deadly(bench, tmp_path, "SIGKILL")
    send_many("Worker.Count", [{"number": number} for number in range(100, 200)], to=address(bench, "Sales"))
    assert supervisor(bench, StopSignal(), "--until-empty", processes=2).run() == 0
    assert lines(str(tries)) == 3
    assert reason(bench)
    assert [number for number, _ in handled(bench)] == list(range(200))


def test_two_deadly_messages_of_a_batch_crash_three_times_each(
    bench: Bench, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    prepare(bench, BATCH_SIZE=20, MAX_CONCURRENCY=1)
    tries = []
    for name, numbers in (("first", (1, 2)), ("second", (3, 4, 5))):
        (tmp_path / name).mkdir()
        send_many("Worker.Count", [{"number": number} for number in numbers], to=address(bench, "Sales"))
        tries.append(send_deadly(bench, tmp_path / name, "SIGKILL"))
    send("Worker.Count", {"number": 6}, to=address(bench, "Sales"))
    assert supervisor(bench, StopSignal(), "--until-empty").run() == 0
    assert [lines(str(path)) for path in tries] == [3, 3]
    assert [headers["NServiceBus.ExceptionInfo.ExceptionType"] for headers in bench.headers("error")] == [PROCESS_DIED] * 2
    assert [number for number, _ in handled(bench)] == [1, 2, 3, 4, 5, 6]
    # Of all rows of the transaction only the current one is blamed.
    deaths = [record.getMessage() for record in caplog.records if getattr(record, "event", "") == "process_died"]
    assert [text.count("(deaths with it:") for text in deaths] == [1] * 6


def test_messages_beside_the_deadly_one_are_not_blamed(postgresql_bench: Bench, tmp_path: Path) -> None:
    bench = postgresql_bench
    prepare(bench, MAX_CONCURRENCY=4, CONCURRENCY_MODEL="fixed")
    tries = send_deadly(bench, tmp_path, "SIGKILL", wait_for=3)
    beside = tmp_path / "beside"
    for number in range(3):
        send("Worker.Slow", {"number": number, "tries": str(tmp_path / f"slow-{number}")}, to=address(bench, "Sales"))
    # The first crash comes when all three are in their handlers.
    stop = StopSignal()
    thread = threading.Thread(target=supervisor(bench, stop, "--until-empty").run)
    thread.start()
    try:
        poll_until(lambda: len(list(tmp_path.glob("slow-*"))) == 3, deadline=60, what="all are being handled")
        beside.write_text("1\n2\n3\n")
        join_all([thread], 120)
    finally:
        stop.set()
        join_all([thread])
    assert reason(bench)
    assert lines(str(tries)) == 3
    assert [number for number, _ in handled(bench)] == [0, 1, 2]


def test_intended_exits_are_no_crashes(bench: Bench, tmp_path: Path) -> None:
    prepare(bench)
    released, tries = tmp_path / "released", tmp_path / "tries"
    send("Worker.Hang", {"number": 1, "released": str(released), "tries": str(tries)}, to=address(bench, "Sales"))
    stop = StopSignal()
    thread = threading.Thread(target=supervisor(bench, stop).run)
    thread.start()
    try:
        for number in range(1, 5):
            poll_until(lambda number=number: lines(str(tries)) == number, deadline=60, what=f"try {number} has begun")  # type: ignore[misc]
            process = int(tries.read_text().split()[-1])
            # Two different signals, because two equal ones that arrive together count as one.
            os.kill(process, signal.SIGTERM)
            os.kill(process, signal.SIGINT)
        poll_until(lambda: lines(str(tries)) == 5, deadline=60, what="one more try than deaths are allowed")
        released.touch()
        poll_until(lambda: len(handled(bench)) == 1, deadline=60, what="the message is handled")
    finally:
        stop.set()
        join_all([thread])
    assert bench.rows("error") == bench.rows("Sales") == []


def test_callback_queues_of_killed_processes_block_no_other(bench: Bench) -> None:
    """Each queue is held for 40 seconds; a process without a free queue used to end the supervisor, and with it all others."""
    prepare(bench, CALLBACKS=True, CALLBACK_QUEUES=1, INSTANCE="here")
    held = Instance.objects.using(bench.database.alias)

    def new_ones() -> list[int]:
        return [pid for pid in held.order_by("pk").values_list("pid", flat=True) if pid not in seen]

    seen: set[int] = set()
    with worker_process(bench, "--processes", "2") as process:
        for started in (2, 1, 1, 1, 1):
            found = poll_until(
                lambda started=started: found if len(found := new_ones()) >= started else [],  # type: ignore[misc]
                deadline=120,
                what="two processes run beside those killed",
            )
            queues = list(held.values_list("callback_queue", flat=True))
            assert len(queues) == len(set(queues)), "no two processes have one queue"
            assert all(name is not None and name.startswith("Sales.here") for name in queues)
            seen.update(found)
            if len(seen) < 6:
                os.kill(found[-1], signal.SIGKILL)
        send("Worker.Count", {"number": 1}, to=address(bench, "Sales"))
        poll_until(lambda: len(handled(bench)) == 1, what="the message is handled")
        assert process.poll() is None


def test_signal_to_the_whole_service_is_a_single_stop(bench: Bench, tmp_path: Path) -> None:
    prepare(bench)
    released, tries = tmp_path / "released", tmp_path / "tries"
    send("Worker.Hang", {"number": 1, "released": str(released), "tries": str(tries)}, to=address(bench, "Sales"))
    with worker_process(bench, "--processes", "1", "--log-format", "json") as process:
        poll_until(lambda: lines(str(tries)) == 1, deadline=60, what="the message is being handled")
        for number in (process.pid, int(tries.read_text())):
            os.kill(number, signal.SIGTERM)
        wait_for_event(process, "worker_draining")
        released.touch()
        assert process.wait(60) == 0
    assert [number for number, _ in handled(bench)] == [1]


def test_programs_started_by_a_handler_do_not_belong_to_the_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = InFlightMemory.create(1)
    reading, writing = os.pipe()
    for descriptor in (reading, memory.descriptor):
        os.set_inheritable(descriptor, True)
    for name, value in environment_of_child(reading, memory.descriptor, 0).items():
        monkeypatch.setenv(name, value)
    try:
        assert SupervisedProcess.found() is not None
        assert SUPERVISOR_VARIABLE not in os.environ
        assert not os.get_inheritable(reading)
        assert not os.get_inheritable(memory.descriptor)
        assert SupervisedProcess.found() is None
    finally:
        memory.close()
        os.close(reading)
        os.close(writing)


def test_call_command_starts_no_other_process(bench: Bench, calls: Calls, counting: Callable[..., None]) -> None:
    bench.put_message("Test.Message", {"a": 1})
    call_command("run_sqlqueue_worker", "--until-empty", "--log-level", "error")
    assert calls.seen == [{"a": 1}]


def test_failed_start_of_a_process_is_retried(events: Callable[[], list[str]]) -> None:
    stop = StopSignal()
    codes: list[int] = []
    supervised = Supervisor(["/no/such/program"], 1, stop, environment={}, restart_seconds=0.01)
    thread = threading.Thread(target=lambda: codes.append(supervised.run()))
    thread.start()
    try:
        poll_until(lambda: events().count("process_not_started") >= 2, what="another attempt to start")
    finally:
        stop.set()
        join_all([thread])
    assert codes == [0]


def test_restart_pause_grows_and_resets_after_a_long_life(caplog: pytest.LogCaptureFixture) -> None:
    times = iter([0.0, 1.0, 2.0, 3.0, 100.0, 131.0])
    command = [sys.executable, "-c", "import os; os._exit(3)"]
    stop = StopSignal()

    def clock() -> float:
        if (now := next(times, None)) is None:
            stop.set()
            return 0.0
        return now

    Supervisor(command, 1, stop, restart_seconds=0.01, clock=clock).run()
    found = [record.getMessage() for record in caplog.records if getattr(record, "event", "") == "process_died"]
    assert [text.partition("again in ")[2] for text in found] == [
        "0.01 s; it was handling nothing",
        "0.02 s; it was handling nothing",
        "0.01 s; it was handling nothing",
    ]
    assert "died by exit code 3" in found[0]


def test_message_above_its_hard_limit_ends_its_process_and_moves(bench: Bench, tmp_path: Path) -> None:
    prepare(bench, MAX_CONCURRENCY=1, HARD_TIME_LIMIT=0.2)
    tries = tmp_path / "tries"
    body = {"number": 0, "tries": str(tries), "released": str(tmp_path / "never")}
    send("Worker.Hang", body, to=address(bench, "Sales"))
    send_many("Worker.Count", [{"number": number} for number in range(1, 4)], to=address(bench, "Sales"))

    assert supervisor(bench, StopSignal(), "--until-empty").run() == 0

    (headers,) = bench.headers("error")
    text = "the process died 3 times while it handled this message, the last time by its hard time limit"
    assert headers["NServiceBus.ExceptionInfo.Message"] == text
    assert lines(str(tries)) == 3
    assert [number for number, _ in handled(bench)] == [1, 2, 3]


def test_process_that_is_started_again_purges_nothing(bench: Bench, tmp_path: Path) -> None:
    prepare(bench, MAX_CONCURRENCY=1, PURGE_ON_STARTUP=True)
    tries, released = tmp_path / "tries", tmp_path / "released"
    command = supervisor(bench, stop := StopSignal())
    thread = threading.Thread(target=command.run)
    thread.start()
    try:
        rows = Instance.objects.using(bench.database.alias)
        poll_until(lambda: any(each.threads for each in rows.all()), what="the process receives")
        body = {"number": 1, "tries": str(tries), "released": str(released)}
        send("Worker.Hang", body, to=address(bench, "Sales"))
        poll_until(lambda: lines(str(tries)) == 1, what="the message is being handled")
        command.kill()
        poll_until(lambda: lines(str(tries)) == 2, what="the next process handles it")
    finally:
        released.touch()
        stop.set()
        join_all([thread])
    assert [number for number, _ in handled(bench)] == [1]


@pytest.mark.parametrize("hangs", [False, True])
def test_mode_none_loses_only_the_message_that_ends_its_process(bench: Bench, tmp_path: Path, hangs: bool) -> None:
    prepare(bench, MAX_CONCURRENCY=1, TRANSACTION_MODE="none", HARD_TIME_LIMIT=0.2)
    tries = send_deadly(bench, tmp_path, "0", wait_for=int(hangs))
    after = tmp_path / "after"
    send("Worker.Fail", {"number": 1, "tries": str(after)}, to=address(bench, "Sales"))

    assert supervisor(bench, StopSignal(), "--until-empty").run() == 0

    assert [lines(str(path)) for path in (tries, after)] == [1, 1]
    assert bench.rows("Sales") == []


def test_only_the_message_above_its_hard_limit_is_blamed() -> None:
    memory = InFlightMemory.create(1)
    try:
        counter = CrashCounter(memory)
        slots = memory.slots(0)
        for slot, row in zip(slots, (b"a" * 16, b"b" * 16), strict=False):
            memory.hold(slot, row)
        memory.set_deadline(slots[1], 10.0)
        assert memory.overdue(0, 9.9) == []
        assert memory.overdue(0, 10.0) == [b"b" * 16]
        counted = counter.process_died(0, -9, memory.overdue(0, 10.0))
        assert [each.bytes for each in counted] == [b"b" * 16]
        assert memory.held(0) == []
        assert memory.overdue(0, 10.0) == []
    finally:
        memory.close()
