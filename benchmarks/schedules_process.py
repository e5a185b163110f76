"""Calls of a worker for due schedules: `python -m benchmarks.schedules_process SCHEDULES ROUNDS`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import django

_CALLS = 50


def run(count: int, rounds: int) -> dict[str, dict[str, list[float]]]:
    """The milliseconds of processor time of one look without a due message, and of each message when all are due."""
    django.setup()
    # Models can be imported only now.
    from sqlqueue_app import schedule, unschedule  # noqa: PLC0415
    from sqlqueue_app.conf import ScheduleSettings, get_settings  # noqa: PLC0415
    from sqlqueue_app.status.schedules import Schedules  # noqa: PLC0415

    settings = get_settings()
    entries = {f"s{n}": ScheduleSettings(name=f"s{n}", cron="0 * * * *", send="Bench.Message") for n in range(count)}
    # The clock of the benchmark, which is an hour later in each round.
    clock = [datetime(2096, 1, 1, 0, 30, tzinfo=UTC)]
    found: dict[str, dict[str, list[float]]] = {}
    for name, given in (("none", {}), ("of the settings", entries), ("of the database", {})):
        if name == "of the database":
            for number in range(count):
                schedule(f"d{number}", "Bench.Message", cron="0 * * * *")
        worker = Schedules(replace(settings, schedules=given), "Bench", now=lambda: clock[0])
        worker.send_due()
        idle: list[float] = []
        messages: list[float] = []
        for _ in range(rounds):
            idle.append(_timed(worker.send_due, _CALLS))
            clock[0] += timedelta(hours=1)
            messages.append(_timed(worker.send_due) / count)
        found[name] = {"look": idle, "message": messages if name != "none" else [0.0]}
    for number in range(count):
        unschedule(f"d{number}")
    return found


def _timed(call: Callable[[], Any], times: int = 1) -> float:
    begin = time.process_time()
    for _ in range(times):
        call()
    return (time.process_time() - begin) * 1_000 / times


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]), int(sys.argv[2]))))
