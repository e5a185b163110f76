"""`--cpu-affinity`: when a process of a worker stays on one processor, and when it may use all."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator

import pytest
from django.core.management import CommandError, call_command

from sqlqueue_app import handles
from sqlqueue_app.conf import get_settings
from sqlqueue_app.management.commands import run_sqlqueue_worker
from sqlqueue_app.messages.errors import ConfigurationError
from sqlqueue_app.receiving.stopping import StopSignal
from sqlqueue_app.worker.affinity import (
    EXPECT_SECONDS,
    MAX_OTHERS,
    MIN_MESSAGES,
    PAUSE_SECONDS,
    PROBE_SECONDS,
    QUICK_SECONDS,
    AdaptiveAffinity,
    busy_seconds_of,
    check_processors,
    is_supported,
    parse_affinity,
    staying_on,
)
from sqlqueue_app.worker.run import RunOptions, run_worker
from tests.support.bench import Bench
from tests.support.worker_processes import worker_command

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is nothing like it")


@pytest.mark.parametrize(
    ("text", "found"),
    [("auto", "auto"), ("none", "none"), ("0", (0,)), ("0,2-4", (0, 2, 3, 4)), ("3,1,3", (3, 1)), (" 1 , 2-2", (1, 2))],
)
def test_processors_have_the_format_of_taskset(text: str, found: object) -> None:
    assert parse_affinity(text) == found


@pytest.mark.parametrize("text", ["", "all", "-1", "1-", "2-1", "1,,2", "0x1", "1.0", "٣", "0-999999"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="names no processors: expected 'auto', 'none', or numbers such as 0,2-4"):
        parse_affinity(text)


def test_forbidden_processor_is_refused() -> None:
    allowed = os.sched_getaffinity(0)
    with pytest.raises(ConfigurationError, match="names the processors 99998, 99999, which this process may not use"):
        check_processors((min(allowed), 99998, 99999))


def test_refusal_of_the_system_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    reason = r"processor \d+ \(.*not permitted\): omit --cpu-affinity"
    with pytest.raises(ConfigurationError, match=reason), staying_on(sorted(os.sched_getaffinity(0)), 0):
        pass


def test_named_processors_are_taken_in_turn_by_all_later_threads() -> None:
    before = os.sched_getaffinity(0)
    for process in range(len(before) + 1):
        seen: list[set[int]] = []
        with staying_on(sorted(before), process) as number:
            thread = threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0)))  # noqa: B023 - joined below
            thread.start()
            thread.join()
            assert number == sorted(before)[process % len(before)]
            assert [os.sched_getaffinity(0), *seen] == [{number}, {number}]
    assert os.sched_getaffinity(0) == before


class Machine:
    """The clocks that an affinity reads: the time, and the processor times of its process and of the processor that it stays on."""

    def __init__(self) -> None:
        self.now = self.own = self.busy = 100.0
        self.handled = 0

    def pass_second(
        self, affinity: AdaptiveAffinity, messages: int = 0, each: float = 0.0, others: float = 0.0, seconds: float = 1.0
    ) -> int | None:
        """A second with messages that take `each` seconds of processor time; others use a part of it. Returns the processor."""
        self.now += seconds
        self.own += messages * each
        self.busy += messages * each + others
        self.handled += messages
        affinity.check(self.handled)
        return affinity.processor

    def pass_quick_second(self, affinity: AdaptiveAffinity, others: float = 0.0) -> int | None:
        """A second whose messages are just numerous and quick enough for a binding."""
        return self.pass_second(affinity, MIN_MESSAGES, QUICK_SECONDS / 2, others)


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def claim() -> str:
    """The name of the claims; a unique one, so that workers of other tests take none."""
    return f"test-{uuid.uuid4()}"


def made(machine: Machine, claim: str, process: int = 0) -> AdaptiveAffinity:
    return AdaptiveAffinity(
        process,
        claim=claim,
        clock=lambda: machine.now,
        own_seconds=lambda: machine.own,
        busy_seconds=lambda _processor: machine.busy,
    )


@pytest.fixture
def affinity(machine: Machine, claim: str) -> Iterator[AdaptiveAffinity]:
    found = made(machine, claim)
    found.check(0)
    yield found
    found.release("the test ends")


def affinities() -> set[frozenset[int]]:
    """The processors of each thread of this process."""
    return {frozenset(os.sched_getaffinity(int(thread))) for thread in os.listdir("/proc/self/task")}


def test_many_quick_messages_bind_all_threads(machine: Machine, affinity: AdaptiveAffinity) -> None:
    released = threading.Event()
    waiting = threading.Thread(target=released.wait)
    waiting.start()
    assert machine.pass_second(affinity, MIN_MESSAGES - 1, QUICK_SECONDS / 2) is None, "too few"
    assert machine.pass_second(affinity, MIN_MESSAGES, QUICK_SECONDS * 1.1) is None, "messages too slow"
    number = machine.pass_quick_second(affinity)
    assert number is not None
    assert affinities() == {frozenset({number})}
    assert machine.pass_quick_second(affinity) == number
    assert machine.pass_second(affinity) == number, "an idle second changes nothing"
    released.set()
    waiting.join()


def test_burst_binds_before_the_second_is_over(machine: Machine, affinity: AdaptiveAffinity) -> None:
    few, quick = MIN_MESSAGES // 2, QUICK_SECONDS / 2
    assert machine.pass_second(affinity, few, quick, seconds=PROBE_SECONDS) is None, "too few"
    assert machine.pass_second(affinity, few, quick, seconds=PROBE_SECONDS) is not None, "enough messages within a second"
    affinity.release("the next case")
    machine.now += PAUSE_SECONDS
    for _ in range(20):
        assert machine.pass_second(affinity, few // 3, quick, seconds=PROBE_SECONDS) is None, "too few messages in any second"


def test_probes_are_frequent_only_while_they_may_bind(machine: Machine, affinity: AdaptiveAffinity) -> None:
    sooner = affinity.job(lambda: 0).sooner
    assert sooner is not None
    assert sooner() == PROBE_SECONDS, "the process has just begun"
    machine.pass_second(affinity, seconds=EXPECT_SECONDS)
    assert sooner() is None, "idle"
    machine.pass_second(affinity, 1, QUICK_SECONDS / 2)
    assert sooner() == PROBE_SECONDS
    machine.pass_quick_second(affinity)
    machine.pass_quick_second(affinity)
    assert sooner() is None, "bound"
    affinity.release("the next case")
    machine.pass_quick_second(affinity)
    assert sooner() is None, "must not bind yet"


def test_slower_messages_release_it(machine: Machine, affinity: AdaptiveAffinity) -> None:
    before = affinities()
    machine.pass_quick_second(affinity)
    machine.pass_quick_second(affinity)
    assert machine.pass_second(affinity, MIN_MESSAGES, QUICK_SECONDS * 1.1) is None
    assert affinities() == before


def test_other_users_of_the_processor_release_it_for_a_minute(machine: Machine, affinity: AdaptiveAffinity) -> None:
    machine.pass_quick_second(affinity)
    assert machine.pass_quick_second(affinity, others=1.0) is not None, "their use before the binding is unknown"
    assert machine.pass_quick_second(affinity, others=MAX_OTHERS * 0.9) is not None
    assert machine.pass_quick_second(affinity, others=MAX_OTHERS * 1.1) is None
    for _ in range(int(PAUSE_SECONDS) - 1):
        assert machine.pass_quick_second(affinity) is None
    assert machine.pass_quick_second(affinity) is not None


def test_started_program_inherits_no_affinity(machine: Machine, affinity: AdaptiveAffinity) -> None:
    before = os.sched_getaffinity(0)
    assert machine.pass_quick_second(affinity) is not None
    program = [sys.executable, "-c", "import os; print(sorted(os.sched_getaffinity(0)))"]
    assert subprocess.run(program, capture_output=True, text=True, check=True).stdout.strip() == str(sorted(before))
    assert affinity.processor is None


def test_each_process_takes_a_free_processor(machine: Machine, claim: str) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    workers = [made(machine, claim, number) for number in range(len(allowed) + 1)]
    try:
        found = []
        for worker in workers:
            worker.check(machine.handled)
            found.append(machine.pass_quick_second(worker))
            # The next worker stands for another process, which may use all processors.
            os.sched_setaffinity(0, allowed)
        # Each processor is taken: the last worker shares one, selected by its number.
        assert found == [*allowed, allowed[len(allowed) % len(allowed)]]
        workers[0].release("it ends")
        again = made(machine, claim)
        again.check(machine.handled)
        assert machine.pass_quick_second(again) == allowed[0], "free again"
        again.release("the test ends")
    finally:
        for worker in workers:
            worker.release("the test ends")


def test_time_of_a_processor_is_read_from_the_system() -> None:
    numbers = os.sched_getaffinity(0)
    assert all(busy_seconds_of(number) > 0 for number in numbers)
    assert busy_seconds_of(99999) == 0


class Seen(AdaptiveAffinity):
    """Records what a worker reports."""

    def __init__(self) -> None:
        super().__init__(0)
        self.handled: list[int] = []
        self.several = threading.Event()

    def check(self, handled: int) -> None:
        self.handled.append(handled)
        if handled == 3:
            self.several.set()


def test_worker_reports_how_many_messages_it_has_handled(sqlite_bench: Bench) -> None:
    handles("Test.Message")(lambda message, context: None)
    sqlite_bench.configure()
    for _ in range(3):
        sqlite_bench.put_message("Test.Message")
    seen, stop = Seen(), StopSignal()
    worker = threading.Thread(target=run_worker, args=(get_settings(), RunOptions(), stop), kwargs={"affinity": seen})
    worker.start()
    try:
        assert seen.several.wait(60), seen.handled
    finally:
        stop.set()
        worker.join()


def test_affinity_adapts_by_default_on_the_command_line_only(sqlite_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[object] = []
    monkeypatch.setattr(run_sqlqueue_worker, "run_worker", lambda *_given, affinity=None, **_more: found.append(affinity))
    sqlite_bench.configure()
    for given, called_from_command_line in (((), True), (("--cpu-affinity", "none"), True), ((), False)):
        command = run_sqlqueue_worker.Command()
        setattr(command, "_called_from_command_line", called_from_command_line)  # noqa: B010 - Django sets it
        parser = command.create_parser("manage.py", "run_sqlqueue_worker")
        command.execute(**vars(parser.parse_args(["--processes", "0", *given])))
    assert [type(each) for each in found] == [AdaptiveAffinity if is_supported() else type(None), type(None), type(None)]


@pytest.mark.once
def test_each_process_logs_its_processor(bench: Bench) -> None:
    bench.configure()
    processor = min(os.sched_getaffinity(0))
    result = worker_command(bench, "--processes", "2", "--cpu-affinity", str(processor), "--until-empty")
    assert result.returncode == 0, result.stderr
    assert result.stderr.count(f"this process stays on processor {processor}") == 2


@pytest.mark.once
@pytest.mark.parametrize(
    ("text", "expected"), [("many", "'many' names no processors"), ("99999", "which this process may not use: expected some of ")]
)
def test_wrong_processor_is_one_line_and_exit_code_2(bench: Bench, text: str, expected: str) -> None:
    result = worker_command(bench, "--cpu-affinity", text)
    assert (result.returncode, len(result.stderr.strip().splitlines())) == (2, 1)
    assert expected in result.stderr


def test_affinity_is_restored_after_call_command(sqlite_bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    before = os.sched_getaffinity(0)
    sqlite_bench.configure()
    call_command("run_sqlqueue_worker", cpu_affinity=str(min(before)), until_empty=True)
    assert "cpu_affinity" in {getattr(record, "event", "") for record in caplog.records}
    assert os.sched_getaffinity(0) == before
    with pytest.raises(CommandError, match="'many' names no processors"):
        call_command("run_sqlqueue_worker", cpu_affinity="many")
