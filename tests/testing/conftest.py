"""An endpoint as in a user's own tests: inside a transaction that is rolled back at the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.db import transaction

from tests.support.bench import Bench
from tests.support.databases import QueueDatabase

ROUTES = {"Test.*": "Sales", "Billing.*": "Billing"}


@contextmanager
def as_in_testcase(alias: str) -> Iterator[None]:
    """The transaction that Django's TestCase opens around a test."""
    block = transaction.atomic(using=alias)
    block._from_testcase = True  # type: ignore[attr-defined]
    with block:
        yield
        transaction.set_rollback(True, using=alias)


@pytest.fixture
def bench(queue_database: QueueDatabase, handler_registry: None) -> Iterator[Bench]:
    """Endpoints `Sales` and `Billing`; the whole test runs in one transaction."""
    made = Bench(queue_database)
    queue_database.configure(
        ENDPOINTS={
            "Sales": {"CALLBACKS": False, "IMMEDIATE_RETRIES": 1, "DELAYED_RETRIES": 2},
            "Billing": {"CALLBACKS": False},
        },
        ROUTES=ROUTES,
        SEND_AS="Web",
    )
    made.install()
    with as_in_testcase(queue_database.alias):
        yield made
