"""Notification of idle receivers about new rows: by triggers on PostgreSQL, by changes of the file on SQLite."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import threading
import time
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from sqlqueue_app.dialects.dialect import Dialect, Rendered, dialect
from sqlqueue_app.dialects.schema import TRIGGER, PlannedTable, create_wake_up_trigger, wake_up_channel, wake_up_locks
from sqlqueue_app.messages.errors import ConnectionLost, DatabaseError, LockTimeout
from sqlqueue_app.tables.connections import connection_of, database_errors, dialect_of_connection, fetch_all
from sqlqueue_app.tables.installation import Finding, FindingKind

# Keep it short: writers of the table queue behind our lock request.
LOCK_SECONDS = 10.0


def install_wake_up_triggers(alias: str, tables: list[PlannedTable]) -> list[PlannedTable]:
    """Add the trigger to tables without it, created by others, and return those; each in its own transaction.

    Adding one waits for every transaction that has written into the table, and new writers wait too: raises LockTimeout after
    LOCK_SECONDS. Raises QueueNotFound if a table is missing. Alters nothing else of a table.
    """
    connection = connection_of(alias)
    dialect = dialect_of_connection(connection)
    without_trigger = _without_trigger(connection, dialect, tables)
    for table in without_trigger:
        doing = f"add the wake-up trigger to {dialect.qualified(table.address)}"
        with database_errors(dialect, doing), transaction.atomic(using=alias), connection.cursor() as cursor:
            cursor.execute(dialect.script("limit_lock_wait", milliseconds=str(int(LOCK_SECONDS * 1000))))
            for statement in create_wake_up_trigger(dialect, table.address):
                cursor.execute(statement)
    return without_trigger


def inspect_wake_up_triggers(alias: str, tables: list[PlannedTable], others: Iterable[Finding]) -> list[Finding]:
    """The tables without the trigger, each with the SQL that adds it. Only reads.

    Skips tables that `others`, the findings of `inspect_tables`, report as missing or foreign.
    """
    connection = connection_of(alias)
    dialect = dialect_of_connection(connection)
    wrong = {each.table for each in others if each.kind in {FindingKind.MISSING, FindingKind.MISMATCH}}
    found = []
    for table in _without_trigger(connection, dialect, [table for table in tables if table not in wrong]):
        qualified = dialect.qualified(table.address)
        text = f"table {qualified} has no wake-up trigger: workers poll it up to once a second instead of being woken"
        sql = ";\n".join(create_wake_up_trigger(dialect, table.address)) + ";"
        found.append(Finding(FindingKind.NO_WAKE_UP_TRIGGER, table, qualified, text, sql))
    return found


def _without_trigger(connection: BaseDatabaseWrapper, dialect: Dialect, tables: list[PlannedTable]) -> list[PlannedTable]:
    if not tables:
        return []
    channels = {wake_up_channel(qualified): qualified for qualified in (dialect.qualified(table.address) for table in tables)}
    with database_errors(dialect, "look for wake-up triggers"):
        found = fetch_all(connection, _trigger_statement(dialect), tables=json.dumps(channels))
    without_trigger = {channels[channel] for channel, has_trigger, _ in found if not has_trigger}
    return [table for table in tables if dialect.qualified(table.address) in without_trigger]


def _trigger_statement(dialect: Dialect) -> Rendered:
    return dialect.statement("wake_up_triggers", trigger=f"'{TRIGGER}'")


# For connecting, if the alias sets no connect_timeout, and for a response.
CONNECT_SECONDS = 30.0
ANSWER_SECONDS = 10.0

T = TypeVar("T")


class Interrupted(Exception):
    """`interrupt` was called: every wait raises this from now on."""


class ListeningConnection:
    """A connection that only listens for notifications, with the alias's parameters, including TCP keepalive.

    `interrupt` ends each of its waits, for the connection, a response or a notification, at once. psycopg's blocking connections
    cannot do that, and an unresponsive server would block the stop of a worker; so this one is asynchronous, on its own event
    loop. It requires psycopg 3. Only one thread opens, uses and closes it; `interrupt` may be called from any.
    """

    def __init__(self, alias: str) -> None:
        self._alias = alias
        self._dialect = dialect("postgresql")
        self._connection: Any = None
        # Not the default loop: psycopg does not support that of Windows.
        self._runner = asyncio.Runner(loop_factory=asyncio.SelectorEventLoop)
        self._loop = self._runner.get_loop()
        # The task that the thread waits for.
        self._task: asyncio.Task[Any] | None = None
        self._is_interrupted = False
        self._requested: set[str] = set()
        self._session = 0

    def interrupt(self) -> None:
        """End the current wait and every later one: they raise Interrupted."""
        self._is_interrupted = True
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits any more
            self._loop.call_soon_threadsafe(self._give_up)

    def open(self, channels: Iterable[str]) -> None:
        """Connect and listen on the channels. Raises ConnectionLost or DatabaseError if that fails."""
        self.close()
        conninfo, seconds = _conninfo(self._alias)
        self._run(self._connect(conninfo), seconds)
        self._fetch("; ".join(self._dialect.script("listen", channel=self._dialect.quote(channel)) for channel in channels))

    def channels_with_trigger(self, tables: Mapping[str, str]) -> frozenset[str]:
        """The channels of the tables (channel by quoted name) on which a trigger announces every new row.

        Empty behind a connection pooler: it may give our session to other clients, and announcements would get lost.
        """
        found = self._fetch(
            _trigger_statement(self._dialect).sql, [json.dumps({channel: qualified for qualified, channel in tables.items()})]
        )
        if any(session != self._session for _, _, session in found):
            return frozenset()
        return frozenset(channel for channel, has_trigger, _ in found if has_trigger)

    def request(self, channels: Iterable[str]) -> set[str]:
        """Request announcements on channels with the trigger. Returns the channels on which everything will be announced.

        On the others an open transaction has sent before the request: repeat it later. Commits before this call returns are not
        announced.
        """
        locks = {channel: wake_up_locks(channel) for channel in channels}
        if new := locks.keys() - self._requested:
            statement = self._dialect.statement("request_announcements")
            self._fetch(statement.sql, [json.dumps([locks[channel].requested for channel in new])])
            self._requested |= new
        statement = self._dialect.statement("announcing_channels")
        found = self._fetch(statement.sql, [json.dumps({channel: each.sending for channel, each in locks.items()})])
        return {channel for (channel,) in found}

    def withdraw_request(self, channel: str) -> None:
        """Withdraw the request for announcements on the channel; others may still request them."""
        self._fetch(self._dialect.statement("withdraw_request").sql, [str(wake_up_locks(channel).requested)])
        self._requested.discard(channel)

    def wait(self, seconds: float) -> list[tuple[str, int]]:
        """Wait for announcements and return the channel and the sender's session of each, in the order of the commits.

        Empty after `seconds`. Raises ConnectionLost or Interrupted.
        """
        return self._run(self._announced(seconds), seconds + ANSWER_SECONDS)

    def close(self) -> None:
        """Close the connection; it may be opened again."""
        self._requested.clear()
        if self._connection is not None:
            self._loop.run_until_complete(self._connection.close())
            self._connection = None

    def dispose(self) -> None:
        """Close everything permanently."""
        self.close()
        self._runner.close()

    def _fetch(self, statement: str, values: Sequence[str] | None = None) -> list[tuple[Any, ...]]:
        """The rows of a statement; DatabaseError if the server refuses it."""
        return self._run(self._rows(statement, values), ANSWER_SECONDS)

    async def _connect(self, conninfo: str) -> None:
        # Imported here: without PostgreSQL there may be no psycopg at all.
        from psycopg import AsyncConnection  # noqa: PLC0415

        # No prepared statements: a pooler may give each statement another session.
        self._connection = await AsyncConnection.connect(conninfo, autocommit=True, prepare_threshold=None)
        # Read here, where no `interrupt` can close the connection in between.
        self._session = self._connection.info.backend_pid

    async def _rows(self, statement: str, values: Sequence[str] | None) -> list[tuple[Any, ...]]:
        cursor = await self._connection.execute(statement, values)
        return list(await cursor.fetchall()) if cursor.description else []

    async def _announced(self, seconds: float) -> list[tuple[str, int]]:
        deadline = self._loop.time() + seconds
        while True:
            # With a timeout above 0 psycopg would wake up ten times a second.
            announcements = [(each.channel, each.pid) async for each in self._connection.notifies(timeout=0)]
            if announcements or not await self._readable(deadline):
                return announcements

    async def _readable(self, deadline: float) -> bool:
        """Wait until there is something to read; False if the deadline passes first."""
        line, readable = self._connection.fileno(), asyncio.Event()
        self._loop.add_reader(line, readable.set)
        try:
            async with asyncio.timeout_at(deadline):
                return await readable.wait()
        except TimeoutError:
            return False
        finally:
            self._loop.remove_reader(line)

    def _run(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        """Run the coroutine and return its result. Interrupted; ConnectionLost, also after `seconds`; DatabaseError."""
        from psycopg import Error  # noqa: PLC0415 - as in `_connect`

        self._task = task = self._loop.create_task(work)
        timer = self._loop.call_later(seconds, self._give_up)
        if self._is_interrupted:
            self._give_up()
        try:
            return self._loop.run_until_complete(task)
        except asyncio.CancelledError:
            if self._is_interrupted:
                raise Interrupted from None
            raise ConnectionLost(f"failed to listen: the server does not answer within {seconds:g} s") from None
        except Error as error:
            kind = ConnectionLost if self._connection is None or self._connection.closed else DatabaseError
            raise kind(f"failed to listen: {str(error).strip()}") from error
        finally:
            timer.cancel()

    def _give_up(self) -> None:
        # Close before cancelling the task: psycopg would ask the server to cancel the statement, and wait for that.
        if self._connection is not None:
            self._connection.pgconn.finish()
        if self._task is not None:
            self._task.cancel()


# Between two checks of a SQLite file. A check takes 2 microseconds in SQLite, and no transaction.
CHANGE_SECONDS = 0.02


class WatchedFile:
    """Detects that another connection has changed a SQLite file, with the interface of a `ListeningConnection`.

    `PRAGMA data_version` (https://www.sqlite.org/pragma.html#pragma_data_version) shows only that something changed, so each
    change concerns every channel. Used by one thread; `interrupt` may be called from any.
    """

    def __init__(self, alias: str) -> None:
        self._alias = alias
        self._interrupted = threading.Event()
        self._channels: list[str] = []
        self._version: int | None = None

    def interrupt(self) -> None:
        """End the current wait and every later one: they raise Interrupted."""
        self._interrupted.set()

    def open(self, channels: Iterable[str]) -> None:
        """Connect. Raises DatabaseError if that fails."""
        self.close()
        self._channels = list(channels)
        connection = connection_of(self._alias)
        with database_errors(dialect_of_connection(connection), "watch the database file"), connection.cursor() as cursor:
            # A writer that locks the whole file must not delay the stop.
            cursor.execute("PRAGMA busy_timeout = 0")
        self._version = self._data_version()

    def channels_with_trigger(self, tables: Mapping[str, str]) -> frozenset[str]:
        """All channels: every change of the file is detected."""
        return frozenset(tables.values())

    def request(self, channels: Iterable[str]) -> set[str]:
        """All channels: no request is necessary."""
        return set(channels)

    def withdraw_request(self, channel: str) -> None:
        """Do nothing: there was no request."""

    def wait(self, seconds: float) -> list[tuple[str, int]]:
        """Wait until the file changes and return all channels, the session always 0; empty after `seconds`.

        Raises DatabaseError or Interrupted.
        """
        deadline = time.monotonic() + seconds
        while not self._interrupted.wait(CHANGE_SECONDS):
            version = self._data_version()
            if version != self._version:
                self._version = version
                return [(channel, 0) for channel in self._channels]
            if time.monotonic() >= deadline:
                return []
        raise Interrupted

    def close(self) -> None:
        """Close the connection; it may be opened again."""
        connection_of(self._alias).close()

    dispose = close

    def _data_version(self) -> int | None:
        connection = connection_of(self._alias)
        try:
            with database_errors(dialect_of_connection(connection), "check whether the database file has changed"):
                return int(connection.connection.execute("PRAGMA data_version").fetchone()[0])
        except LockTimeout:
            return self._version  # another connection writes, without a write-ahead log: the next check detects it


def can_listen(alias: str) -> bool:
    """Whether this process can detect new rows in the alias's database. PostgreSQL requires psycopg 3."""
    connection: Any = connection_of(alias)
    if connection.vendor == "postgresql":
        return connection.Database is sys.modules.get("psycopg")
    return bool(connection.vendor == "sqlite")


def why_not_woken(alias: str) -> str | None:
    """The reason why announcements of this alias's database do not reach a worker, on PostgreSQL; None if they do."""
    if not can_listen(alias):
        return "psycopg 3 is not installed, without which no worker starts"
    connection = connection_of(alias)
    with database_errors(dialect_of_connection(connection), "look for a pooler"), connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (session,) = cursor.fetchone()
        # A pooler gives its clients its own session numbers.
        is_direct = session == cursor.connection.info.backend_pid
    return None if is_direct else "there is a pooler such as PgBouncer between Django and the server"


def listening_connection(alias: str) -> ListeningConnection | WatchedFile:
    """The listener for new rows in the alias's database, PostgreSQL or SQLite; not connected."""
    return (WatchedFile if connection_of(alias).vendor == "sqlite" else ListeningConnection)(alias)


def _conninfo(alias: str) -> tuple[str, float]:
    """The alias's parameters for libpq, and the seconds to connect. ConnectionLost if they cannot be determined."""
    from psycopg import pq  # noqa: PLC0415 - as in `ListeningConnection._connect`
    from psycopg.conninfo import make_conninfo  # noqa: PLC0415

    known = {option.keyword.decode() for option in pq.Conninfo.get_defaults()}
    try:
        # Read for each connection: a backend may issue passwords that expire.
        given: Mapping[str, Any] = connection_of(alias).get_connection_params()
        conninfo = make_conninfo(**{name: value for name, value in given.items() if name in known})
    except Exception as error:
        raise ConnectionLost(f"failed to find the parameters of database {alias!r} for listening: {error}") from error
    timeout = given.get("connect_timeout")
    return conninfo, float(timeout) if timeout else CONNECT_SECONDS
