"""Webhook receivers that refuse or stall: each attempt ends in time with the reason."""

from __future__ import annotations

import logging
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from sqlqueue_app.monitoring.notifying import DELAYS
from sqlqueue_app.monitoring.webhooks import SendFailed, post
from tests.monitoring.notifications.rules import SECRET, Clock, Receiver, rule
from tests.monitoring.notifications.sending.deliveries import SMALL, deliver, slow, webhook
from tests.support.databases import QueueDatabase
from tests.support.ports import free_port


def dripping(receiver: Receiver) -> Any:
    """An endless header, one byte at a time: no single read takes long."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
        while not receiver.released.wait(0.02):
            handler.wfile.write(b"x")

    return answer


def redirecting(receiver: Receiver) -> Any:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(302, "Found\x07")
        handler.send_header("Location", receiver.url("/elsewhere"))
        handler.end_headers()

    return answer


def closing(handler: BaseHTTPRequestHandler) -> None:
    handler.close_connection = True


def talking(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(500)
    handler.end_headers()
    handler.wfile.write(b"no \x00 luck\n" + b"x" * 100_000)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (500, "HTTP 500 Internal Server Error"),
        (404, "HTTP 404 Not Found"),
        (redirecting, "HTTP 302 Found� (redirects are not followed)"),
        (closing, "RemoteDisconnected: Remote end closed connection without response"),
        (talking, "HTTP 500 Internal Server Error: no � luck xxx"),
        (slow, f"no answer in {SMALL:g} s"),
        (dripping, f"no answer in {SMALL:g} s"),
    ],
    ids=["500", "404", "redirects", "closes", "talks", "never answers", "drips"],
)
def test_refusal_of_a_receiver_is_recorded(
    database: QueueDatabase, clock: Clock, receiver: Receiver, answer: Any, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.answer = answer(receiver) if answer in (slow, dripping, redirecting) else answer
    webhook(clock, receiver)
    with caplog.at_level(logging.INFO, "sqlqueue"):
        failed = deliver(clock, timeout=SMALL if answer in (slow, dripping) else 30.0)
    assert failed.error.startswith(expected)
    assert len(failed.error) < 300
    assert (failed.state, failed.attempts, failed.next_attempt_at) == ("waiting", 1, clock.now + DELAYS[0])
    assert [path for path, _headers, _body in receiver.requests] == ["/hook?token=s3cret"]
    (record,) = [each for each in caplog.records if getattr(each, "event", "").startswith("notification_")]
    assert (record.event, record.levelname) == ("notification_delayed", "WARNING")  # type: ignore[attr-defined]
    assert "s3cret" not in caplog.text
    assert SECRET not in caplog.text


def test_refused_connection_is_recorded(database: QueueDatabase, clock: Clock) -> None:
    rule(clock, channel="webhook", target=f"http://127.0.0.1:{free_port()}/")
    assert deliver(clock).error.startswith("ConnectionRefusedError")


def test_unknown_host_is_an_error() -> None:
    with pytest.raises(SendFailed, match="gaierror"):
        post("https://nobody.invalid/", b"", {}, timeout=30)


def test_server_without_tls_is_an_error(receiver: Receiver) -> None:
    with pytest.raises(SendFailed, match="SSLError"):
        post(receiver.url().replace("http:", "https:"), b"", {}, timeout=30)
