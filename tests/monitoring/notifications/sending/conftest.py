"""What the tests of sending have: a clock that receivers believe, a real receiver of HTTP, rules in a database."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from django.core import mail
from django.test import override_settings

from tests.monitoring.notifications.rules import Clock, Receiver
from tests.monitoring.notifications.sending.deliveries import ADMIN
from tests.support.databases import QueueDatabase
from tests.support.filling import install
from tests.support.mail import mail_settings


@pytest.fixture
def clock() -> Clock:
    # receivers refuse what was signed long ago
    found = Clock()
    found.now = datetime.now(UTC).replace(microsecond=0)
    return found


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver().running() as found:
        yield found


@pytest.fixture
def database(queue_database: QueueDatabase) -> Iterator[QueueDatabase]:
    """A database of rules; mail goes to memory, also in Django 6.1, where mailers say so."""
    install(queue_database, ADMIN_URL=ADMIN)
    memory = "django.core.mail.backends.locmem.EmailBackend"
    with override_settings(**mail_settings(memory)):
        mail.outbox = []
        yield queue_database
