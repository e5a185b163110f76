"""OpenTelemetry spans; the only module that imports it. Uses W3C headers, as NServiceBus writes and reads them.

Names and attributes follow the semantic conventions for messaging.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial

from opentelemetry import context as contexts, trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanKind, Tracer, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from sqlqueue_app import __version__
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.envelope import IncomingMessage
from sqlqueue_app.messages.headers import Intent

SYSTEM = "sqlqueue"
_TRACE = TraceContextTextMapPropagator()
_BAGGAGE = W3CBaggagePropagator()
# As core 10 writes it (docs/internals/wire.md#headers): the handler of a command continues the trace, each subscriber
# starts its own.
_STARTS_NEW_TRACE = {Intent.SEND: "False", Intent.PUBLISH: "True"}

# Names a provider that OpenTelemetry creates on first use.
_BY_ENVIRONMENT = bool(os.environ.get("OTEL_PYTHON_TRACER_PROVIDER"))
_PROVIDER: Callable[[], object] = object if _BY_ENVIRONMENT else partial(getattr, trace, "_TRACER_PROVIDER", "unknown")


class OpenTelemetry:
    """Creates spans. Has no state except what OpenTelemetry keeps for the process and the thread."""

    provider = staticmethod(_PROVIDER)
    """Returns None while no tracer provider is set; otherwise check `is_on`. A C function, because it is called often."""

    def is_on(self) -> bool:
        """Whether the process has set a tracer provider. Called for each message: almost free without one."""
        # The public function reads the environment on each call, and creates a proxy.
        if self.provider() is None:
            return False
        return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)

    @contextmanager
    def processing(self, incoming: IncomingMessage, *, endpoint: str, queue: str, attempt: int) -> Iterator[None]:
        """Open a consumer span under the sender's, or in a new trace linked to the sender's span if the message requests that."""
        context, links = _sent_in(incoming)
        attributes: dict[str, str | int | list[str]] = {
            **_attributes("process", queue),
            "messaging.message.id": incoming.message_id,
            "messaging.message.body.size": len(incoming.body),
            "sqlqueue.endpoint": endpoint,
            "sqlqueue.attempt": attempt,
            "sqlqueue.message_types": incoming.message_types,
        }
        if incoming.conversation_id is not None:
            attributes["messaging.message.conversation_id"] = incoming.conversation_id
        token = contexts.attach(context)
        try:
            with _tracer().start_as_current_span(
                f"process {queue}", kind=SpanKind.CONSUMER, attributes=attributes, links=links
            ) as span:
                try:
                    yield
                except BaseException as error:
                    span.set_attribute("error.type", f"{type(error).__module__}.{type(error).__qualname__}")
                    raise
        finally:
            contexts.detach(token)

    def sent(self, sent_to: str, *, intent: Intent, message_type: str | None, message_id: str | None) -> dict[str, str | None]:
        """The headers of a producer span, which ends at once: messages are collected and written later.

        `message_id` is None for the span of several messages.
        """
        operation = "publish" if intent is Intent.PUBLISH else "send"
        attributes = {**_attributes(operation, sent_to), "messaging.operation.type": "send"}
        if message_id is not None:
            attributes["messaging.message.id"] = message_id
        if message_type is not None:
            attributes["sqlqueue.message_types"] = [message_type]
        span = _tracer().start_span(f"{operation} {sent_to}", kind=SpanKind.PRODUCER, attributes=attributes)
        span.end()
        carrier: dict[str, str] = {}
        context = trace.set_span_in_context(span)
        _TRACE.inject(carrier, context)
        _BAGGAGE.inject(carrier, context)
        found: dict[str, str | None] = {name: carrier[name] for name in names.TRACE_CONTEXT if name in carrier}
        if names.TRACE_PARENT in found and (starts := _STARTS_NEW_TRACE.get(intent)) is not None:
            found[names.START_NEW_TRACE] = starts
        return found


def _sent_in(incoming: IncomingMessage) -> tuple[Context, list[Link]]:
    """The context of the message's sender, and the spans to link to."""
    carrier = {name: value for name in names.TRACE_CONTEXT if (value := incoming.headers.get(name))}
    baggage = _BAGGAGE.extract(carrier, Context())
    context = _TRACE.extract(carrier, baggage)
    if (incoming.headers.get(names.START_NEW_TRACE) or "").lower() != "true":
        return context, []
    sender = trace.get_current_span(context).get_span_context()
    return baggage, [Link(sender)] if sender.is_valid else []


def _attributes(operation: str, queue: str) -> dict[str, str | int | list[str]]:
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": queue,
    }


def _tracer() -> Tracer:
    return _tracer_of(trace.get_tracer_provider())


@lru_cache(maxsize=1)
def _tracer_of(provider: TracerProvider) -> Tracer:
    return provider.get_tracer("sqlqueue", __version__)
