"""Test helpers for projects: assertions, draining, queues in memory."""

from __future__ import annotations

from sqlqueue_app.testing.asserting import SentMessage, assert_not_sent, assert_sent, failed, sent
from sqlqueue_app.testing.draining import Drained, drain
from sqlqueue_app.testing.memory import FakeClock, FakeContext, InMemoryEndpoint, subscribed

__all__ = [
    "assert_sent",
    "assert_not_sent",
    "sent",
    "failed",
    "drain",
    "subscribed",
    "Drained",
    "SentMessage",
    "InMemoryEndpoint",
    "FakeClock",
    "FakeContext",
]
