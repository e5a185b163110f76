"""Fixtures of the check tests."""

from __future__ import annotations

import pytest

from tests.monitoring.checks.watchers import SCHEDULES, Bench
from tests.support.databases import QueueDatabase
from tests.support.filling import install


@pytest.fixture
def bench(queue_database: QueueDatabase) -> Bench:
    install(queue_database, SCHEDULES=SCHEDULES)
    return Bench(queue_database)
