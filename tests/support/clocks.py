"""Clocks that a test can set forward and back: that of this process, and that of its database."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta, tzinfo
from types import ModuleType
from typing import Any

import apscheduler.schedulers.base
import pytest
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

import sqlqueue_app.receiving.background
import sqlqueue_app.sending.composer
import sqlqueue_app.status.overview
from tests.support.databases import QueueDatabase

# Our modules, and those acting for us, that read the time.
_ASKING: tuple[ModuleType, ...] = (
    apscheduler.schedulers.base,
    sqlqueue_app.receiving.background,
    sqlqueue_app.sending.composer,
    sqlqueue_app.status.overview,
)

_CREATE = """
CREATE SCHEMA test_clock;
CREATE TABLE test_clock.ahead (by interval NOT NULL);
INSERT INTO test_clock.ahead VALUES (interval '0')
"""
_FUNCTION = """
CREATE FUNCTION test_clock.{name}() RETURNS timestamptz LANGUAGE sql AS
'SELECT pg_catalog.clock_timestamp() + by FROM test_clock.ahead'
"""
_NAMES = ("clock_timestamp", "now", "statement_timestamp")


class ProcessClock:
    """The wall clock of this process; the monotonic clock is unaffected."""

    def __init__(self) -> None:
        self.ahead = timedelta()

    def put(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have all these modules use this clock."""
        clock = self

        class Shifted(datetime):
            @classmethod
            def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
                return datetime.now(tz) + clock.ahead

        for module in _ASKING:
            monkeypatch.setattr(module, "datetime", Shifted)


class DatabaseClock:
    """The clock of a real database for all new connections; SQLite uses that of the querying process."""

    def __init__(self, database: QueueDatabase) -> None:
        self._database = database
        self._ahead = timedelta()

    def jump(self, by: timedelta) -> None:
        """Set it forward or back."""
        self._ahead += by
        if self._database.vendor == "postgresql":
            with self._database.connection.cursor() as cursor:
                cursor.execute("UPDATE test_clock.ahead SET by = make_interval(secs => %s)", [self._ahead.total_seconds()])

    @contextmanager
    def running(self) -> Iterator[None]:
        """Statements in the block see this clock. Skips the test on SQL Server, where GETUTCDATE() cannot be replaced."""
        if self._database.vendor == "sqlserver":
            pytest.skip("the clock of SQL Server cannot be replaced")
        if self._database.vendor == "postgresql":
            with self._database.connection.cursor() as cursor:
                cursor.execute(_CREATE)
                for name in _NAMES:
                    cursor.execute(_FUNCTION.format(name=name))
        connection_created.connect(self._opened)
        self._database.connection.close()
        try:
            yield
        finally:
            connection_created.disconnect(self._opened)
            connections.close_all()

    def _opened(self, connection: BaseDatabaseWrapper, **_: Any) -> None:
        if connection.alias != self._database.alias:
            return
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                # Functions of a schema listed before pg_catalog take precedence.
                cursor.execute("SET search_path TO public, test_clock, pg_catalog")
            return
        for name in ("strftime", "julianday"):
            connection.connection.create_function(name, -1, _of_sqlite(name, self))

    def now(self) -> str:
        """The time in the form that SQLite reads."""
        return (datetime.now(UTC) + self._ahead).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


_lock = threading.Lock()


def _of_sqlite(name: str, clock: DatabaseClock) -> Any:
    """SQLite's own function with a different `now`."""

    def call(*arguments: Any) -> Any:
        values = [clock.now() if isinstance(each, str) and each.lower() == "now" else each for each in arguments]
        with _lock, closing(sqlite3.connect(":memory:")) as real:
            return real.execute(f"SELECT {name}({', '.join('?' for _ in values)})", values).fetchone()[0]

    return call
