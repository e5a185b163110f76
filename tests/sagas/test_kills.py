"""Worker processes are killed while they handle messages of sagas: nothing is lost, done twice or left behind."""

from __future__ import annotations

import json
import random
from collections import Counter

from tests.support.bench import Bench
from tests.support.forking import RECEIVE, ForkedProcesses
from tests.support.saga_app import MODULE, PRINTS, OrderSagas
from tests.support.waiting import poll_until
from tests.support.worker_processes import wait_until_released

KILLS = 30
WORKERS = 3
ORDERS = 10


def test_kills_lose_and_repeat_nothing(bench: Bench, orders: OrderSagas) -> None:
    bench.configure(HANDLERS=[MODULE], IMMEDIATE_RETRIES=5)
    chosen = random.Random()
    placed = 0
    with ForkedProcesses(bench, **{PRINTS: "1"}) as workers:
        for _ in range(WORKERS):
            workers.begin(RECEIVE, {"max_concurrency": 4})
        for _ in range(KILLS):
            for _ in range(ORDERS):
                # Every other one expires at once, so that its timeout races with its other messages.
                orders.place(str(placed), chain=True, **({"expires": 0} if placed % 2 else {}))
                placed += 1
            for _ in range(chosen.randint(1, ORDERS)):
                workers.read()
            workers.kill(chosen.choice(workers.alive))
            workers.begin(RECEIVE, {"max_concurrency": 4})
    wait_until_released(bench)

    def is_idle() -> bool:
        bench.run()
        return not orders.delayed() and not bench.rows("Sales")

    poll_until(is_idle, 120, what="all messages are handled")
    check(bench, orders, placed)


def check(bench: Bench, orders: OrderSagas, placed: int) -> None:
    """Each order has one saga, which has ended; each of its messages was sent once."""
    rows = orders.rows()
    assert bench.rows("error") == []
    assert sorted(int(each.order_id) for each in rows) == list(range(placed))
    bodies = [json.loads(row.body or b"") for row in bench.rows("out")]
    sent = Counter((body["OrderId"], kind) for body, kind in zip(bodies, orders.sent(), strict=True))
    for saga in rows:
        what = [each["what"] for each in saga.history]
        expired = "timeout" in what
        assert saga.completed_at is not None
        assert (saga.total, saga.timeouts) == (1, [])
        assert what[0] == "started"
        assert expired or what == ["started", "continued", "continued"]
        assert not expired or int(saga.order_id) % 2
        assert sent.pop((saga.order_id, "Test.Bill")) == 1
        assert sent.pop((saga.order_id, "Test.Cancelled"), 0) == int(expired)
    assert not sent
