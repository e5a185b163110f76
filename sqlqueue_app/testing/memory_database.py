"""A database of queues that lives in memory as long as it is used, and goes by a clock of the test.

It is SQLite's, private to one Django connection: the statements are those that run on a file, so that nothing has to be imitated.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.apps import apps
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.sqlite3.base import DatabaseWrapper
from django.db.utils import ConnectionHandler

from sqlqueue_app.testing.clock import FakeClock

ALIAS = "sqlqueue_memory"
_SETTINGS = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:", "OPTIONS": {"transaction_mode": "IMMEDIATE"}}
_TIME_FUNCTIONS = ("strftime", "julianday")


class MemoryConnection(DatabaseWrapper):
    """A connection that test tools do not refuse: what they guard is the project's database, and this is none of it."""

    def __init__(self, settings: dict[str, Any], clock: FakeClock) -> None:
        super().__init__(settings, ALIAS)
        self._clock = clock
        self._plain = sqlite3.connect(":memory:")

    def ensure_connection(self) -> None:
        """Connect if there is no connection. pytest-django replaces Django's own by one that raises."""
        if self.connection is None:
            with self.wrap_database_errors:
                self.connect()

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        """A connection for which `now` is what the clock says."""
        connection = super().get_new_connection(conn_params)
        for name in _TIME_FUNCTIONS:
            connection.create_function(name, -1, lambda *values, name=name: self._by_the_clock(name, values))
        return connection

    def _by_the_clock(self, name: str, values: tuple[Any, ...]) -> Any:
        now = self._clock.now().strftime("%Y-%m-%d %H:%M:%S.%f")
        told = [now if value == "now" else value for value in values]
        marks = ", ".join("?" * len(told))
        return self._plain.execute(f"SELECT {name}({marks})", told).fetchone()[0]

    def close(self) -> None:
        """Close for good; Django keeps an in-memory database open otherwise, lest it be lost."""
        self._plain.close()
        raw, self.connection = self.connection, None
        if raw is not None:
            raw.close()


def make_managed_tables(connection: BaseDatabaseWrapper) -> None:
    """The tables of the app's own models, without their migrations."""
    models = [model for model in apps.get_app_config("sqlqueue_app").get_models() if model._meta.managed]
    with connection.schema_editor() as editor:
        for model in models:
            editor.create_model(model)


@contextmanager
def memory_database(clock: FakeClock) -> Iterator[MemoryConnection]:
    """While open, ALIAS is a database of the calling thread, with the tables of the app's own models and without queues.

    RuntimeError if it is open already.
    """
    if ALIAS in connections.settings:
        raise RuntimeError("an InMemoryEndpoint is open already: one at a time")
    settings = ConnectionHandler({"default": {}, ALIAS: dict(_SETTINGS)}).settings[ALIAS]
    connections.settings[ALIAS] = settings
    connection = MemoryConnection(settings, clock)
    connections[ALIAS] = connection
    try:
        make_managed_tables(connection)
        yield connection
    finally:
        connection.close()
        del connections[ALIAS]
        del connections.settings[ALIAS]
