"""For the tests of a project that sends and handles messages."""

from __future__ import annotations

from sqlqueue_app.testing.asserting import assert_not_sent, assert_sent
from sqlqueue_app.testing.clock import FakeClock
from sqlqueue_app.testing.draining import drain
from sqlqueue_app.testing.fake_context import FakeContext
from sqlqueue_app.testing.memory import InMemoryEndpoint
from sqlqueue_app.testing.messages import SentMessage
from sqlqueue_app.testing.processors import Drained
from sqlqueue_app.testing.sent import failed, sent
from sqlqueue_app.testing.subscribing import subscribed

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
