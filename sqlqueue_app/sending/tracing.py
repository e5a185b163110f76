"""Traces across messages: the headers `traceparent`, `tracestate` and `baggage`, and spans where OpenTelemetry is in use.

Without OpenTelemetry or a tracer provider there are no spans: messages sent by a handler carry the trace headers of the handled
message unchanged (`outgoing_headers`), so that a trace does not end here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlqueue_app.sending.open_telemetry import OpenTelemetry

OPENTELEMETRY = "opentelemetry.trace"
"""The module that a process imports to set a tracer provider: while it is not in `sys.modules` there is none."""

# OpenTelemetry creates the provider that this variable names when a provider is first needed.
_PROVIDER_OF_ENVIRONMENT = bool(os.environ.get("OTEL_PYTHON_TRACER_PROVIDER"))


@cache
def _installed() -> OpenTelemetry | None:
    try:
        from sqlqueue_app.sending.open_telemetry import OpenTelemetry  # noqa: PLC0415 - optional dependency
    except ImportError:
        return None
    return OpenTelemetry()


def tracer_provider() -> Callable[[], object] | None:
    """A cheap test for hot paths: while it returns None, `tracing()` is None. None itself if OpenTelemetry is not installed."""
    installed = _installed()
    return None if installed is None else installed.provider


def tracing() -> OpenTelemetry | None:
    """The creator of spans; None without a tracer provider. Imports OpenTelemetry only if the environment names a provider."""
    if OPENTELEMETRY not in sys.modules and not _PROVIDER_OF_ENVIRONMENT:
        return None
    installed = _installed()
    return installed if installed is not None and installed.is_on() else None
