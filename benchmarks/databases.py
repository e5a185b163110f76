"""The measured databases: a temporary PostgreSQL, durable or not, and a SQLite file."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

import psycopg

from benchmarks import messages
from tests.support import postgresql, postgresql_programs

ROOT = Path(__file__).resolve().parent.parent
QUEUE = "Bench"
OURS = "bench"
"""The database with our tables; other queues have theirs beside it."""

# Durable uses the server's defaults: a commit waits for the disk.
_SHARED = [
    "max_connections=400", "max_prepared_transactions=400", "shared_buffers=256MB",
    "max_wal_size=2GB", "checkpoint_timeout=1h", "log_min_messages=warning",
]  # fmt: skip
_NOT_DURABLE = ["fsync=off", "full_page_writes=off", "synchronous_commit=off"]


class Database(Protocol):
    """A database to send messages to and receive them from."""

    name: str

    def environment(self, queue: str = QUEUE, **options: object) -> dict[str, str]:
        """The environment of a child process that uses it; the options are settings of the endpoint."""
        ...

    def fill(self, rows: int, queue: str = QUEUE) -> None:
        """Leave exactly `rows` messages in the queue."""
        ...

    def depth(self, queue: str = QUEUE) -> int:
        """How many messages are in the queue."""
        ...

    def is_empty(self, queue: str = QUEUE) -> bool:
        """Whether no message is in the queue; cheap."""
        ...

    def close(self) -> None: ...


class PostgreSQL:
    """A separate server with one database and its tables installed."""

    def __init__(self, *, durable: bool) -> None:
        self.durable = durable
        self.name = "PostgreSQL, durable" if durable else "PostgreSQL, not durable"
        options = _SHARED if durable else _SHARED + _NOT_DURABLE
        programs = postgresql_programs.find_or_install()
        self.programs = programs.directory
        self._server = postgresql.ThrowAwayServer(programs, options)
        with self._server.connect() as admin:
            admin.execute(f"CREATE DATABASE {OURS}")
        install(self)

    @property
    def version(self) -> str:
        """The version and origin of the server."""
        return self._server.description

    def environment(self, queue: str = QUEUE, **options: object) -> dict[str, str]:
        return _environment({"ENGINE": "django.db.backends.postgresql", **self.settings(OURS)}, queue, options)

    def connect(self, database: str = OURS) -> psycopg.Connection[tuple[Any, ...]]:
        """A connection in autocommit mode; the caller closes it."""
        return self._server.connect(database)

    def create(self, database: str) -> None:
        """Create another database."""
        with self._server.connect() as admin:
            admin.execute(f'CREATE DATABASE "{database}"')

    def settings(self, database: str) -> dict[str, Any]:
        """HOST, PORT, USER, PASSWORD and NAME for Django."""
        return self._server.settings(database)

    def url(self, database: str) -> str:
        """The URL for drivers that need one; uses the same socket as all others."""
        found = self.settings(database)
        return f"postgresql://{found['USER']}@/{database}?host={found['HOST']}&port={found['PORT']}"

    def conninfo(self) -> str:
        """The address for psycopg and pgbench."""
        settings = self.settings(OURS)
        return f"host={settings['HOST']} port={settings['PORT']} user={settings['USER']} dbname={settings['NAME']}"

    def fill(self, rows: int, queue: str = QUEUE) -> None:
        """Leave exactly `rows` messages in the queue, in a new table with new statistics, with all writes on disk."""
        with self.connect() as connection:
            connection.execute(f'TRUNCATE "{queue}"')
        self.top_up(rows, queue)

    def top_up(self, rows: int, queue: str = QUEUE) -> None:
        """Fill the queue up to `rows` messages, vacuum, and write everything to disk."""
        missing = rows - self.depth(queue)
        with self.connect() as connection:
            if missing > 0:
                connection.execute(
                    f'INSERT INTO "{queue}" (id, headers, body) SELECT gen_random_uuid(), %s, %s FROM generate_series(1, %s)',
                    [messages.stored_headers(), messages.stored_body(), missing],
                )
            connection.execute(f'VACUUM ANALYZE "{queue}"')
            connection.execute("CHECKPOINT")

    def lowest(self, queue: str = QUEUE) -> int:
        """The number of the first row; 0 for an empty queue."""
        with self.connect() as connection:
            row = connection.execute(f'SELECT min(seq) FROM "{queue}"').fetchone()
        return int(row[0] or 0) if row else 0

    @contextmanager
    def dead_rows(self, rows: int, queue: str = QUEUE) -> Iterator[None]:
        """Delete the first rows while an old transaction, open inside this context, prevents vacuum from removing them."""
        with self.connect() as holder, self.connect() as other:
            holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            holder.execute(f'SELECT 1 FROM "{queue}" LIMIT 1')
            if rows:
                other.execute(f'DELETE FROM "{queue}" WHERE seq < %s', [self.lowest(queue) + rows])
                other.execute("CHECKPOINT")
            yield
            holder.execute("ROLLBACK")

    def depth(self, queue: str = QUEUE) -> int:
        with self.connect() as connection:
            row = connection.execute(f'SELECT count(*) FROM "{queue}"').fetchone()
        return int(row[0]) if row else 0

    def is_empty(self, queue: str = QUEUE) -> bool:
        with self.connect() as connection:
            return connection.execute(f'SELECT 1 FROM "{queue}" LIMIT 1').fetchone() is None

    def close(self) -> None:
        self._server.close()


class SQLite:
    """A file with the recommended options: write-ahead log, immediate transactions."""

    name = "SQLite"
    pragmas = "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL"

    def __init__(self, directory: Path) -> None:
        self.file = directory / "bench.sqlite3"
        install(self)

    def environment(self, queue: str = QUEUE, **options: object) -> dict[str, str]:
        opened = {"transaction_mode": "IMMEDIATE", "timeout": 30, "init_command": self.pragmas}
        return _environment({"ENGINE": "django.db.backends.sqlite3", "NAME": str(self.file), "OPTIONS": opened}, queue, options)

    def fill(self, rows: int, queue: str = QUEUE) -> None:
        headers, body = messages.stored_headers(), messages.stored_body()
        with closing(sqlite3.connect(self.file)) as connection, connection:
            connection.execute(f'DELETE FROM "{queue}"')
            connection.executemany(
                f'INSERT INTO "{queue}" (Id, Recoverable, Headers, Body) VALUES (?, 1, ?, ?)',
                ((uuid.uuid4().hex, headers, body) for _ in range(rows)),
            )

    def depth(self, queue: str = QUEUE) -> int:
        with closing(sqlite3.connect(self.file)) as connection:
            return int(connection.execute(f'SELECT count(*) FROM "{queue}"').fetchone()[0])

    def is_empty(self, queue: str = QUEUE) -> bool:
        return self.depth(queue) == 0

    def close(self) -> None:
        self.file.unlink(missing_ok=True)


def _environment(database: dict[str, Any], queue: str, options: dict[str, object]) -> dict[str, str]:
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "benchmarks.settings",
        "PYTHONPATH": str(ROOT),
        "SQLQUEUE_BENCH_DATABASE": json.dumps(database),
        "SQLQUEUE_BENCH_ENDPOINT": json.dumps({"name": queue, "options": options}),
    }


def install(database: Database, queue: str = QUEUE) -> None:
    """Create the managed tables and the queues of one endpoint."""
    for command in (["migrate", "--verbosity", "0", "--skip-checks"], ["sqlqueue_install"]):
        subprocess.run(
            [sys.executable, "-m", "django", *command], env=database.environment(queue), check=True, stdout=subprocess.DEVNULL
        )


def run_child(module: str, environment: dict[str, str], *arguments: str) -> dict[str, Any]:
    """Run `python -m module` and return its last line as JSON. Raises CalledProcessError on failure and prints its errors."""
    answer = subprocess.run(
        [sys.executable, "-m", module, *arguments], env=environment, check=True, stdout=subprocess.PIPE, text=True
    )
    found: dict[str, Any] = json.loads(answer.stdout.strip().splitlines()[-1])
    return found
