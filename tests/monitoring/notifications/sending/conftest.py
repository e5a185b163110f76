"""Fixtures of the sending tests: a clock with the present time, a real HTTP receiver, rules in a database."""

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
    # receivers refuse old signatures
    found = Clock()
    found.now = datetime.now(UTC).replace(microsecond=0)
    return found


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver().running() as found:
        yield found


@pytest.fixture
def database(queue_database: QueueDatabase) -> Iterator[QueueDatabase]:
    """A database of rules; mail goes to memory, in Django 6.1 by the setting for mailers."""
    install(queue_database, ADMIN_URL=ADMIN)
    memory = "django.core.mail.backends.locmem.EmailBackend"
    with override_settings(**mail_settings(memory)):
        mail.outbox = []
        yield queue_database
