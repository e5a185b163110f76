"""Another PostgreSQL database of the project, besides that of the queues, for handlers to write to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from django.db import connections
from psycopg import sql

from tests.support.provisioning import PostgresqlProvider

_UNIQUE = sql.SQL("UNIQUE DEFERRABLE INITIALLY DEFERRED")


@dataclass(frozen=True)
class OtherDatabase:
    """A PostgreSQL database with a table of effects, under an alias known to this process and its children."""

    alias: str
    provider: PostgresqlProvider
    database: str

    def write(self, effect: str) -> None:
        """Write an effect, in the transaction of the alias if there is one."""
        with connections[self.alias].cursor() as cursor:
            cursor.execute("INSERT INTO effects (name) VALUES (%s)", [effect])

    def count(self) -> int:
        with connections[self.alias].cursor() as cursor:
            cursor.execute("SELECT count(*) FROM effects")
            return int(cursor.fetchone()[0])

    def effects(self) -> list[str]:
        """The committed effects, read through another connection."""
        with self.provider.server.connect(self.database) as outside:
            return [str(row[0]) for row in outside.execute("SELECT name FROM effects ORDER BY name")]

    def prepared(self) -> list[str]:
        with self.provider.server.connect(self.database) as outside:
            found = outside.execute("SELECT gid FROM pg_prepared_xacts WHERE database = current_database() ORDER BY prepared")
            return [str(row[0]) for row in found]

    def sessions(self) -> int:
        """The client sessions only; the server's own, such as autovacuum, come and go at any time."""
        of_clients = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND backend_type = 'client backend'"
        with self.provider.server.connect() as outside:
            found = outside.execute(of_clients, [self.database])
            return int(str(found.fetchall()[0][0]))

    def cut(self) -> None:
        """End all sessions of the alias, as a stopping server does; returns when they are gone."""
        with self.provider.server.connect() as outside:
            outside.execute("SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = %s", [self.database])


@contextmanager
def made_beside(provider: PostgresqlProvider, alias: str, *, unique: bool) -> Iterator[OtherDatabase]:
    """Create a separate database on the provider's server. `unique`: it refuses duplicate effects at the end of a transaction."""
    name = f"{provider.database}_{alias}"
    settings = {**connections.settings[provider.alias], **provider.server.settings(name)}
    with provider.server.connect() as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    made = OtherDatabase(alias, provider, name)
    connections.settings[alias] = settings
    try:
        with provider.server.connect(name) as inside:
            inside.execute(sql.SQL("CREATE TABLE effects (name text NOT NULL {})").format(_UNIQUE if unique else sql.SQL("")))
        yield made
    finally:
        connections[alias].close()
        del connections[alias], connections.settings[alias]
        with provider.server.connect(name) as inside:
            for (gid,) in inside.execute("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()").fetchall():
                inside.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(gid)))
        with provider.server.connect() as admin:
            admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
