"""Traces across messages: the headers `traceparent`, `tracestate` and `baggage`, and spans where OpenTelemetry is in use.

Without OpenTelemetry, or without a tracer provider, there are no spans: the headers of a message that is handled are passed on as
they are to what is sent meanwhile (`outgoing_headers`), so that a trace does not end here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from typing import Protocol

from sqlqueue_app.messages.envelope import IncomingMessage
from sqlqueue_app.messages.headers import Intent

OPENTELEMETRY = "opentelemetry.trace"
"""The module that a process imports to set a tracer provider: while it is not in `sys.modules` there is none."""

# OpenTelemetry creates the provider that this variable names when a provider is first needed.
_PROVIDER_OF_ENVIRONMENT = bool(os.environ.get("OTEL_PYTHON_TRACER_PROVIDER"))


class Tracing(Protocol):
    """What OpenTelemetry does for us."""

    provider: Callable[[], object]
    """Returns None while no tracer provider is set; any other result means: ask `is_on`. A C function, so that it costs little."""

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


def tracer_provider() -> Callable[[], object] | None:
    """A cheap test for hot paths: while it returns None, `tracing()` is None. None itself where OpenTelemetry is not installed."""
    installed = _installed()
    return None if installed is None else installed.provider


def tracing() -> Tracing | None:
    """The maker of spans; None without a tracer provider. Imports OpenTelemetry only if the environment names a provider."""
    if OPENTELEMETRY not in sys.modules and not _PROVIDER_OF_ENVIRONMENT:
        return None
    installed = _installed()
    return installed if installed is not None and installed.is_on() else None
