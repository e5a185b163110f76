"""Rules that send, and one notification of such a rule."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler
from typing import Any

from sqlqueue_app.conf import get_settings
from sqlqueue_app.models import NotificationDelivery, NotificationRule
from sqlqueue_app.monitoring.notifying import NotificationSender
from sqlqueue_app.monitoring.rules import Evaluator
from sqlqueue_app.receiving.stopping import StopSignal
from tests.monitoring.notifications.rules import Clock, Receiver, rule, sample

ADMIN = "https://ops.example.com/admin/"
# Long enough for a request on a busy machine.
SMALL = 1.0


def webhook(clock: Clock, receiver: Receiver, **values: Any) -> NotificationRule:
    return rule(clock, **{"channel": "webhook", "target": receiver.url(), "throttle_seconds": 0, **values})


def deliver(clock: Clock, waiting: int = 11, queue: str = "Sales", **sender: Any) -> NotificationDelivery:
    """Trigger a rule and try the delivery once."""
    sample(clock, queue, waiting)
    Evaluator(get_settings(), now=clock).evaluate()
    NotificationSender(get_settings(), now=clock, **sender).send_due(StopSignal())
    return NotificationDelivery.objects.latest("created_at", "pk")


def slow(receiver: Receiver) -> Any:
    """An answer that waits until the test releases it."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        receiver.released.wait(60)

    return answer
