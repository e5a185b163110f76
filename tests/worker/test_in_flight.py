"""The in-flight registry, without processes: crash counts, forgotten rows, costs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator

import pytest

from sqlqueue_app.receiving.in_flight import MAX_CRASHES, SLOTS, CrashCount, InFlightMemory, InFlightRegistry, describe_exit
from sqlqueue_app.worker.supervisor import CrashCounter
from tests.support.waiting import join_all, poll_until

ONE, TWO, THREE, FOUR = (uuid.UUID(int=number) for number in range(1, 5))


@pytest.fixture
def memory() -> Iterator[InFlightMemory]:
    made = InFlightMemory.create(2)
    yield made
    made.close()


@pytest.fixture
def counts(memory: InFlightMemory) -> CrashCounter:
    return CrashCounter(memory)


def held(memory: InFlightMemory, process: int = 0) -> set[uuid.UUID]:
    return {uuid.UUID(bytes=row_id) for row_id in memory.held(process)}


def die_at(memory: InFlightMemory, counts: CrashCounter, row_id: uuid.UUID, *, process: int = 0, exit_code: int = -9) -> int:
    """Begin this row in a process that then dies."""
    memory.hold(memory.slots(process).start, row_id.bytes)
    return counts.process_died(process, exit_code)[row_id]


def test_row_is_held_from_begin_to_end(memory: InFlightMemory) -> None:
    work = InFlightRegistry(memory, 0)
    assert work.begin(ONE) is None
    assert held(memory) == {ONE}
    assert held(memory, 1) == set()
    work.end()
    assert held(memory) == set()
    work.end()


def test_only_the_current_row_of_a_transaction_is_held(memory: InFlightMemory) -> None:
    work = InFlightRegistry(memory, 0)
    for row_id in (ONE, TWO, THREE):
        work.begin(row_id)
    assert held(memory) == {THREE}
    assert CrashCounter(memory).process_died(0, -signal.SIGKILL) == {THREE: 1}


def test_each_thread_has_its_own_slot_and_releases_it(memory: InFlightMemory) -> None:
    work = InFlightRegistry(memory, 1)
    both = threading.Barrier(3)

    def handle(row_id: uuid.UUID) -> None:
        for _ in range(SLOTS):
            work.begin(row_id)
            work.end()
        work.begin(row_id)
        both.wait(60)
        both.wait(60)
        work.end()

    threads = [threading.Thread(target=handle, args=(row_id,)) for row_id in (ONE, TWO)]
    for thread in threads:
        thread.start()
    both.wait(60)
    assert held(memory, 1) == {ONE, TWO}
    both.wait(60)
    join_all(threads)
    assert held(memory, 1) == set()


def test_thread_without_a_slot_works_unobserved(memory: InFlightMemory) -> None:
    work = InFlightRegistry(memory, 0)
    work._free.clear()
    assert work.begin(ONE) is None
    assert held(memory) == set()
    work.end()


def test_third_crash_is_the_last(memory: InFlightMemory, counts: CrashCounter) -> None:
    for expected in range(1, MAX_CRASHES + 1):
        work = InFlightRegistry(memory, 0)
        assert work.begin(ONE) is None
        assert counts.process_died(0, -signal.SIGSEGV) == {ONE: expected}
        assert held(memory) == set()
    again = InFlightRegistry(memory, 1)
    died = again.begin(ONE)
    assert str(died) == "the process died 3 times while it handled this message, the last time by SIGSEGV"
    assert held(memory, 1) == set()
    assert again.begin(TWO) is None


def test_finished_row_is_forgotten_by_all_processes(memory: InFlightMemory, counts: CrashCounter) -> None:
    for _ in range(MAX_CRASHES):
        die_at(memory, counts, ONE)
    other = InFlightRegistry(memory, 1)
    assert other.begin(ONE) is not None
    other.end()
    # After a retry from the error queue, the message is an ordinary one in each process.
    assert InFlightRegistry(memory, 0).begin(ONE) is None
    assert other.begin(ONE) is None
    other.end()
    assert die_at(memory, counts, ONE) == 1


def test_batch_rows_are_cleared_when_their_transaction_ends(memory: InFlightMemory, counts: CrashCounter) -> None:
    for _ in range(MAX_CRASHES):
        die_at(memory, counts, ONE)
    die_at(memory, counts, TWO)
    batch = (ONE, TWO, THREE)
    work = InFlightRegistry(memory, 1)
    assert [work.begin(row_id) is None for row_id in batch] == [False, True, True]
    assert held(memory, 1) == {THREE}
    # The third one kills the process, which also rolls back the move of the first one into the error queue.
    assert counts.process_died(1, -9) == {THREE: 1}
    again = InFlightRegistry(memory, 1, suspect_wait_seconds=60)
    assert [again.begin(row_id) is None for row_id in batch] == [False, True, True]
    again.end()
    assert [die_at(memory, counts, row_id) for row_id in batch] == [1, 1, 1]


def test_suspects_run_one_at_a_time_beside_other_rows(memory: InFlightMemory, counts: CrashCounter) -> None:
    for row_id in (ONE, TWO):
        die_at(memory, counts, row_id)
    work = InFlightRegistry(memory, 1, suspect_wait_seconds=60)
    work.begin(ONE)
    begun = threading.Event()

    def handle(row_id: uuid.UUID, is_begun: threading.Event) -> None:
        work.begin(row_id)
        is_begun.set()
        work.end()

    second = threading.Thread(target=handle, args=(TWO, begun))
    second.start()
    passed = threading.Event()
    third = threading.Thread(target=handle, args=(THREE, passed))
    third.start()
    assert passed.wait(60)
    assert not begun.is_set()
    assert held(memory, 1) == {ONE}
    work.end()
    assert begun.wait(60)
    join_all([second, third])


def test_suspect_waits_only_for_a_limited_time(memory: InFlightMemory, counts: CrashCounter) -> None:
    for row_id in (ONE, TWO):
        die_at(memory, counts, row_id)
    work = InFlightRegistry(memory, 1, suspect_wait_seconds=0.01)
    work.begin(ONE)

    def handle() -> None:
        work.begin(TWO)
        work.end()

    late = threading.Thread(target=handle)
    late.start()
    join_all([late])
    work.end()
    assert work.begin(TWO) is None
    work.end()


def test_uncounted_crash_is_awaited(memory: InFlightMemory, counts: CrashCounter) -> None:
    """The database gives the row of a dead process to another one before the supervisor has detected the end."""
    for _ in range(MAX_CRASHES - 1):
        die_at(memory, counts, ONE)
    memory.hold(memory.slots(0).start, ONE.bytes)
    impatient = InFlightRegistry(memory, 1, suspect_wait_seconds=0.01)
    assert impatient.begin(ONE) is None
    impatient.abandon()

    answers: list[object] = []
    work = InFlightRegistry(memory, 1, suspect_wait_seconds=60)
    thread = threading.Thread(target=lambda: answers.append(work.begin(ONE)))
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    counts.process_died(0, -signal.SIGKILL)
    join_all([thread])
    assert f"the process died {MAX_CRASHES} times" in str(answers[0])
    assert held(memory, 1) == set()


def test_intended_exit_counts_no_crash(memory: InFlightMemory, counts: CrashCounter) -> None:
    work = InFlightRegistry(memory, 0)
    work.begin(ONE)
    work.abandon()
    assert counts.process_died(0, 143) == {}
    assert not memory.has_suspects()


def test_crash_memory_is_bounded_and_drops_the_oldest(memory: InFlightMemory) -> None:
    counts = CrashCounter(memory, size=2)
    die_at(memory, counts, ONE)
    die_at(memory, counts, TWO)
    assert die_at(memory, counts, ONE) == 2
    die_at(memory, counts, THREE)
    assert memory.has_suspects()
    assert memory.crashes(TWO) is None
    assert memory.crashes(ONE) == CrashCount(2, -9)
    # A new row first replaces a row that has finished; only then is another one dropped.
    memory.forget(THREE)
    die_at(memory, counts, FOUR)
    assert memory.has_suspects()
    assert memory.crashes(ONE) == CrashCount(2, -9)
    assert memory.crashes(FOUR) == CrashCount(1, -9)


def test_list_being_written_is_not_read(memory: InFlightMemory, counts: CrashCounter) -> None:
    die_at(memory, counts, ONE)
    reader = InFlightMemory(os.dup(memory.descriptor))
    try:
        assert reader.has_suspects()
        # As if the supervisor had written the new number, but not yet the ids.
        memory._mapped[:4] = (2).to_bytes(4, "little")
        assert reader.has_suspects()
        assert reader.crashes(ONE) == CrashCount(1, -9)
        assert reader.crashes(TWO) is None
        die_at(memory, counts, TWO)
        assert reader.has_suspects()
        assert reader.crashes(TWO) == CrashCount(1, -9)
    finally:
        reader.close()


def test_other_process_sees_the_memory_and_it_outlives_a_kill(memory: InFlightMemory, counts: CrashCounter) -> None:
    reading, writing = os.pipe()
    if not (child := os.fork()):
        InFlightRegistry(InFlightMemory(memory.descriptor), 1).begin(ONE)
        os.write(writing, b"!")
        while True:
            signal.pause()
    try:
        assert os.read(reading, 1) == b"!"
        poll_until(lambda: held(memory, 1) == {ONE}, what="the row is held")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)
        os.close(writing)
    assert counts.process_died(1, -signal.SIGKILL) == {ONE: 1}
    assert held(memory, 1) == set()


def test_unlinked_file_replaces_missing_memfd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    memory = InFlightMemory.create(1)
    try:
        assert os.fstat(memory.descriptor).st_nlink == 0
        InFlightRegistry(memory, 0).begin(ONE)
        assert held(memory) == {ONE}
    finally:
        memory.close()


@pytest.mark.parametrize(
    ("exit_code", "description"),
    [(-9, "SIGKILL"), (-11, "SIGSEGV"), (0, "exit code 0"), (137, "exit code 137"), (-40, "signal 40")],
)
def test_exit_code_is_described_in_words(exit_code: int, description: str) -> None:
    assert describe_exit(exit_code) == description


def test_child_of_a_handler_ends_without_a_reader_of_stderr() -> None:
    program = (
        "import os; from sqlqueue_app.receiving.in_flight import end_child\ntry: end_child()\nexcept BaseException: os._exit(7)"
    )
    reader, writer = os.pipe()
    os.close(reader)
    try:
        assert subprocess.run([sys.executable, "-c", program], stderr=writer, timeout=60, check=False).returncode == 1
    finally:
        os.close(writer)
