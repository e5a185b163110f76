"""Fixtures that give each test a clean, real database.

`queue_database` runs a test once on each product; a test for one product uses `sqlite_database` or `postgresql_database`. None
wraps the test in a transaction, so threads and child processes see what the test does. Do not combine them with pytest-django's
`db`: other connections cannot see into its transaction.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from pytest_django import DjangoDbBlocker, Settings

from tests.support import leaks, postgresql
from tests.support.directories import ROOT as ROOT, directory_for_databases
from tests.support.provisioning import PostgresqlProvider, Provider, SqliteProvider, SqlServerProvider, configured


@dataclass(frozen=True, slots=True)
class QueueDatabase:
    """The database of one test, with SQLQUEUE pointing to it.

    `vendor` is the dialect's name: "sqlite", "postgresql" or "sqlserver".
    """

    alias: str
    vendor: str
    settings: Settings
    provider: Provider

    @property
    def connection(self) -> BaseDatabaseWrapper:
        """Django's connection of the calling thread. Each thread that uses it must close it (`connections.close_all()`)."""
        return connections[self.alias]

    def configure(self, **sqlqueue: Any) -> None:
        """Change keys of the SQLQUEUE setting until the test ends: `configure(ENDPOINTS={"Sales": {}})`."""
        self.settings.SQLQUEUE = {**self.settings.SQLQUEUE, **sqlqueue}

    def child_environment(self, **variables: str) -> dict[str, str]:
        """The environment for a Python process that uses this database and these settings.

        For `subprocess.Popen([sys.executable, "-m", "django", "run_sqlqueue_worker"], env=…)`. Handlers of a test module are
        found if SQLQUEUE names the module.
        """
        seen = {"DATABASES": dict(connections.settings), "SQLQUEUE": self.settings.SQLQUEUE, "STORAGES": self.settings.STORAGES}
        return {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.settings",
            "PYTHONPATH": str(ROOT),
            "SQLQUEUE_TEST_CHILD": json.dumps(seen, default=_plain),
            **variables,
        }

    def catalog(self) -> str | None:
        """The name of the database, the last part of addresses on SQL Server; None on other products."""
        return self.connection.settings_dict["NAME"] if self.vendor == "sqlserver" else None

    def create_role(self, name: str) -> str:
        """PostgreSQL: create a role that may log in but has no rights, and return its name. Dropped after the test."""
        return self._postgresql().create_role(name)

    def as_role(self, role: str) -> AbstractContextManager[None]:
        """PostgreSQL: connections of this alias log in as the role inside the `with` block."""
        return self._postgresql().as_role(role)

    def sessions(self) -> list[str]:
        """PostgreSQL and SQL Server: the current sessions of this database, one line each; see `sessions` of its provider."""
        assert isinstance(self.provider, PostgresqlProvider | SqlServerProvider), "a file has no sessions"
        return self.provider.sessions()

    def _postgresql(self) -> PostgresqlProvider:
        assert isinstance(self.provider, PostgresqlProvider), f"only PostgreSQL can do this, not {self.vendor}"
        return self.provider


def _plain(value: object) -> object:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"a child process cannot be given {value!r}")


class DatabaseSession:
    """The databases of one pytest session; each server starts when the first test needs it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._providers: dict[str, Provider] = {}

    def provider(self, vendor: str) -> Provider:
        if vendor not in self._providers:
            self._providers[vendor] = self._make(vendor)
        return self._providers[vendor]

    def _make(self, vendor: str) -> Provider:
        if vendor == "sqlite":
            return SqliteProvider(self._directory)
        if vendor == "postgresql":
            return PostgresqlProvider(postgresql.get_server())
        return SqlServerProvider()

    def end(self) -> None:
        for provider in self._providers.values():
            provider.end()


@pytest.fixture(scope="session")
def database_session(django_db_blocker: DjangoDbBlocker) -> Iterator[DatabaseSession]:
    directory = directory_for_databases("sqlq-sqlite-")
    session = DatabaseSession(directory)
    yield session
    with django_db_blocker.unblock():
        session.end()
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def django_db_setup(django_test_environment: None, database_session: DatabaseSession, django_db_blocker: DjangoDbBlocker) -> None:
    """The database of pytest-django's `db`: a migrated SQLite file, kept for the session."""
    with django_db_blocker.unblock():
        database_session.provider("sqlite").prepare()


def _note(left: list[str], undo: Callable[[], list[str]]) -> None:
    left += undo()


def _close_connections() -> list[str]:
    """Close the connections of this thread; returns what was left open in them."""
    left = leaks.open_transactions()
    for connection in connections.all(initialized_only=True):
        if connection.in_atomic_block:
            # the test fails because of it; the next one must not inherit its transaction
            connection.in_atomic_block = False
        connection.close()
    return left


@contextmanager
def open_database(vendor: str, session: DatabaseSession, settings: Settings, blocker: DjangoDbBlocker) -> Iterator[QueueDatabase]:
    """A clean database of a product, with a clean `default` beside it for Django's own tables."""
    if connections["default"].in_atomic_block:
        pytest.fail("a database fixture of tests.support.databases cannot be combined with `db` or `admin_client`")
    kept_for_db = connections.settings["default"]["NAME"]
    providers = [session.provider(name) for name in dict.fromkeys(("sqlite", vendor))]
    with blocker.unblock():
        left: list[str] = []
        with ExitStack() as undone:
            undone.callback(connections.settings["default"].__setitem__, "NAME", kept_for_db)
            # If anything fails from here on, undo the earlier steps, or the next test would find their results.
            for provider in providers:
                provider.prepare()
                undone.callback(_note, left, provider.discard)
            undone.callback(_note, left, _close_connections)
            alias = configured()[vendor]
            settings.SQLQUEUE = {**settings.SQLQUEUE, "DATABASE": alias}
            yield QueueDatabase(alias, vendor, settings, providers[-1])
    if left:
        pytest.fail("the test left something behind:\n" + "\n".join(left), pytrace=False)


@pytest.fixture(params=list(configured()))
def queue_database(
    request: pytest.FixtureRequest,
    database_session: DatabaseSession,
    settings: Settings,
    django_db_blocker: DjangoDbBlocker,
) -> Iterator[QueueDatabase]:
    """A clean database with the app's managed tables and no queue; the test runs once on each product."""
    with open_database(request.param, database_session, settings, django_db_blocker) as database:
        yield database


def _database_of(vendor: str) -> Any:
    """A fixture like queue_database for one product."""

    @pytest.fixture
    def database(
        database_session: DatabaseSession, settings: Settings, django_db_blocker: DjangoDbBlocker
    ) -> Iterator[QueueDatabase]:
        with open_database(vendor, database_session, settings, django_db_blocker) as found:
            yield found

    return database


sqlite_database = _database_of("sqlite")
postgresql_database = _database_of("postgresql")
# For tests that are skipped unless a SQL Server is named.
sqlserver_database = _database_of("sqlserver")


@pytest.fixture
def postgresql_server(postgresql_database: QueueDatabase) -> postgresql.ThrowAwayServer:
    """The server itself, for tests that stop() and start() it. Skips the test on a given server, which we must not stop."""
    server = postgresql_database._postgresql().server
    if not isinstance(server, postgresql.ThrowAwayServer):
        pytest.skip(f"the server of {postgresql.URL_VARIABLE} is not ours to stop")
    return server
