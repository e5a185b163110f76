"""Failures that outlive their transaction: the last 10,000 of a receiver (docs/internals/endpoints.md#failure-memory)."""

from __future__ import annotations

import uuid
from collections import OrderedDict

from hypothesis import given, strategies as st

from sqlqueue_app.policies.recoverability import REMEMBERED_FAILURES, FailureMemory, RowKey


def row(number: int) -> RowKey:
    return uuid.UUID(int=number), number


def test_memory_returns_attempts_and_the_last_cause() -> None:
    memory: FailureMemory[str] = FailureMemory()
    memory.failed(row(1), 1, "first")
    memory.failed(row(1), 2, "second")

    assert memory.recall(row(1)) == (2, "second")
    assert memory.recall(row(2)) is None


def test_finished_row_is_forgotten() -> None:
    memory: FailureMemory[str] = FailureMemory()
    memory.failed(row(1), 1, "cause")

    memory.forget(row(1))
    memory.forget(row(2))

    assert memory.recall(row(1)) is None


def test_oldest_entry_is_dropped_beyond_ten_thousand() -> None:
    assert REMEMBERED_FAILURES == 10_000
    memory: FailureMemory[str] = FailureMemory()
    for number in range(10_000):
        memory.failed(row(number), 1, "cause")
    assert memory.recall(row(0)) is not None

    memory.failed(row(10_000), 1, "cause")

    assert memory.recall(row(0)) is None
    assert all(memory.recall(row(number)) for number in range(1, 10_001))


def test_row_that_fails_again_is_the_newest() -> None:
    memory: FailureMemory[str] = FailureMemory(size=2)
    memory.failed(row(1), 1, "cause")
    memory.failed(row(2), 1, "cause")
    memory.failed(row(1), 2, "cause")

    memory.failed(row(3), 1, "cause")

    assert memory.recall(row(1)) == (2, "cause")
    assert memory.recall(row(2)) is None


def test_retry_with_the_id_of_a_failed_row_has_no_failed_attempt() -> None:
    memory: FailureMemory[str] = FailureMemory()
    memory.failed(row(1), 1, "cause")

    assert memory.recall((row(1)[0], 2)) is None


@given(
    size=st.integers(1, 5),
    events=st.lists(st.tuples(st.sampled_from(["failed", "forget"]), st.integers(0, 8)), max_size=100),
)
def test_memory_holds_the_newest_unfinished_failures(size: int, events: list[tuple[str, int]]) -> None:
    memory: FailureMemory[int] = FailureMemory(size)
    expected: OrderedDict[int, int] = OrderedDict()
    for step, (event, number) in enumerate(events):
        expected.pop(number, None)
        if event == "failed":
            memory.failed(row(number), step, -step)
            expected[number] = step
            while len(expected) > size:
                expected.popitem(last=False)
        else:
            memory.forget(row(number))
        assert {n: memory.recall(row(n)) for n in range(9)} == {
            n: (expected[n], -expected[n]) if n in expected else None for n in range(9)
        }
