"""When a receive reads from the start of the table again."""

from __future__ import annotations

from sqlqueue_app.policies.polling import RESCAN_CAP_SECONDS, LowerBound


def test_bound_follows_the_rows_with_a_rescan_every_tenth_of_a_second() -> None:
    bound = LowerBound()
    assert bound.for_receive(100.0) == 0
    bound.received(7, bound=0, began=100.0, now=100.001)
    assert bound.for_receive(100.05) == 8
    bound.received(8, bound=8, began=100.05, now=100.051)
    assert bound.for_receive(100.1) == 9
    assert bound.for_receive(100.102) == 0
    bound.received(3, bound=0, began=100.102, now=100.103)
    assert bound.for_receive(100.2) == 4


def test_one_thread_rescans_for_all() -> None:
    bound = LowerBound()
    bound.received(7, bound=0, began=99.9, now=100.0)
    assert [bound.for_receive(101.5) for _ in range(3)] == [0, 8, 8]


def test_slower_receive_does_not_move_the_bound_back() -> None:
    bound = LowerBound()
    bound.received(7, bound=0, began=100.0, now=100.001)
    bound.received(9, bound=8, began=100.01, now=100.02)
    bound.received(8, bound=8, began=100.01, now=100.03)
    assert bound.for_receive(100.05) == 10


def test_returned_row_moves_the_bound_back_for_all() -> None:
    bound = LowerBound()
    bound.received(20, bound=0, began=100.0, now=100.001)
    bound.received(3, bound=0, began=100.2, now=100.21)
    # this receive began earlier, with the old bound: there may be more rows between 3 and 21
    bound.received(21, bound=21, began=100.19, now=100.22)
    assert bound.for_receive(100.25) == 4


def test_slow_rescan_becomes_rarer_but_at_least_once_a_second() -> None:
    bound = LowerBound()
    bound.for_receive(10.0)
    bound.received(1, bound=0, began=10.0, now=10.05)
    assert bound.for_receive(10.5) == 2
    assert bound.for_receive(10.56) == 0
    bound.received(1, bound=0, began=10.56, now=15.56)
    assert bound.wait_seconds == RESCAN_CAP_SECONDS


def test_forgotten_bound_starts_from_the_beginning() -> None:
    bound = LowerBound()
    bound.for_receive(10.0)
    bound.received(5, bound=0, began=10.0, now=10.001)
    bound.forget()
    assert bound.for_receive(10.002) == 0
