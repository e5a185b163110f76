"""A worker with one thread and timers that show where the time of a message is spent: `python -m benchmarks.stage_process`.

The timers wrap functions of the package at run time, so that the package itself has none. Each stage counts its own time without
that of the stages inside it. Reading the thread's CPU clock costs more than most stages take, so it is read only around the driver
and once per message for the total.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import django

BETWEEN = "between two polls"

DRIVER = "libpq and the server"
"""Outside of Python: the processor time of this stage is that of libpq and the kernel, the rest of its wall time is waiting."""

_RECEIVE = "sqlqueue_app.tables.postgresql_receive"
STAGES: dict[str, list[str]] = {
    "poll and process, what is not below": ["sqlqueue_app.receiving.receiver:QueuePoller.poll"],
    "receive: text, row, Django's bookkeeping": [f"{_RECEIVE}:PostgresReceiveTransaction.receive_many"],
    "commit (and receive): text, row, bookkeeping": [f"{_RECEIVE}:PostgresReceiveTransaction.commit"],
    DRIVER: [f"{_RECEIVE}:_execute", f"{_RECEIVE}:_execute_for_rows"],
    "headers: parse": ["sqlqueue_app.receiving.processing:read_headers"],
    "handlers: look up, read the body": ["sqlqueue_app.receiving.handlers:HandlerTable.calls"],
}
"""Where each stage begins: module and name. A name that is gone is an error: the stage moved, and the table would lie."""


class Timers:
    """Adds up the stages of one thread."""

    def __init__(self) -> None:
        self.wall: Counter[str] = Counter()
        self.driver_processor = 0
        self.first_processor: int | None = None
        self.last_processor = 0
        self._stack = [BETWEEN]
        self._since: int | None = None

    def _switch(self) -> None:
        now = time.perf_counter_ns()
        if self._since is not None:
            self.wall[self._stack[-1]] += now - self._since
        self._since = now

    def enter(self, stage: str) -> None:
        """Enter a stage."""
        if stage == DRIVER:
            self.driver_processor -= time.thread_time_ns()
        elif len(self._stack) == 1:
            self.last_processor = time.thread_time_ns()
            if self.first_processor is None:
                self.first_processor = self.last_processor
        self._switch()
        self._stack.append(stage)

    def leave(self) -> None:
        """Leave the stage entered last."""
        self._switch()
        if self._stack.pop() == DRIVER:
            self.driver_processor += time.thread_time_ns()

    def around(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function as a stage; of a generator each step counts."""
        if inspect.isgeneratorfunction(function):
            return functools.wraps(function)(lambda *args, **kwargs: self._steps(stage, function(*args, **kwargs)))

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self.enter(stage)
            try:
                return function(*args, **kwargs)
            finally:
                self.leave()

        return timed

    def _steps(self, stage: str, source: Iterator[Any]) -> Iterator[Any]:
        while True:
            self.enter(stage)
            try:
                each = next(source)
            except StopIteration:
                return
            finally:
                self.leave()
            yield each


def lay_timers(timers: Timers) -> None:
    """Put a timer around every stage; raises AttributeError for a missing function."""
    for stage, places in STAGES.items():
        for place in places:
            module, _, path = place.partition(":")
            owner: Any = importlib.import_module(module)
            *classes, name = path.split(".")
            for each in classes:
                owner = getattr(owner, each)
            setattr(owner, name, timers.around(stage, getattr(owner, name)))


def cost_of_a_timer(calls: int = 20_000) -> float:
    """Microseconds that one timer adds."""
    timed = Timers().around("nothing", lambda: None)
    begin = time.perf_counter()
    for _ in range(calls):
        timed()
    return (time.perf_counter() - begin) / calls * 1e6


def main() -> None:
    django.setup()
    # Models can be imported only now.
    from benchmarks import handlers  # noqa: PLC0415
    from benchmarks.measures import rate  # noqa: PLC0415
    from sqlqueue_app.conf import get_settings  # noqa: PLC0415
    from sqlqueue_app.receiving.stopping import StopSignal  # noqa: PLC0415
    from sqlqueue_app.worker.run import RunOptions, run_worker  # noqa: PLC0415

    timers = Timers()
    lay_timers(timers)
    run_worker(get_settings(), RunOptions(max_concurrency=1, until_empty=True), StopSignal())
    count = len(handlers.TIMES)
    thread = timers.last_processor - (timers.first_processor or 0)
    found = {
        "messages": count,
        "rate": rate(handlers.TIMES),
        "stages": {stage: timers.wall[stage] / count / 1e3 for stage in [*STAGES, BETWEEN]},
        "driver_processor": timers.driver_processor / count / 1e3,
        "python_processor": (thread - timers.driver_processor) / count / 1e3,
        "timer": cost_of_a_timer(),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
