"""The time of a message by stage: one thread with timers, compared with one without."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

from benchmarks.databases import PostgreSQL, run_child
from benchmarks.receive import worker
from benchmarks.series import Section, Series
from benchmarks.stage_process import DRIVER

UNIT = "µs a message"


def measure(database: PostgreSQL, *, messages: int, rounds: int, log_line: Callable[[str], None]) -> Section:
    """Microseconds of each stage of a message in one thread, and the cost of the timers."""
    whole = Series("profile.whole", "a message, without timers", UNIT)
    timed: list[dict[str, Any]] = []
    for _ in range(rounds):
        without = worker(database, messages=messages, threads=1, CALLBACKS=False)
        whole.values.append(1e6 / without.value)
        whole.processor_microseconds.append(without.processor_microseconds or 0.0)
        database.fill(messages)
        timed.append(run_child("benchmarks.stage_process", database.environment(CALLBACKS=False)))
        log_line(f"a message: {whole.values[-1]:.0f} µs, under timers {1e6 / timed[-1]['rate']:.0f} µs")
    series = [whole, *_stages(timed), *_in_and_out_of_python(timed)]
    facts: dict[str, object] = {"messages": messages, "µs that a timer adds": round(median(each["timer"] for each in timed), 2)}
    return Section("profile", "where the time of a message goes, 1 thread", database.name, series, facts)


def _stages(timed: list[dict[str, Any]]) -> list[Series]:
    return [
        Series(f"profile.{stage}", f"… {stage}", UNIT, [each["stages"][stage] for each in timed]) for stage in timed[0]["stages"]
    ]


def _in_and_out_of_python(timed: list[dict[str, Any]]) -> list[Series]:
    return [
        Series(
            "profile.waiting",
            "in all: waiting for the server",
            UNIT,
            [each["stages"][DRIVER] - each["driver_processor"] for each in timed],
        ),
        Series("profile.c", "in all: processor, libpq and the kernel", UNIT, [each["driver_processor"] for each in timed]),
        Series("profile.python", "in all: processor, Python", UNIT, [each["python_processor"] for each in timed]),
    ]
