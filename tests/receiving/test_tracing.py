"""Traces across messages: forwarded headers, and spans if a tracer provider of OpenTelemetry is set."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from sqlqueue_app import handles, publish, send, send_many
from tests.support.bench import Bench, Calls
from tests.support.databases import ROOT

TRACE = "0af7651916cd43dd8448eb211c80319c"
SENT = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01", "tracestate": "vendor=1", "baggage": "tenant=acme"}


@pytest.fixture
def forwarding(bench: Bench) -> Bench:
    """A handler that sends in every possible way."""
    bench.configure(routes={"Test.Out": "out"})
    bench.install_queues("out")

    @handles("Test.Message")
    def handle(message: Any, context: Any) -> None:
        context.send("Test.Out", {})
        context.reply("Test.Out", {})
        send("Test.Out", {})
        send_many([("Test.Out", {})])

    return bench


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """A tracer provider for this test alone: OpenTelemetry lets a process set one only once."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource({}), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield exporter
    provider.shutdown()


def test_headers_are_copied_without_a_provider(forwarding: Bench) -> None:
    forwarding.put_message("Test.Message", None, **SENT, **{"NServiceBus.ReplyToAddress": "out"})
    forwarding.run()
    sent = forwarding.headers("out")
    assert len(sent) == 4
    for headers in sent:
        assert {name: headers.get(name) for name in SENT} == SENT
        assert "NServiceBus.OpenTelemetry.StartNewTrace" not in headers


def test_request_for_a_new_trace_is_copied(forwarding: Bench) -> None:
    wanted = {**SENT, "NServiceBus.OpenTelemetry.StartNewTrace": "True"}
    forwarding.put_message("Test.Message", None, **wanted, **{"NServiceBus.ReplyToAddress": "out"})
    forwarding.run()
    assert [headers["NServiceBus.OpenTelemetry.StartNewTrace"] for headers in forwarding.headers("out")] == ["True"] * 4


def test_no_trace_is_invented(forwarding: Bench) -> None:
    forwarding.put_message("Test.Message", None, **{"NServiceBus.ReplyToAddress": "out", "tracestate": "alone=1"})
    forwarding.run()
    assert [set(headers) & {*SENT, "NServiceBus.OpenTelemetry.StartNewTrace"} for headers in forwarding.headers("out")] == [
        set()
    ] * 4


@pytest.mark.parametrize("traced", [False, True])
def test_headers_of_the_caller_win(bench: Bench, spans: InMemorySpanExporter, monkeypatch: Any, traced: bool) -> None:
    if not traced:
        monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    bench.install_queues("out")
    own = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}

    @handles("Test.Message")
    def handle(message: Any, context: Any) -> None:
        context.send("Test.Out", {}, to="out", headers=own)

    bench.put_message("Test.Message", None, **SENT)
    bench.run()
    (headers,) = bench.headers("out")
    assert headers["traceparent"] == own["traceparent"]
    assert "tracestate" not in headers


def by_kind(exporter: InMemorySpanExporter, kind: SpanKind) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.kind is kind]


def test_attempt_and_sends_have_spans_in_the_senders_trace(forwarding: Bench, spans: InMemorySpanExporter) -> None:
    forwarding.put_message(
        "Test.Message",
        None,
        **SENT,
        **{"NServiceBus.ReplyToAddress": "out", "NServiceBus.MessageId": "m", "NServiceBus.ConversationId": "c"},
    )
    forwarding.run()
    (process,) = by_kind(spans, SpanKind.CONSUMER)
    assert process.name == "process Sales"
    assert process.parent is not None
    assert f"{process.parent.trace_id:032x}-{process.parent.span_id:016x}" in SENT["traceparent"]
    assert dict(process.attributes or {}) == {
        "messaging.system": "sqlqueue",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "Sales",
        "messaging.message.id": "m",
        "messaging.message.conversation_id": "c",
        "messaging.message.body.size": 2,
        "sqlqueue.endpoint": "Sales",
        "sqlqueue.attempt": 1,
        "sqlqueue.message_types": ("Test.Message",),
    }
    produced = by_kind(spans, SpanKind.PRODUCER)
    assert [span.name for span in produced] == ["send out"] * 4
    assert {span.parent.span_id for span in produced if span.parent} == {process.context.span_id}
    sent = forwarding.headers("out")
    written = {headers["traceparent"] for headers in sent}
    assert written == {f"00-{TRACE}-{span.context.span_id:016x}-01" for span in produced}
    assert all((headers["tracestate"], headers["baggage"]) == ("vendor=1", "tenant=acme") for headers in sent)
    assert sorted(headers.get("NServiceBus.OpenTelemetry.StartNewTrace", "none") for headers in sent) == [*["False"] * 3, "none"]
    ids = {
        span.attributes["messaging.message.id"]
        for span in produced
        if span.attributes and "messaging.message.id" in span.attributes
    }
    assert ids < {headers["NServiceBus.MessageId"] for headers in sent}
    assert len(ids) == 3  # several messages of send_many() share a span


def test_new_trace_on_request_links_to_the_senders_trace(bench: Bench, spans: InMemorySpanExporter, calls: Calls) -> None:
    handles("Test.Message")(lambda message, context: calls.add(baggage.get_baggage("tenant")))
    bench.put_message("Test.Message", None, **SENT, **{"NServiceBus.OpenTelemetry.StartNewTrace": "True"})
    bench.run()
    (process,) = by_kind(spans, SpanKind.CONSUMER)
    assert process.parent is None
    assert [f"{link.context.trace_id:032x}" for link in process.links] == [TRACE]
    assert f"{process.context.trace_id:032x}" != TRACE
    assert calls.seen == ["acme"]


def test_failure_marks_its_span_and_restores_the_thread_context(bench: Bench, spans: InMemorySpanExporter, calls: Calls) -> None:
    bench.configure(IMMEDIATE_RETRIES=1, MAX_CONCURRENCY=1)

    @handles("Test.Message")
    def handle(message: Any, context: Any) -> None:
        raise ValueError("no")

    handles("Test.After")(lambda message, context: calls.add(trace.get_current_span().get_span_context().trace_id))
    bench.put_message("Test.Message", None, **SENT)
    bench.run()
    bench.put_message("Test.After")
    bench.run()
    first, second, after = by_kind(spans, SpanKind.CONSUMER)
    for span, attempt in ((first, 1), (second, 2)):
        assert span.status.status_code is StatusCode.ERROR
        assert span.attributes is not None
        assert (span.attributes["error.type"], span.attributes["sqlqueue.attempt"]) == ("builtins.ValueError", attempt)
        assert [event.name for event in span.events] == ["exception"]
    assert after.parent is None
    assert calls.seen == [after.context.trace_id]


def test_plain_send_belongs_to_the_span_of_its_caller(bench: Bench, spans: InMemorySpanExporter) -> None:
    tracer = trace.get_tracer("test")
    token = context.attach(baggage.set_baggage("tenant", "acme"))
    try:
        with tracer.start_as_current_span("request") as request:
            send("Test.Message", {}, to="Sales")
    finally:
        context.detach(token)
    (produced,) = by_kind(spans, SpanKind.PRODUCER)
    assert produced.parent is not None
    assert produced.parent.span_id == request.get_span_context().span_id
    (headers,) = bench.headers("Sales")
    assert headers["traceparent"].split("-")[2] == f"{produced.context.span_id:016x}"
    assert headers["baggage"] == "tenant=acme"


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a fresh interpreter with the settings of the tests."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_process_without_opentelemetry_can_send() -> None:
    code = (
        "import sys\n"
        "import sqlqueue_app.sending.composer as composer\n"
        "import sqlqueue_app.sending.tracing as tracing\n"
        "assert not any(name.startswith('opentelemetry') for name in sys.modules)\n"
        "sys.modules['opentelemetry'] = None\n"
        "assert tracing.tracing() is None\n"
    )
    done = python(code)
    assert done.returncode == 0, done.stderr


COMPOSE = """
import sys
import django
django.setup()
from sqlqueue_app.conf import Settings
from sqlqueue_app.messages.addresses import AddressBook
from sqlqueue_app.sending.composer import Composer, sender_identity

book = AddressBook("sqlite")
composer = Composer(Settings(routes={"Test.*": "Sales"}), book, sender_identity(None, book))
print("traceparent" in composer.compose("Test.Message").headers, "opentelemetry.trace" in sys.modules)
"""


def test_sending_does_not_import_opentelemetry() -> None:
    done = python(COMPOSE)
    assert (done.stdout.split(), done.stderr) == (["False", "False"], "")


def test_provider_from_the_environment_is_used() -> None:
    done = python(COMPOSE, OTEL_PYTHON_TRACER_PROVIDER="sdk_tracer_provider")
    assert (done.stdout.split(), done.stderr) == (["True", "True"], "")


def test_each_subscriber_begins_a_trace_linked_to_the_publishers(bench: Bench, spans: InMemorySpanExporter, calls: Calls) -> None:
    handles("Test.Event")(lambda message, context: calls.add(message))
    bench.run()  # subscribes
    publish("Test.Event", {})
    (headers,) = bench.headers("Sales")
    assert headers["NServiceBus.OpenTelemetry.StartNewTrace"] == "True"
    bench.run()
    (published,) = by_kind(spans, SpanKind.PRODUCER)
    (process,) = by_kind(spans, SpanKind.CONSUMER)
    assert published.name == "publish Test.Event"
    assert process.parent is None
    assert [link.context.span_id for link in process.links] == [published.context.span_id]
