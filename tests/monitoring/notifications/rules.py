"""Rules, clocks and receivers for tests of notifications."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from sqlqueue_app.models import NotificationDelivery, NotificationRule, QueueSample
from sqlqueue_app.monitoring.rules import RuleValues, create_rule
from tests.support.waiting import join_all

START = datetime(2026, 11, 21, 12, 0, 3, tzinfo=UTC)
SECOND = timedelta(seconds=1)
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now

    def after(self, seconds: float) -> None:
        self.now += seconds * SECOND


def rule(clock: Clock, *, secret: str = SECRET, **values: Any) -> NotificationRule:
    """A rule, by default for queues longer than 10, which sends a mail at most once in five minutes."""
    known: dict[str, Any] = {
        "name": "a rule",
        "kind": "queue_longer",
        "threshold": 10.0,
        "channel": "mail",
        "target": "ops@example.com",
    }
    return create_rule(RuleValues(**{**known, **values}), secret, by="anna", now=clock)


def sample(clock: Clock, queue: str = "Sales", waiting: int = 0, **more: Any) -> None:
    """Store a present sample of a queue."""
    begin = datetime.fromtimestamp(clock.now.timestamp() // 10 * 10, UTC)
    values = {"waiting": waiting, "most_waiting": waiting, **more}
    QueueSample.objects.update_or_create(queue=queue, seconds=10, taken_at=begin, defaults=values)


def sent_changes() -> list[list[tuple[str, str]]]:
    """The changes of each notification as pairs of change and subject, oldest first."""
    found = NotificationDelivery.objects.order_by("created_at", "pk")
    return [[(each["change"], each["subject"]) for each in row.payload["changes"]] for row in found]


@dataclass
class Receiver:
    """An HTTP server that keeps its requests and answers with a status or by a function of the handler."""

    answer: int | Callable[[BaseHTTPRequestHandler], None] = 204
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)
    port: int = 0

    def url(self, path: str = "/hook?token=s3cret") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    @contextmanager
    def running(self) -> Iterator[Receiver]:
        """Listen inside the block; its end sets `released` for answers that wait for it."""
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.requests.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
                if callable(receiver.answer):
                    receiver.answer(self)
                    return
                self.send_response(receiver.answer)
                self.end_headers()

            def do_GET(self) -> None:
                receiver.requests.append((self.path, {}, b""))
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = False

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # the client has closed the connection

        with Server(("127.0.0.1", 0), Handler) as server:
            self.port = server.server_port
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, name="receiver")
            thread.start()
            try:
                yield self
            finally:
                self.released.set()
                server.shutdown()
                join_all([thread])


def state(made: NotificationRule) -> NotificationRule:
    """The rule as stored now."""
    return NotificationRule.objects.get(pk=made.pk)
