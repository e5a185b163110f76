"""Queues on each product, and other databases of the project that handlers write to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest

from sqlqueue_app.conf import get_settings
from sqlqueue_app.monitoring.check_results import CheckRunner, ProcessChecks
from sqlqueue_app.status.in_doubt import InDoubt
from sqlqueue_app.tables.connections import database_now
from tests.support.bench import Bench
from tests.support.databases import DatabaseSession, QueueDatabase
from tests.support.other_databases import OtherDatabase as OtherDatabase, made_beside
from tests.support.provisioning import PostgresqlProvider


@contextmanager
def other_database(provider: PostgresqlProvider, alias: str) -> Iterator[OtherDatabase]:
    """Create a separate database on the test server, and assert that no prepared transaction is left in it."""
    with made_beside(provider, alias, unique=True) as made:
        yield made
        assert made.prepared() == []


@pytest.fixture
def provider(queue_database: QueueDatabase, database_session: DatabaseSession) -> PostgresqlProvider:
    found = database_session.provider("postgresql")
    assert isinstance(found, PostgresqlProvider)
    return found


@pytest.fixture
def second(bench: Bench, provider: PostgresqlProvider) -> Iterator[OtherDatabase]:
    with other_database(provider, "second") as made:
        yield made


@pytest.fixture
def third(bench: Bench, provider: PostgresqlProvider) -> Iterator[OtherDatabase]:
    with other_database(provider, "third") as made:
        yield made


def run_checks(bench: Bench, in_doubt: InDoubt, *, minutes: int) -> list[str]:
    """Run the checks that are due when all clocks are this many minutes ahead. Returns their names."""
    at = database_now(bench.database.alias) + timedelta(minutes=minutes)
    own = ProcessChecks(bench.database.alias)
    return list(CheckRunner(get_settings(), own, in_doubt, now=lambda: at, local=lambda: at).run_due())


@pytest.fixture
def no_background_resolution(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the job of the worker, which would remove log entries that tests count. `test_in_doubt.py` tests it."""
    monkeypatch.setattr(InDoubt, "jobs", lambda self: [])


def reasons(bench: Bench) -> list[str]:
    """The error messages of the rows in the error queue."""
    return [headers["NServiceBus.ExceptionInfo.Message"] for headers in bench.headers("error")]
