"""The times of a message, from the headers of an audit queue and of an error queue (docs/internals/operations.md#metrics)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from sqlqueue_app.messages.envelope import message_times

SENT = "2026-11-20 10:00:00:000000 Z"
DUE = "2026-11-20 10:00:30:000000 Z"
STARTED = "2026-11-20 10:00:40:000000 Z"
ENDED = "2026-11-20 10:00:40:250000 Z"


def seconds(value: timedelta | None) -> float | None:
    return None if value is None else value.total_seconds()


def headers(**given: str) -> dict[str, str | None]:
    return {f"NServiceBus.{name}": value for name, value in given.items()}


@pytest.mark.parametrize(
    ("given", "delivery", "processing", "critical"),
    [
        (headers(TimeSent=SENT, ProcessingStarted=STARTED, ProcessingEnded=ENDED), 40, 0.25, 40.25),
        (headers(TimeSent=SENT, DeliverAt=DUE, ProcessingStarted=STARTED, ProcessingEnded=ENDED), 10, 0.25, 10.25),
        (headers(ProcessingStarted=STARTED, ProcessingEnded=ENDED), None, 0.25, None),
        (headers(TimeSent=STARTED, ProcessingStarted=SENT, ProcessingEnded=SENT), -40, 0, -40),
        (headers(TimeSent=SENT, TimeOfFailure=ENDED), None, None, 40.25),
        (headers(TimeSent="yesterday", ProcessingEnded=ENDED), None, None, None),
        ({}, None, None, None),
    ],
)
def test_times_are_computed_from_the_headers(
    given: dict[str, str | None], delivery: float | None, processing: float | None, critical: float | None
) -> None:
    found = message_times(given)
    assert (seconds(found.delivery), seconds(found.processing), seconds(found.critical)) == (delivery, processing, critical)
    assert found.failed is ("NServiceBus.TimeOfFailure" in given)
