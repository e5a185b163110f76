"""Traces across messages: the headers `traceparent`, `tracestate` and `baggage`, and spans where OpenTelemetry is in use.

Without OpenTelemetry, or without a tracer provider, there are no spans: the headers of a message that is handled are passed on as
they are to what is sent meanwhile (`outgoing_headers`), so that a trace does not end here.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from typing import Protocol

from sqlqueue_app.messages.envelope import IncomingMessage, Intent


class Tracing(Protocol):
    """What OpenTelemetry does for us."""

    def is_on(self) -> bool:
        """Whether the process has set a tracer provider."""

    def processing(self, incoming: IncomingMessage, *, endpoint: str, queue: str, attempt: int) -> AbstractContextManager[object]:
        """The span of one attempt to handle a message, and the current one of the thread while it is open."""

    def sent(self, sent_to: str, *, intent: Intent, message_type: str | None, message_id: str | None) -> dict[str, str | None]:
        """The span of a message to a queue or of an event of a type, or of several (without `message_id`); its headers."""


@cache
def _installed() -> Tracing | None:
    try:
        from sqlqueue_app.sending.open_telemetry import OpenTelemetry  # noqa: PLC0415 - an optional package
    except ImportError:
        return None
    return OpenTelemetry()


def tracing() -> Tracing | None:
    """Who makes spans; None if nobody looks at them."""
    installed = _installed()
    return installed if installed is not None and installed.is_on() else None
