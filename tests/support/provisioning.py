"""A clean database for each test on each product: a copied file, a copied PostgreSQL database, a cleared SQL Server database.

Each provider migrates once per session and then provides clean databases. All run in the main thread of pytest, outside
transactions, with the database block of pytest-django disabled.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, cast

import psycopg
from django.apps import apps
from django.conf import settings
from django.core.management import call_command
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.test.utils import override_settings
from psycopg import sql

from tests.support import leaks, postgresql, sqlserver
from tests.support.waiting import poll_until


class Provider(Protocol):
    """Clean databases of one product under one alias."""

    alias: str

    def prepare(self) -> None:
        """Point the alias to a clean, migrated database."""
        ...

    def discard(self) -> list[str]:
        """Remove the database of the test. Returns a description of each session or file left open."""
        ...

    def end(self) -> None:
        """Release all resources of the session."""
        ...


def point(alias: str, **values: Any) -> None:
    """Change settings of an alias such as NAME and HOST for connections that any thread opens afterwards."""
    connections[alias].close()
    connections.settings[alias].update(values)


def migrate(alias: str) -> None:
    """Create the managed tables of Django and the app, as `migrate` does if SQLQUEUE names this alias.

    They are empty: the user groups that `migrate` creates are deleted, because many tests count groups as application rows.
    """
    with override_settings(SQLQUEUE={**settings.SQLQUEUE, "DATABASE": alias, "ENDPOINTS": {}}):
        call_command("migrate", database=alias, verbosity=0, interactive=False)
    apps.get_model("auth", "Group").objects.using(alias).all().delete()
    connections[alias].close()


class SqliteProvider:
    """A file for each test, copied from one that was migrated once."""

    alias = "default"

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._template = directory / "template.sqlite3"
        self._count = 0

    def prepare(self) -> None:
        if not self._template.exists():
            unfinished = self._template.with_name("unfinished.sqlite3")
            unfinished.unlink(missing_ok=True)
            point(self.alias, NAME=str(unfinished))
            # closing the last connection merges the write-ahead log into the file
            migrate(self.alias)
            unfinished.rename(self._template)
        self._count += 1
        file = self._directory / f"test-{self._count}.sqlite3"
        shutil.copyfile(self._template, file)
        point(self.alias, NAME=str(file))

    def discard(self) -> list[str]:
        connections[self.alias].close()
        file = Path(connections.settings[self.alias]["NAME"])
        open_files = leaks.open_files(file)
        for path in self._directory.glob(file.name + "*"):
            path.unlink()
        return [f"the SQLite file is still open in this process {len(open_files)} times"] if open_files else []

    def end(self) -> None:
        connections[self.alias].close()


class PostgresqlProvider:
    """A database for each test, copied from one that was migrated once (about 30 ms)."""

    alias = "postgresql"
    # A session ends soon after it is closed or its process is killed; on a busy machine this can take long.
    seconds_to_vanish = 30.0

    def __init__(self, server: postgresql.GivenServer | postgresql.ThrowAwayServer) -> None:
        self.server = server
        session = secrets.token_hex(4)
        self.template = f"sqlqueue_{session}_template"
        self.database = f"sqlqueue_{session}_test"
        self._roles: dict[str, str] = {}
        self._ready = False
        self._admin = server.connect()

    def prepare(self) -> None:
        if not self._ready:
            # left by a failed preparation
            self._execute("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.template)
            self._execute("CREATE DATABASE {}", self.template)
            point(self.alias, **self.server.settings(self.template))
            migrate(self.alias)
            self._ready = True
        # before 15, this is the only strategy and has no keyword
        strategy = " STRATEGY file_copy" if self._admin.info.server_version >= 15_00_00 else ""
        self._execute("CREATE DATABASE {} TEMPLATE {}" + strategy, self.database, self.template)
        point(self.alias, **self.server.settings(self.database))

    def discard(self) -> list[str]:
        connections[self.alias].close()
        self._reconnect()
        left = self._sessions_left() + self._prepared_left()
        self._execute("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.database)
        for role in self._roles:
            self._execute("DROP ROLE IF EXISTS {}", role)
        self._roles.clear()
        return left

    def end(self) -> None:
        connections[self.alias].close()
        self._reconnect()
        self._execute("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.template)
        self._admin.close()
        self.server.close()

    def create_role(self, name: str) -> str:
        """Create a role that can log in and has no privileges. Returns its full name; it is dropped after the test."""
        role = f"{self.database}_{name}"
        password = secrets.token_urlsafe(12)
        statement = sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(role), sql.Literal(password))
        self._admin.execute(statement)
        self._roles[role] = password
        return role

    @contextmanager
    def as_role(self, role: str) -> Iterator[None]:
        """Within the context, the alias logs in as a role from create_role()."""
        before = {name: connections.settings[self.alias][name] for name in ("USER", "PASSWORD")}
        point(self.alias, USER=role, PASSWORD=self._roles[role])
        try:
            yield
        finally:
            point(self.alias, **before)

    def sessions(self) -> list[str]:
        """The sessions in the database of the test, including those of the caller."""
        rows = self._admin.execute(
            "SELECT format('%%s %%s: %%s', application_name, state, left(query, 100)) FROM pg_stat_activity"
            " WHERE datname = %s AND backend_type = 'client backend'",
            [self.database],
        )
        return [str(row[0]) for row in rows]

    def _sessions_left(self) -> list[str]:
        try:
            poll_until(lambda: not self.sessions(), self.seconds_to_vanish)
        except AssertionError:
            return [f"a PostgreSQL session is still open: {session}" for session in self.sessions()]
        return []

    def _prepared_left(self) -> list[str]:
        found = self._admin.execute("SELECT gid FROM pg_prepared_xacts WHERE database = %s", [self.database])
        names = [str(row[0]) for row in found]
        if names:
            # they prevent dropping the database and can only be ended from within it
            with self.server.connect(self.database) as inside:
                for name in names:
                    inside.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(name)))
        return [f"a prepared transaction was left: {name!r}" for name in names]

    def _reconnect(self) -> None:
        """Reconnect if a test has restarted the server, which also ended our own session."""
        try:
            self._admin.execute("SELECT 1")
        except psycopg.OperationalError:
            self._admin.close()
            self._admin = self.server.connect()

    def _execute(self, statement: str, *names: str) -> None:
        self._admin.execute(sql.SQL(cast(Any, statement)).format(*map(sql.Identifier, names)))


class SqlServerProvider:
    """One database per session; after each test, its tables are dropped and the managed tables emptied."""

    alias = "mssql"
    # A session ends shortly after its client disconnects.
    seconds_to_vanish = 10.0
    # filled by `migrate`, needed by the next test too
    _KEPT = frozenset({"django_migrations", "django_content_type", "auth_permission"})

    def __init__(self) -> None:
        self._given = dict(connections.settings[self.alias])
        self.database = f"sqlqueue_test_{secrets.token_hex(4)}"
        self._tables: set[tuple[str, str]] | None = None
        self._last_migration = 0

    def prepare(self) -> None:
        if self._tables is not None:
            return
        self._on_given_database(f"CREATE DATABASE [{self.database}]")
        point(self.alias, NAME=self.database)
        migrate(self.alias)
        self._tables = self._list_tables()
        with connections[self.alias].cursor() as cursor:
            cursor.execute("SELECT MAX(id) FROM django_migrations")
            self._last_migration = cursor.fetchone()[0]
        connections[self.alias].close()

    def discard(self) -> list[str]:
        connection = connections[self.alias]
        # the connection of the test may be broken: use a new one
        connection.close()
        left = self._sessions_left()
        whole = (self._tables or set()) <= self._list_tables()
        if whole:
            self._sweep(connection)
        connection.close()
        if not whole:
            # the test dropped a managed table: create a new database for the next one
            self.end()
            self._tables = None
        return left

    def sessions(self) -> list[str]:
        """The sessions in the database of the test, except that of the calling thread."""
        with connections[self.alias].cursor() as cursor:
            cursor.execute(
                "SELECT program_name, status FROM sys.dm_exec_sessions"
                " WHERE database_id = DB_ID() AND session_id <> @@SPID AND is_user_process = 1"
            )
            return [f"{program} {status}" for program, status in cursor.fetchall()]

    def _sessions_left(self) -> list[str]:
        try:
            poll_until(lambda: not self.sessions(), self.seconds_to_vanish)
        except AssertionError:
            return [f"a SQL Server session is still open: {session}" for session in self.sessions()]
        return []

    def end(self) -> None:
        if self._tables is not None:
            point(self.alias, **self._given)
            self._on_given_database(f"ALTER DATABASE [{self.database}] SET SINGLE_USER WITH ROLLBACK IMMEDIATE")
            self._on_given_database(f"DROP DATABASE [{self.database}]")

    def _sweep(self, connection: BaseDatabaseWrapper) -> None:
        managed = self._tables or set()
        quote = connection.ops.quote_name
        with connection.cursor() as cursor:
            for schema, table in sorted(self._list_tables() - managed):
                cursor.execute(f"DROP TABLE {_bracket(schema)}.{_bracket(table)}")
            # those of a test's own app, whose tables are gone
            cursor.execute("DELETE FROM django_migrations WHERE id > %s", (self._last_migration,))
            # from 16384: schemas of fixed roles; below 5: dbo, guest, sys, INFORMATION_SCHEMA
            cursor.execute("SELECT name FROM sys.schemas WHERE schema_id BETWEEN 5 AND 16383")
            for (schema,) in cursor.fetchall():
                cursor.execute(f"DROP SCHEMA {_bracket(schema)}")
            tables = sorted(table for _, table in managed if table not in self._KEPT)
            probes = [f"SELECT N'{table}' WHERE EXISTS (SELECT 1 FROM {quote(table)})" for table in tables]
            cursor.execute("\nUNION ALL\n".join(probes))
            filled = [table for (table,) in cursor.fetchall()]
            for table in filled:
                cursor.execute(f"ALTER TABLE {quote(table)} NOCHECK CONSTRAINT ALL")
            for table in filled:
                cursor.execute(f"DELETE FROM {quote(table)}")
            for table in filled:
                cursor.execute(f"ALTER TABLE {quote(table)} WITH CHECK CHECK CONSTRAINT ALL")

    def _list_tables(self) -> set[tuple[str, str]]:
        with connections[self.alias].cursor() as cursor:
            cursor.execute("SELECT SCHEMA_NAME(schema_id), name FROM sys.tables")
            return {(row[0], row[1]) for row in cursor.fetchall()}

    def _on_given_database(self, statement: str) -> None:
        # One at a time: all copy the same `model`, which the server refuses concurrently (error 1807).
        lock = "EXEC sp_getapplock @Resource = N'sqlqueue_tests', @LockMode = 'Exclusive', @LockOwner = 'Session'"
        with connections[self.alias].cursor() as cursor:
            cursor.execute(lock)
            cursor.execute(statement)
        connections[self.alias].close()


def _bracket(name: str) -> str:
    return "[" + name.replace("]", "]]") + "]"


def configured() -> dict[str, str]:
    """The products that this session tests: dialect name → alias."""
    aliases = {"sqlite": "default", "postgresql": "postgresql"}
    if sqlserver.is_named():
        aliases["sqlserver"] = "mssql"
    return aliases
