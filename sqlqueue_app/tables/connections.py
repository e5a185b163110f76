"""Django's connections as the queue tables use them.

Dialect, kinds of errors, statements outside of a transaction, connections that threads hand on to each other, the database clock.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast

from django.core.signals import setting_changed
from django.db import Error as DjangoError
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper
from django.db.transaction import Atomic

from sqlqueue_app.dialects import sqlserver
from sqlqueue_app.dialects.dialect import Dialect, Rendered, dialect_of_vendor
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.errors import ConnectionLost, DatabaseError, DoomedTransaction, QueueNotFound, SqlQueueError


def on_settings_changed(call: Callable[[], object], *names: str) -> None:
    """Have `call` called whenever a test overrides one of these settings."""

    def changed(*, setting: str, **_: object) -> None:
        if setting in names:
            call()

    setting_changed.connect(changed, weak=False)


def connection_of(alias: str) -> BaseDatabaseWrapper:
    """Django's connection of the calling thread for the alias."""
    return connections[alias]


def aliases_beside(alias: str) -> list[str]:
    """The other aliases of DATABASES."""
    return [other for other in connections if other != alias]


def dialect_of_connection(connection: BaseDatabaseWrapper) -> Dialect:
    """The dialect of a connection; ConfigurationError for a database that cannot hold queues. Does not connect."""
    return dialect_of_vendor(connection.vendor)


@contextmanager
def database_errors(dialect: Dialect, doing: str) -> Iterator[None]:
    """Turn an error of driver or Django that has a kind into our own error, the original kept as its cause.

    `doing` completes "failed to ...". A database error without a kind becomes a plain DatabaseError; others pass unchanged.
    """
    try:
        yield
    except Exception as error:
        kind = _kind_of(dialect, error)
        if kind is None or isinstance(error, SqlQueueError):
            raise
        raise kind(f"failed to {doing}: {str(error).strip()}") from error


def _kind_of(dialect: Dialect, error: Exception) -> type[DatabaseError] | None:
    if isinstance(error, transaction.TransactionManagementError):
        # Its cause is the error that broke the transaction earlier, and says nothing of this statement.
        return DoomedTransaction
    return dialect.error_kind(error) or (DatabaseError if isinstance(error, DjangoError) else None)


@contextmanager
def executed(connection: BaseDatabaseWrapper, statement: Rendered, values: Sequence[Any]) -> Iterator[CursorWrapper]:
    """A cursor that has run the statement, in the transaction of the connection if there is one. One round trip."""
    if connection.vendor == "microsoft":
        cursor = execute_on_sqlserver(connection, statement.sql, values, sqlserver.input_sizes(statement.names))
        try:
            yield cursor
            # Late errors follow the rows.
            while cursor.nextset():
                pass
        except BaseException:
            _drop_kept_cursors(connection)
            raise
        return
    with connection.cursor() as own:
        own.execute(statement.sql, values)
        yield own


def execute_on_sqlserver(
    connection: BaseDatabaseWrapper, sql: str, values: Sequence[Any] = (), sizes: Sequence[tuple[int, int, int]] = ()
) -> CursorWrapper:
    """Run a statement of ours on a cursor that the connection keeps; whoever reads rows reads all of them.

    Closing a cursor whose statement had values is a round trip of its own (sp_unprepare); on a kept cursor the next statement
    brings that along. An error carries the server's number, as far as `error_kind` needs it.
    """
    with connection.wrap_database_errors:
        kept = _kept_cursor(connection, with_values=bool(values))
    cursor = connection.make_debug_cursor(kept) if connection.queries_logged else connection.make_cursor(kept)
    try:
        if sizes or connection.Database.__name__ == "pyodbc":  # type: ignore[attr-defined]
            # pyodbc keeps them for the statements that follow.
            cursor.setinputsizes(sizes or None)
        cursor.execute(sql, values)
    except DjangoError as error:
        note_number(connection, error)
        _drop_kept_cursors(connection)
        raise
    return cursor


_KEPT_CURSORS: Final = "sqlqueue_cursors"


def _kept_cursor(connection: BaseDatabaseWrapper, *, with_values: bool) -> Any:
    """The cursor of mssql-django that our statements share: one for those with values, which stay prepared, one for the others."""
    connection.ensure_connection()
    raw: Any = connection.connection
    known: Any = connection
    kept: tuple[Any, dict[bool, Any]] | None = connection.__dict__.get(_KEPT_CURSORS)
    if kept is None or kept[0] is not raw:
        kept = connection.__dict__[_KEPT_CURSORS] = raw, {}
    if with_values not in kept[1]:
        kept[1][with_values] = known.create_cursor()
    return kept[1][with_values]


def _drop_kept_cursors(connection: BaseDatabaseWrapper) -> None:
    """Close the kept cursors after an error: unread rows would keep the session busy."""
    for cursor in connection.__dict__.pop(_KEPT_CURSORS, (None, {}))[1].values():
        with contextlib.suppress(Exception):
            cursor.close()


def note_number(connection: BaseDatabaseWrapper, error: BaseException) -> None:
    """Have the error of mssql-python carry the server's number, which the driver drops, where its SQLSTATE alone says too little.

    To be called before the next statement, which would take the place of the number.
    """
    cause = error.__cause__
    raw: Any = connection.__dict__.get("connection")
    if raw is None or cause is None or not sqlserver.lacks_number(cause):
        return
    with contextlib.suppress(Exception), closing(raw.cursor()) as cursor:
        cursor.execute("SELECT @@ERROR")
        cause.sqlserver_number = int(cursor.fetchone()[0])  # type: ignore[attr-defined]


def fetch_all(connection: BaseDatabaseWrapper, statement: Rendered, **values: object) -> list[tuple[Any, ...]]:
    """Run a statement that returns rows; in the transaction of the connection if there is one."""
    with executed(connection, statement, statement.bind(values)) as cursor:
        return [tuple(row) for row in cursor.fetchall()]


def run(connection: BaseDatabaseWrapper, statement: Rendered, **values: object) -> int:
    """Run a statement that changes rows and return how many."""
    if connection.vendor == "microsoft":
        # A session with NOCOUNT ON, which `user options` of the server may set, would return -1.
        statement = replace(statement, sql=f"SET NOCOUNT OFF; {statement.sql}")
    with executed(connection, statement, statement.bind(values)) as cursor:
        return int(cursor.rowcount)


def mark_begun(connection: BaseDatabaseWrapper, atomic: Atomic) -> None:
    """Django's own bookkeeping of an outermost atomic(), whose transaction a statement of ours has begun."""
    connection.commit_on_exit = True
    connection.needs_rollback = False
    connection.autocommit = False
    connection.in_atomic_block = True
    connection.atomic_blocks[:] = [atomic]


def mark_ended(connection: BaseDatabaseWrapper) -> None:
    """The same of its end."""
    connection.atomic_blocks.clear()
    connection.in_atomic_block = False
    connection.autocommit = True
    if connection.closed_in_transaction:
        # It was closed inside, which Django puts off until the transaction ends.
        connection.closed_in_transaction = False
        connection.connection = None


ENDED: Final = "the transaction cannot be committed: an error on the server, or a COMMIT or ROLLBACK of the handler, has ended it"


def run_on_transaction(connection: BaseDatabaseWrapper, name: str) -> list[tuple[Any, ...]]:
    """Run a statement about the transaction on SQL Server, past whatever watches the statements: the rows it returns, if any.

    In one round trip; errors come as Django's.
    """
    try:
        with connection.wrap_database_errors:
            cursor = _kept_cursor(connection, with_values=False)
            cursor.execute(dialect_of_vendor("microsoft").script(name))
            return [tuple(row) for row in cursor.fetchall()] if cursor.description else []
    except DjangoError as error:
        note_number(connection, error)
        _drop_kept_cursors(connection)
        raise


def roll_back(connection: BaseDatabaseWrapper) -> None:
    """End what is open on SQL Server, if anything; never raises. The connection is closed if the server cannot be asked."""
    if connection.__dict__.get("connection") is None:
        return
    try:
        run_on_transaction(connection, "roll_back")
    except Exception:  # noqa: BLE001 - whatever it is, the server ends the transaction with the session
        with contextlib.suppress(Exception):
            connection.close()


@contextmanager
def transaction_of_statements(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """An outermost `atomic()` on SQL Server in two round trips: mssql-django's needs five, three to switch the driver's mode back.

    Errors come as Django's, or as DoomedTransaction; what is raised inside rolls back and passes.
    """
    run_on_transaction(connection, "begin")
    mark_begun(connection, Atomic(connection.alias, savepoint=True, durable=False))
    try:
        yield
        if run_on_transaction(connection, "commit") != [(2,)]:
            raise DoomedTransaction(ENDED)
    except BaseException:
        roll_back(connection)
        raise
    finally:
        connection.needs_rollback = False
        mark_ended(connection)


class SecondConnections:
    """A second connection per thread to the database of one alias, for work that must not join the thread's transaction."""

    def __init__(self, alias: str) -> None:
        self._alias = alias
        self._local = threading.local()

    @contextmanager
    def used(self) -> Iterator[BaseDatabaseWrapper]:
        """While open, the alias means the second connection in this thread; `connections` is a per-thread mapping."""
        second: BaseDatabaseWrapper | None = getattr(self._local, "connection", None)
        if second is None:
            second = self._local.connection = connections.create_connection(self._alias)
        first = connections[self._alias]
        connections[self._alias] = second
        try:
            yield second
        finally:
            connections[self._alias] = first

    def close(self) -> None:
        """Close the calling thread's second connection, if it has one."""
        second: BaseDatabaseWrapper | None = getattr(self._local, "connection", None)
        if second is not None:
            second.close()


def table_exists(connection: BaseDatabaseWrapper, dialect: Dialect, address: QueueAddress) -> bool:
    """Whether there is a table of this address."""
    statement = dialect.statement("table_exists")
    values = {"name": address.table} if dialect.name == "sqlite" else {"table": dialect.qualified(address)}
    return bool(fetch_all(connection, statement, **values)[0][0])


class Table:
    """A table in the database of an alias. The address has all its parts filled in.

    A description, not a connection: each call uses the calling thread's Django connection. May be shared by threads.
    """

    def __init__(self, alias: str, address: QueueAddress) -> None:
        self.alias = alias
        self.address = address
        self.dialect = dialect_of_connection(connection_of(alias))
        self.qualified = self.dialect.qualified(address)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.qualified} on {self.alias!r}>"

    def connection(self) -> BaseDatabaseWrapper:
        """The calling thread's Django connection."""
        return connection_of(self.alias)

    def exists(self) -> bool:
        """Whether there is such a table."""
        with database_errors(self.dialect, f"look for {self.qualified}"):
            return table_exists(self.connection(), self.dialect, self.address)

    def forget_layout(self) -> None:
        """Look up again what is remembered of the columns; here nothing is."""

    def errors(self, doing: str) -> TableErrors:
        """A context that turns the database's errors into our kinds; `doing` completes "failed to"."""
        return TableErrors(self, doing)


class TableErrors:
    """`database_errors` for one table; a statement that is on the way of every message calls `raise_table_error` itself."""

    def __init__(self, table: Table, doing: str) -> None:
        self._table = table
        self._doing = doing

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):
            raise_table_error(self._table, self._doing, error)


def raise_table_error(table: Table, doing: str, error: Exception) -> None:
    """Raise the error of a statement about the table as our kind; return if it has none, or is ours already.

    SQLite has no code for a missing table, so there the table is looked up.
    """
    if isinstance(error, DatabaseError):
        return
    # Whatever the statement ran into, the table may have been altered since its columns were looked up.
    table.forget_layout()
    if table.dialect.name == "sqlite" and table.dialect.error_kind(error) is None and _is_missing(table):
        raise missing_table(table, f"failed to {doing}: the table does not exist; run sqlqueue_install or migrate") from error
    kind = _kind_of(table.dialect, error)
    if kind is None:
        return
    ours = kind(f"failed to {doing}: {str(error).strip()}")
    if isinstance(ours, QueueNotFound):
        ours.table, ours.queue = table.qualified, table.address.table
    raise ours from error


def _is_missing(table: Table) -> bool:
    if table.connection().needs_rollback:
        return False  # no question can be asked in this transaction any more
    try:
        return not table.exists()
    except DatabaseError:
        return False


def missing_table(table: Table, text: str) -> QueueNotFound:
    """The error that says, in these words, that there is no such table."""
    error = QueueNotFound(text)
    error.table, error.queue = table.qualified, table.address.table
    return error


SAVEPOINT: Final = "sqlqueue"
"""The name of the savepoint before the work of a message."""

Hooks = list[Callable[[], Any]]
"""What waits for a commit, in its order."""


class Watched:
    """Mixed into the class of one Django connection: calls a hook before the connection is used. Like it, of one thread.

    Every cursor, `copy()`, `callproc()` and `atomic()`, and code that goes below Django, asks Django's connection for its attribute
    `connection`, the driver's one. That attribute is watched.
    """

    on_first_use: Callable[[], None] | None = None
    """Called once, before the driver's connection is handed out next; None is set before the call."""

    @property
    def connection(self) -> Any:
        """The driver's connection, as in every Django connection."""
        on_first_use = self.on_first_use
        if on_first_use is not None:
            self.on_first_use = None
            on_first_use()
        return self.__dict__.get("connection")

    @connection.setter
    def connection(self, raw: Any) -> None:
        self.__dict__["connection"] = raw

    @property
    def unwatched(self) -> Any:
        """The driver's connection, without telling anybody; None where there is none."""
        return self.__dict__.get("connection")


class WatchedConnection(Watched, BaseDatabaseWrapper):
    """For annotations: what `watch` makes of a connection."""


def watch(connection: BaseDatabaseWrapper) -> WatchedConnection:
    """Have the connection watched from now on; it stays the same object. Costs nothing while nobody wants to be told."""
    if not isinstance(connection, Watched):
        connection.__class__ = _watched(type(connection))  # type: ignore[arg-type]  # the stubs give metaclasses no hash
    return cast(WatchedConnection, connection)


@functools.cache
def _watched(kind: type[BaseDatabaseWrapper]) -> type[BaseDatabaseWrapper]:
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    return type(kind.__name__, (Watched, kind), names)


# What is not asked for in this time was needed only because much came together.
POOL_IDLE_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class _IdleConnections:
    """The connections of one piece of work, and when it ended."""

    connections: tuple[BaseDatabaseWrapper, ...]
    since: float


class ConnectionPool:
    """A pool of connections for short work that comes again and again, which costs less than a new connection.

    Safe from any thread; `close` comes when all work is done. There are as many as there was work at the same time, at least one of
    them in use every POOL_IDLE_SECONDS. What a pool of Django's own keeps is given back to it.
    """

    def __init__(self, *, kept_seconds: float = POOL_IDLE_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self._kept_seconds = kept_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._idle: list[_IdleConnections] = []

    @contextmanager
    def checkout(self) -> Iterator[None]:
        """While open, `connections` of the calling thread are kept ones; it must have none of its own.

        What an error or a transaction that was left open has touched is closed, not kept.
        """
        for connection in self._take():
            connections[connection.alias] = connection
        try:
            yield
        finally:
            self._give_back()

    def close(self) -> None:
        """Close what is kept."""
        with self._lock:
            kept, self._idle = self._idle, []
        _close(kept)

    def _take(self) -> tuple[BaseDatabaseWrapper, ...]:
        with self._lock:
            # The last that came back, so that the others are not needed and grow old.
            last = self._idle.pop().connections if self._idle else ()
            old = [each for each in self._idle if self._clock() - each.since > self._kept_seconds]
            self._idle = [each for each in self._idle if each not in old]
        _close(old)
        return last

    def _give_back(self) -> None:
        used = list(connections.all(initialized_only=True))
        kept = []
        for connection in used:
            del connections[connection.alias]
            if _is_fine(connection):
                # Whoever takes it is another thread, and the only one then.
                if not connection.allow_thread_sharing:
                    connection.inc_thread_sharing()
                kept.append(connection)
            else:
                connection.close()
        if kept:
            with self._lock:
                self._idle.append(_IdleConnections(tuple(kept), self._clock()))


def _is_fine(connection: BaseDatabaseWrapper) -> bool:
    """Whether there is a connection that the next one finds as a new one would be, and that is worth being kept."""
    if connection.connection is None or connection.in_atomic_block or connection.needs_rollback or connection.errors_occurred:
        return False
    return not connection.settings_dict["OPTIONS"].get("pool")


def _close(kept: list[_IdleConnections]) -> None:
    for each in kept:
        for connection in each.connections:
            connection.close()


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def database_now(alias: str) -> datetime:
    """The time by the database's clock (docs/internals/decisions.md#database-clock): in UTC, in whole seconds. DatabaseError."""
    connection = connection_of(alias)
    dialect = dialect_of_connection(connection)
    with database_errors(dialect, "read the clock"):
        (seconds,) = fetch_all(connection, dialect.statement("clock"))[0]
    return _EPOCH + timedelta(seconds=int(seconds))


@contextmanager
def guarded_read(alias: str, doing: str) -> Iterator[None]:
    """A scope for reads that may fail: raises our kinds; inside of a transaction a failure undoes only what was done in here.

    PostgreSQL refuses every further statement of a transaction after an error, hence the savepoint there.
    """
    connection = connection_of(alias)
    with database_errors(dialect_of_connection(connection), doing):
        if connection.in_atomic_block:
            with transaction.atomic(using=alias):
                yield
        else:
            yield


@contextmanager
def _optional_read(alias: str, doing: str) -> Iterator[None]:
    try:
        with guarded_read(alias, doing):
            yield
    except ConnectionLost:
        raise
    except DatabaseError:
        return


def optional_read(alias: str, doing: str) -> AbstractContextManager[None, bool]:
    """As `guarded_read`, for what may be left out: at an error of the database the scope ends. ConnectionLost is raised."""
    return cast("AbstractContextManager[None, bool]", _optional_read(alias, doing))
