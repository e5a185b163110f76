"""The number of messages for the next receive."""

from __future__ import annotations

from sqlqueue_app.policies.polling import AUTO_BYTES, AUTO_MAXIMUM, AUTO_SECONDS, BatchSize


def grown(to: int) -> BatchSize:
    size = BatchSize("auto")
    while size.next() < to:
        size.done(size.next(), 0.001, failed=False)
    return size


def test_fixed_size_never_changes() -> None:
    size = BatchSize(50)
    for received, seconds, failed in [(50, 0.01, False), (3, 9.0, False), (50, 0.01, True)]:
        size.done(received, seconds, failed=failed)
        assert size.next() == 50


def test_auto_doubles_while_the_queue_is_deep_and_handlers_are_quick() -> None:
    size = BatchSize("auto")
    seen = [size.next()]
    for _ in range(8):
        size.done(size.next(), 0.001, failed=False)
        seen.append(size.next())
    assert seen == [1, 2, 4, 8, 16, 32, 64, AUTO_MAXIMUM, AUTO_MAXIMUM]


def test_auto_stays_if_the_queue_is_not_deep() -> None:
    size = grown(8)
    size.done(5, 0.001, failed=False)
    assert size.next() == 8


def test_auto_stays_if_a_batch_takes_most_of_its_time() -> None:
    size = grown(8)
    size.done(8, AUTO_SECONDS * 0.8, failed=False)
    assert size.next() == 8


def test_auto_shrinks_to_fit_slow_messages() -> None:
    size = grown(32)
    size.done(32, AUTO_SECONDS * 4, failed=False)
    assert size.next() == 8
    size.done(8, 60.0, failed=False)
    assert size.next() == 1


def test_auto_holds_a_megabyte_of_bodies_at_most() -> None:
    size = grown(64)
    size.done(64, 0.001, failed=False, content=4 * AUTO_BYTES)
    assert size.next() == 16
    size.done(16, 0.001, failed=False, content=AUTO_BYTES)
    assert size.next() == 16, "twice as many would be too large"
    size.done(16, 0.001, failed=False, content=AUTO_BYTES // 2)
    assert size.next() == 32
    size.done(1, 0.001, failed=False, content=30 * AUTO_BYTES)
    assert size.next() == 1


def test_auto_falls_to_one_after_a_failure_and_grows_again() -> None:
    size = grown(32)
    size.done(32, 0.001, failed=True)
    assert size.next() == 1
    size.done(1, 0.001, failed=False)
    assert size.next() == 2


def test_lost_batch_is_repeated_one_by_one() -> None:
    size = BatchSize(3)
    size.lost(3)
    assert [size.next() for _ in range(5)] == [1, 1, 1, 3, 3]


def test_lost_single_message_changes_nothing() -> None:
    size = BatchSize(3)
    size.lost(1)
    assert size.next() == 3
