"""`--cpu-affinity`: each process of a worker stays on one processor."""

from __future__ import annotations

import os
import sys
import threading
import uuid
from contextlib import ExitStack

import pytest
from django.core.management import CommandError, call_command

from sqlqueue_app.messages.errors import ConfigurationError
from sqlqueue_app.worker.run import CpuAffinity
from tests.support.bench import Bench
from tests.support.worker_processes import worker_command

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is nothing like it")


@pytest.fixture
def name() -> str:
    """The name of the claims; a unique one, so that workers of other tests take none."""
    return f"test-{uuid.uuid4()}"


@pytest.mark.parametrize(
    ("text", "processors"), [("auto", ()), ("0", (0,)), ("0,2-4", (0, 2, 3, 4)), ("3,1,3", (3, 1)), (" 1 , 2-2", (1, 2))]
)
def test_processors_have_the_format_of_taskset(text: str, processors: tuple[int, ...]) -> None:
    assert CpuAffinity.parse(text) == CpuAffinity(processors)


@pytest.mark.parametrize("text", ["", "all", "-1", "1-", "2-1", "1,,2", "0x1", "1.0", "٣", "0-999999"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="names no processors: expected 'auto', or numbers such as 0,2-4"):
        CpuAffinity.parse(text)


def test_forbidden_processor_is_refused() -> None:
    allowed = os.sched_getaffinity(0)
    with pytest.raises(ConfigurationError, match="names the processors 99998, 99999, which this process may not use"):
        CpuAffinity((min(allowed), 99998, 99999)).check()


def test_refusal_of_the_system_is_reported(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    reason = r"processor \d+ \(.*not permitted\): omit --cpu-affinity"
    with pytest.raises(ConfigurationError, match=reason), CpuAffinity().held(0, name=name):
        pass


def test_threads_started_inside_stay_on_the_processor(name: str) -> None:
    before, seen = os.sched_getaffinity(0), []
    with CpuAffinity().held(0, name=name) as number:
        thread = threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0)))
        thread.start()
        thread.join()
        assert [os.sched_getaffinity(0), *seen] == [{number}, {number}]
    assert os.sched_getaffinity(0) == before


def test_named_processors_are_taken_in_turn(name: str) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    for process in range(len(allowed) + 1):
        with CpuAffinity(allowed).held(process, name=name) as number:
            assert number == allowed[process % len(allowed)]


def test_each_worker_takes_a_free_processor(name: str) -> None:
    allowed = os.sched_getaffinity(0)
    found: list[int] = []
    with ExitStack() as stack:
        for _ in allowed:
            found.append(stack.enter_context(CpuAffinity().held(0, name=name)))
            # The next one is another process, which may use all of them.
            os.sched_setaffinity(0, allowed)
        with CpuAffinity().held(1, name=name) as shared:
            # All are taken: it shares one, selected by its number.
            assert shared == sorted(allowed)[1 % len(allowed)]
    assert sorted(found) == sorted(allowed)
    with CpuAffinity().held(0, name=name) as free_again:
        assert free_again == min(allowed)


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
