"""The idle benchmark measures a real worker with a few messages."""

from __future__ import annotations

from contextlib import closing

import pytest

from benchmarks import idle
from benchmarks.databases import PostgreSQL
from benchmarks.idle import measure_idle, percentile


def test_percentiles_are_measured_values() -> None:
    values = tuple(float(value) for value in range(1, 201))
    assert [percentile(values, percent) for percent in (50, 99, 100)] == [100.0, 198.0, 200.0]
    assert percentile((7.0,), 50) == percentile((7.0,), 99) == 7.0


def test_idle_worker_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "_SETTLED_SECONDS", 0.0)
    with closing(PostgreSQL(durable=False)) as server:
        found = measure_idle(server, count_messages=3, watched_seconds=0.1)
    assert len(found.milliseconds) == 3
    assert all(0 < each < 60_000 for each in found.milliseconds)
    assert len(found.after_commit) == 3
    assert found.after_commit[-1] < found.milliseconds[-1]
