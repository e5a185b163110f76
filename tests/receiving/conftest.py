"""What the tests with rows of any shape have, and those of wake-ups."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from sqlqueue_app.receiving.waiting import WakeUp
from tests.receiving.wake_ups import NEVER
from tests.support import shapes

# Nothing goes wrong that a receiver would have to say.
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
    """What the workers of the test wait on; once a queue has come to rest, nothing but a wake-up has it polled again."""
    made: list[WakeUp] = []

    def recorded(*arguments: Any) -> WakeUp:
        made.append(WakeUp(*arguments, idle_wait_seconds=NEVER))
        return made[-1]

    monkeypatch.setattr("sqlqueue_app.receiving.endpoint.WakeUp", recorded)
    return made


@pytest.fixture
def shape_handlers(handler_registry: None) -> None:
    """Handlers for what rows of any shape ask for."""
    shapes.register_handlers()


@pytest.fixture
def trouble(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """What the log says that is not the failure of a message; emptied by who looks."""
    found: list[str] = []

    class Watch(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if getattr(record, "event", "") in TROUBLE or record.levelno >= logging.CRITICAL:
                found.append(record.getMessage())

    logger, watch = logging.getLogger("sqlqueue"), Watch(logging.WARNING)
    logger.addHandler(watch)
    yield found
    logger.removeHandler(watch)
