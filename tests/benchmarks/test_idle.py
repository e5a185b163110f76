"""The idle benchmark measures a real worker with a few messages."""

from __future__ import annotations

from contextlib import closing

import pytest

from benchmarks import idle
from benchmarks.databases import PostgreSQL
from benchmarks.idle import Idle, measure_idle


def test_percentiles_are_measured_values() -> None:
    found = Idle(tuple(float(value) for value in range(1, 201)), 0.0)
    assert (found.percentile(50), found.percentile(99), found.percentile(100)) == (100.0, 198.0, 200.0)
    assert Idle((7.0,), 0.0).percentile(50) == Idle((7.0,), 0.0).percentile(99) == 7.0


def test_idle_worker_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "_SETTLED_SECONDS", 0.0)
    with closing(PostgreSQL(durable=False)) as server:
        found = measure_idle(server, count_messages=3, watched_seconds=0.1)
    assert len(found.milliseconds) == 3
    assert all(0 < each < 60_000 for each in found.milliseconds)
