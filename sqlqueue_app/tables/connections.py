"""Django's connections as the queue tables use them.

Dialect, types of errors, statements outside a transaction, connections that threads share in turn, the database clock.
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

from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.db import Error as DjangoError, InterfaceError, OperationalError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper
from django.db.transaction import Atomic

from sqlqueue_app.dialects import sqlserver
from sqlqueue_app.dialects.dialect import DIALECTS, Dialect, Rendered, dialect, dialect_of_vendor
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.errors import ConnectionLost, DatabaseError, DoomedTransaction, QueueNotFound, SqlQueueError


def on_settings_changed(call: Callable[[], object], *names: str) -> None:
    """Call `call` whenever a test overrides one of these settings."""

    def changed(*, setting: str, **_: object) -> None:
        if setting in names:
            call()

    setting_changed.connect(changed, weak=False)


def connection_of(alias: str) -> BaseDatabaseWrapper:
    """Django's connection of the calling thread for the alias."""
    return connections[alias]


def aliases_beside(alias: str) -> list[str]:
    """The other aliases of DATABASES that this process can use."""
    return [other for other in connections if other != alias and _is_usable(other)]


def _is_usable(alias: str) -> bool:
    try:
        return connections[alias].vendor != "unknown"  # that of an empty entry
    except ImproperlyConfigured:
        return False  # no driver: as in Django, only the use of the alias fails


def dialect_of_connection(connection: BaseDatabaseWrapper) -> Dialect:
    """The dialect of a connection; ConfigurationError for a database that cannot hold queues. Does not connect."""
    return dialect_of_vendor(connection.vendor)


@contextmanager
def database_errors(dialect: Dialect, doing: str) -> Iterator[None]:
    """Turn a known error of the driver or Django into our own error, with the original as its cause.

    `doing` completes "failed to ...". An unknown database error becomes a plain DatabaseError; other errors pass unchanged.
    """
    try:
        yield
    except Exception as error:
        kind = _kind_of(dialect, error)
        if kind is None or isinstance(error, SqlQueueError):
            raise
        raise kind(f"failed to {doing}: {str(error).strip()}") from error


def errors_of_alias(alias: str, doing: str) -> AbstractContextManager[None]:
    """`database_errors` for the database of an alias. Does not connect."""
    return database_errors(dialect_of_connection(connection_of(alias)), doing)


def _kind_of(dialect: Dialect, error: Exception) -> type[DatabaseError] | None:
    if isinstance(error, transaction.TransactionManagementError):
        # Its cause is the error that broke the transaction earlier, and is unrelated to this statement.
        return DoomedTransaction
    return dialect.error_kind(error) or (DatabaseError if isinstance(error, DjangoError) else None)


@contextmanager
def executed(connection: BaseDatabaseWrapper, statement: Rendered, values: Sequence[Any]) -> Iterator[CursorWrapper]:
    """Run the statement, in the connection's transaction if any, and yield its cursor. One round trip."""
    if connection.vendor == "microsoft":
        cursor = execute_on_sqlserver(connection, statement.sql, values, sqlserver.input_sizes(statement.names))
        try:
            yield cursor
            # Late errors arrive after the rows.
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
    connection: BaseDatabaseWrapper, sql: str, values: Sequence[Any], sizes: Sequence[tuple[int, int, int]]
) -> CursorWrapper:
    """Run one of our statements on a cursor that the connection keeps; the caller must read all rows.

    Closing a cursor whose statement had values costs a round trip (sp_unprepare); on a kept cursor the next statement includes
    that. An error has the server's number, if `error_kind` needs it.
    """
    with connection.wrap_database_errors:
        kept = _kept_cursor(connection, with_values=bool(values))
    cursor = connection.make_debug_cursor(kept) if connection.queries_logged else connection.make_cursor(kept)
    try:
        if sizes or connection.Database.__name__ == "pyodbc":  # type: ignore[attr-defined]
            # pyodbc keeps them for later statements.
            cursor.setinputsizes(sizes or None)
        cursor.execute(sql, values)
    except DjangoError as error:
        note_number(connection, error)
        _drop_kept_cursors(connection)
        raise
    return cursor


_KEPT_CURSORS: Final = "sqlqueue_cursors"


def _kept_cursor(connection: BaseDatabaseWrapper, *, with_values: bool) -> Any:
    """The mssql-django cursor shared by our statements: one for those with values, which stay prepared, one for others."""
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
    """Add the server's number, which mssql-python drops, to an error whose SQLSTATE is not specific enough.

    Call it before the next statement, which would replace the number.
    """
    cause = error.__cause__
    raw: Any = connection.__dict__.get("connection")
    if raw is None or cause is None or not sqlserver.lacks_number(cause):
        return
    with contextlib.suppress(Exception), closing(raw.cursor()) as cursor:
        cursor.execute("SELECT @@ERROR")
        cause.sqlserver_number = int(cursor.fetchone()[0])  # type: ignore[attr-defined]


@contextmanager
def cursor_with_numbers(connection: BaseDatabaseWrapper) -> Iterator[CursorWrapper]:
    """A cursor of the connection. Errors of the block have the server's number, if `error_kind` needs it."""
    with connection.cursor() as cursor:
        try:
            yield cursor
        except DjangoError as error:
            note_number(connection, error)
            raise


def fetch_all(connection: BaseDatabaseWrapper, statement: Rendered, **values: object) -> list[tuple[Any, ...]]:
    """Run a statement, in the connection's transaction if any, and return its rows."""
    with executed(connection, statement, statement.bind(values)) as cursor:
        return [tuple(row) for row in cursor.fetchall()]


def run(connection: BaseDatabaseWrapper, statement: Rendered, **values: object) -> int:
    """Run a statement that changes rows, and return their number."""
    if connection.vendor == "microsoft":
        # A session with NOCOUNT ON, which `user options` of the server may set, would return -1.
        statement = replace(statement, sql=f"SET NOCOUNT OFF; {statement.sql}")
    with executed(connection, statement, statement.bind(values)) as cursor:
        return int(cursor.rowcount)


def mark_begun(connection: BaseDatabaseWrapper, atomic: Atomic) -> None:
    """Set Django's bookkeeping of an outermost atomic() whose transaction one of our statements has begun."""
    connection.commit_on_exit = True
    connection.needs_rollback = False
    connection.autocommit = False
    connection.in_atomic_block = True
    connection.atomic_blocks[:] = [atomic]


def mark_ended(connection: BaseDatabaseWrapper) -> None:
    """Set Django's bookkeeping of its end."""
    connection.atomic_blocks.clear()
    connection.in_atomic_block = False
    connection.autocommit = True
    if connection.closed_in_transaction:
        # Closed inside, which Django postpones until the transaction ends.
        connection.closed_in_transaction = False
        connection.connection = None


def leave_no_transaction(connection: BaseDatabaseWrapper) -> None:
    """Close a connection on which a handler has left a transaction open, or that is lost or too old; otherwise keep it."""
    if connection.in_atomic_block:
        # Nothing will leave that block, and Django refuses every later statement: closing is the only exit that it offers.
        connection.in_atomic_block = False
        connection.close()
    connection.close_if_unusable_or_obsolete()


ENDED: Final = "the transaction cannot be committed: an error on the server, or a COMMIT or ROLLBACK of the handler, has ended it"


def run_on_transaction(connection: BaseDatabaseWrapper, name: str) -> list[tuple[Any, ...]]:
    """Run a transaction statement on SQL Server, bypassing wrappers that watch statements. Returns its rows, if any.

    Takes one round trip. Raises Django's errors.
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
    """Roll back an open transaction on SQL Server; never raises. Closes the connection if the server is unreachable."""
    if connection.__dict__.get("connection") is None:
        return
    try:
        run_on_transaction(connection, "roll_back")
    except Exception:  # noqa: BLE001 - after any error, closing the session ends the transaction
        with contextlib.suppress(Exception):
            connection.close()


@contextmanager
def transaction_of_statements(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """Open an outermost `atomic()` on SQL Server in two round trips; mssql-django needs five, three to reset the driver's mode.

    After the commit its `on_commit` hooks run. Raises Django's errors or DoomedTransaction; an error raised inside rolls back and
    passes through.
    """
    run_on_transaction(connection, "begin")
    mark_begun(connection, Atomic(connection.alias, savepoint=True, durable=False))
    try:
        yield
        if run_on_transaction(connection, "commit") != [(2,)]:
            raise DoomedTransaction(ENDED)
    except BaseException:
        connection.run_on_commit = []
        roll_back(connection)
        raise
    finally:
        connection.needs_rollback = False
        mark_ended(connection)
    connection.run_and_clear_commit_hooks()


class SecondConnections:
    """A second connection per thread to the database of one alias, for work that must not join the thread's transaction."""

    def __init__(self, alias: str) -> None:
        self._alias = alias
        self._local = threading.local()

    @contextmanager
    def used(self) -> Iterator[BaseDatabaseWrapper]:
        """While open, use the second connection for the alias in this thread; `connections` is a per-thread mapping."""
        second: BaseDatabaseWrapper | None = getattr(self._local, "connection", None)
        if second is None:
            second = self._local.connection = connections.create_connection(self._alias)
            # A project that turns AUTOCOMMIT off commits only the first connection. This one must commit by itself.
            second.settings_dict = {**second.settings_dict, "AUTOCOMMIT": True}
        first = connections[self._alias]
        connections[self._alias] = second
        try:
            yield second
        finally:
            connections[self._alias] = first
            if second.errors_occurred:
                # If the session has ended, the next use needs another; nothing else would notice.
                second.close_if_unusable_or_obsolete()

    def close(self) -> None:
        """Close the calling thread's second connection, if it has one."""
        second: BaseDatabaseWrapper | None = getattr(self._local, "connection", None)
        if second is not None:
            second.close()


def cancel_statement(connection: BaseDatabaseWrapper, cursor: Any) -> None:
    """Cancel the statement that another thread executes with this cursor; it fails there. Raises what the driver raises.

    The method is that of the driver: a second connection that asks for it (psycopg), an interrupt (sqlite3), SQLCancel
    (mssql-python, whose public interface has none, and pyodbc).
    """
    raw: Any = connection.connection
    if connection.vendor == "postgresql":
        raw.cancel()
    elif connection.vendor == "sqlite":
        raw.interrupt()
    else:
        while hasattr(cursor, "cursor"):
            cursor = cursor.cursor
        (cursor.cancel if hasattr(cursor, "cancel") else cursor.hstmt._cancel)()


def table_exists(connection: BaseDatabaseWrapper, dialect: Dialect, address: QueueAddress) -> bool:
    """Whether the table of this address exists."""
    statement = dialect.statement("table_exists")
    values = {"name": address.table} if dialect.name == "sqlite" else {"table": dialect.qualified(address)}
    return bool(fetch_all(connection, statement, **values)[0][0])


class Table:
    """A table in the database of an alias, with a complete address.

    Holds no connection: each call uses the calling thread's Django connection. May be shared by threads.
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
        """Whether the table exists."""
        with database_errors(self.dialect, f"look for {self.qualified}"):
            return table_exists(self.connection(), self.dialect, self.address)

    def forget_layout(self) -> None:
        """Drop the cached columns; there are none here."""

    def errors(self, doing: str) -> TableErrors:
        """Context that turns database errors into our types; `doing` completes "failed to"."""
        return TableErrors(self, doing)


class TableErrors:
    """`database_errors` for one table; statements run for every message call `raise_table_error` directly."""

    def __init__(self, table: Table, doing: str) -> None:
        self._table = table
        self._doing = doing

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):
            raise_table_error(self._table, self._doing, error)


def raise_table_error(table: Table, doing: str, error: Exception) -> None:
    """Raise the error of a statement about the table as our type; return if it is unknown, or ours already.

    SQLite has no code for a missing table, so this checks whether the table exists.
    """
    if isinstance(error, DatabaseError):
        return
    # In any case the table may have changed since its columns were read.
    table.forget_layout()
    if table.dialect.name == "sqlite" and table.dialect.error_kind(error) is None and _is_missing(table):
        raise missing_table(table, f"failed to {doing}: the table does not exist; run sqlqueue_install or migrate") from error
    kind = _kind_of(table.dialect, error)
    if kind is None:
        return
    text = f"failed to {doing}: {str(error).strip()}"
    raise (missing_table(table, text) if kind is QueueNotFound else kind(text)) from error


def _is_missing(table: Table) -> bool:
    if table.connection().needs_rollback:
        return False  # the transaction accepts no more queries
    try:
        return not table.exists()
    except DatabaseError:
        return False


def missing_table(table: Table, text: str) -> QueueNotFound:
    """The error for a missing table, with this text."""
    error = QueueNotFound(text)
    error.table, error.queue = table.qualified, table.address.table
    return error


SAVEPOINT: Final = "sqlqueue"
"""The name of the savepoint before the work of a message."""

Hooks = list[Callable[[], Any]]
"""Functions to call after a commit, in order."""


class Watched:
    """Mixin for the class of one Django connection: calls a hook before the connection is used. Serves one thread.

    Every cursor, `copy()`, `callproc()` and `atomic()`, and code that bypasses Django, reads the attribute `connection` of
    Django's connection, which is the driver's. This class watches that attribute.
    """

    on_first_use: Callable[[], None] | None = None
    """Called once, before the driver's connection is handed out next; None is set before the call."""
    in_atomic_block: bool

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
        """The driver's connection, without calling the hook; None if there is none."""
        return self.__dict__.get("connection")

    def chunked_cursor(self) -> Any:
        """The cursor of `iterator()`. psycopg is in autocommit mode inside our transaction, so Django would declare it WITH HOLD,
        which excludes FOR UPDATE."""
        wrapper = super().chunked_cursor()  # type: ignore[misc]  # of Django's connection
        if self.in_atomic_block and getattr(wrapper.cursor, "withhold", False):
            wrapper.cursor._withhold = False
        return wrapper


class WatchedConnection(Watched, BaseDatabaseWrapper):
    """The type of a watched connection, for annotations."""


def watch(connection: BaseDatabaseWrapper) -> WatchedConnection:
    """Watch the connection from now on; it stays the same object. Costs nothing without a hook."""
    if not isinstance(connection, Watched):
        connection.__class__ = _watched(type(connection))  # type: ignore[arg-type]  # the stubs do not make metaclasses hashable
    return cast(WatchedConnection, connection)


@functools.cache
def _watched(kind: type[BaseDatabaseWrapper]) -> type[BaseDatabaseWrapper]:
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    return type(kind.__name__, (Watched, kind), names)


# Connections unused for this long were only needed for a peak.
POOL_IDLE_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class _IdleConnections:
    """The connections of one piece of work, and the time of its end."""

    connections: tuple[BaseDatabaseWrapper, ...]
    since: float


class ConnectionPool:
    """A pool of connections for short, recurring work, which is cheaper than a new connection each time.

    Safe from any thread; call `close` when all work is done. Keeps as many as were used at the same time, closing those unused
    for POOL_IDLE_SECONDS. Connections of Django's own pool are returned to it.
    """

    def __init__(self, *, kept_seconds: float = POOL_IDLE_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self._kept_seconds = kept_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._idle: list[_IdleConnections] = []

    @contextmanager
    def checkout(self) -> Iterator[None]:
        """While open, give the calling thread pooled `connections`; it must have none itself.

        Closes connections after an error or with a transaction left open, instead of keeping them.
        """
        for connection in self._take():
            connections[connection.alias] = connection
        try:
            yield
        except BaseException:
            # Django forgets an error with the rollback, but the session may be read-only since a failover.
            connections.close_all()
            raise
        finally:
            self._give_back()

    def close(self) -> None:
        """Close the pooled connections."""
        with self._lock:
            kept, self._idle = self._idle, []
        _close(kept)

    def _take(self) -> tuple[BaseDatabaseWrapper, ...]:
        with self._lock:
            # The one last returned, so that unneeded ones expire.
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
            if _is_reusable(connection):
                # Another thread will use it, and only that one.
                if not connection.allow_thread_sharing:
                    connection.inc_thread_sharing()
                kept.append(connection)
            else:
                connection.close()
        if kept:
            with self._lock:
                self._idle.append(_IdleConnections(tuple(kept), self._clock()))


def _is_reusable(connection: BaseDatabaseWrapper) -> bool:
    """Whether the connection is as good as new for the next user, and worth keeping."""
    if connection.connection is None or connection.in_atomic_block or connection.needs_rollback or connection.errors_occurred:
        return False
    return not connection.settings_dict["OPTIONS"].get("pool")


def _close(kept: list[_IdleConnections]) -> None:
    for each in kept:
        for connection in each.connections:
            connection.close()


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def database_now(alias: str) -> datetime:
    """The database's time (docs/internals/decisions.md#database-clock) in UTC, in whole seconds. Raises DatabaseError."""
    connection = connection_of(alias)
    dialect = dialect_of_connection(connection)
    with database_errors(dialect, "read the clock"):
        (seconds,) = fetch_all(connection, dialect.statement("clock"))[0]
    return _EPOCH + timedelta(seconds=int(seconds))


@contextmanager
def guarded_read(alias: str, doing: str) -> Iterator[None]:
    """Scope for reads that may fail: raises our types; inside a transaction a failure undoes only the work of the scope.

    PostgreSQL refuses all statements of a transaction after an error, hence the savepoint there.
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
    """As `guarded_read`, for optional reads: a database error ends the scope, except ConnectionLost, which is raised."""
    return cast("AbstractContextManager[None, bool]", _optional_read(alias, doing))


def is_database_unavailable(error: BaseException) -> bool:
    """Whether the error code means that a database cannot be reached."""
    if isinstance(error, ConnectionLost):
        return True
    if not isinstance(error, OperationalError | InterfaceError):
        return False
    kind = _kind_in_any_dialect(error)
    return kind is not None and issubclass(kind, ConnectionLost)


def error_remedy(error: DatabaseError | DjangoError) -> str:
    """The remedy that a command prints after the error, also for one of Django that has not become ours; "" if there is none."""
    kind = type(error) if isinstance(error, DatabaseError) else _kind_in_any_dialect(error)
    return "" if kind is None else kind.remedy


def _kind_in_any_dialect(error: Exception) -> type[DatabaseError] | None:
    # Each dialect knows only the errors of its own drivers.
    kinds = (dialect(name).error_kind(error) for name in DIALECTS)
    return next((kind for kind in kinds if kind is not None), None)
