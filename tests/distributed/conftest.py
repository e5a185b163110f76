"""Queues on each product, and other databases of the project beside them, which handlers write to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest
from django.db import connections
from psycopg import sql

from tests.receiving.conftest import Bench
from tests.receiving.conftest import bench as bench
from tests.receiving.conftest import calls as calls
from tests.receiving.conftest import events as events
from tests.receiving.conftest import handler_registry as handler_registry
from tests.receiving.conftest import postgresql_bench as postgresql_bench
from tests.support.databases import DatabaseSession, QueueDatabase
from tests.support.provisioning import PostgresqlProvider


@dataclass(frozen=True)
class OtherDatabase:
    """A PostgreSQL database with a table of effects, under an alias that tests and child processes know."""

    alias: str
    provider: PostgresqlProvider
    database: str

    def write(self, effect: str) -> None:
        """In the transaction of the alias, if there is one."""
        with connections[self.alias].cursor() as cursor:
            cursor.execute("INSERT INTO effects (name) VALUES (%s)", [effect])

    def count(self) -> int:
        with connections[self.alias].cursor() as cursor:
            cursor.execute("SELECT count(*) FROM effects")
            return int(cursor.fetchone()[0])

    def effects(self) -> list[str]:
        """What is committed, seen from outside."""
        with self.provider.server.connect(self.database) as outside:
            return [str(row[0]) for row in outside.execute("SELECT name FROM effects ORDER BY name")]

    def prepared(self) -> list[str]:
        with self.provider.server.connect(self.database) as outside:
            found = outside.execute("SELECT gid FROM pg_prepared_xacts WHERE database = current_database() ORDER BY prepared")
            return [str(row[0]) for row in found]

    def sessions(self) -> int:
        with self.provider.server.connect() as outside:
            found = outside.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = %s", [self.database])
            return int(str(found.fetchall()[0][0]))

    def cut(self) -> None:
        """End all sessions of the alias, as a server does that is stopped; they are gone when this returns."""
        with self.provider.server.connect() as outside:
            outside.execute("SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = %s", [self.database])


@contextmanager
def other_database(provider: PostgresqlProvider, alias: str) -> Iterator[OtherDatabase]:
    """A database of its own on the server of the tests; nothing may be left prepared in it."""
    name = f"{provider.database}_{alias}"
    settings = {**connections.settings[provider.alias], **provider.server.settings(name)}
    with provider.server.connect() as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    made = OtherDatabase(alias, provider, name)
    connections.settings[alias] = settings
    try:
        with provider.server.connect(name) as inside:
            inside.execute("CREATE TABLE effects (name text NOT NULL UNIQUE DEFERRABLE INITIALLY DEFERRED)")
        yield made
        assert made.prepared() == []
    finally:
        connections[alias].close()
        del connections[alias], connections.settings[alias]
        with provider.server.connect(name) as inside:
            for (gid,) in inside.execute("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()").fetchall():
                inside.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(gid)))
        with provider.server.connect() as admin:
            admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


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
    with ExitStack() as stack:
        yield stack.enter_context(other_database(provider, "third"))
