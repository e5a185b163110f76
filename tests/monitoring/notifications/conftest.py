"""Fixtures of the rule tests: a clock that the test sets and an evaluator of the rules."""

from __future__ import annotations

import pytest

from sqlqueue_app.conf import get_settings
from sqlqueue_app.monitoring.rules import Evaluator
from tests.monitoring.notifications.rules import Clock
from tests.support.databases import QueueDatabase
from tests.support.filling import install


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def evaluator(queue_database: QueueDatabase, clock: Clock) -> Evaluator:
    install(queue_database)
    return Evaluator(get_settings(), now=clock)
