"""Fixtures for the tests with rows of any shape and for the wake-up tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from sqlqueue_app.receiving.waiting import WakeUp
from tests.receiving.wake_ups import NEVER
from tests.support import shapes

# Log events that no row may cause.
TROUBLE = {
    "receive_failed",
    "critical_error",
    "thread_died",
    "transaction_lost",
    "transaction_ended",
    "on_commit_hook_failed",
    "recoverability_failed",
    "delayed_move_failed",
    "background_job_failed",
}


@pytest.fixture
def wake_ups(monkeypatch: pytest.MonkeyPatch) -> list[WakeUp]:
    """The wake-up flags of the test's workers. An idle queue is polled again only after a wake-up."""
    made: list[WakeUp] = []

    def recorded(*arguments: Any) -> WakeUp:
        made.append(WakeUp(*arguments, idle_wait_seconds=NEVER))
        return made[-1]

    monkeypatch.setattr("sqlqueue_app.receiving.endpoint.WakeUp", recorded)
    return made


@pytest.fixture
def shape_handlers(handler_registry: None) -> None:
    """Handlers for the message types that the generated rows use."""
    shapes.register_handlers()


@pytest.fixture
def trouble(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """Logged errors other than failures of messages. The test clears the list."""
    found: list[str] = []

    class Watch(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if getattr(record, "event", "") in TROUBLE or record.levelno >= logging.CRITICAL:
                found.append(record.getMessage())

    logger, watch = logging.getLogger("sqlqueue"), Watch(logging.WARNING)
    logger.addHandler(watch)
    yield found
    logger.removeHandler(watch)
