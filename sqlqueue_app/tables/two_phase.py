"""Other databases in the receive transaction: two-phase commit, decided by the database of the queues.

See docs/internals/decisions.md#two-phase-commit.

Phase one: the transaction records itself in the log, then each other database that was written to prepares its branch.
The commit of the receive is the decision. Phase two commits the branches. A process that dies in between leaves branches, which
`status/in_doubt.py` finishes as the log decided.
"""

from __future__ import annotations

import contextlib
import logging
import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db import Error as DjangoDatabaseError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import Atomic

from sqlqueue_app.dialects.dialect import Dialect, dialect
from sqlqueue_app.dialects.postgresql import CAN_PREPARE, BranchId
from sqlqueue_app.messages.errors import CannotPrepare, DatabaseError, DoomedTransaction
from sqlqueue_app.tables.connections import SAVEPOINT, Hooks, WatchedConnection, connection_of, database_errors, fetch_all, watch
from sqlqueue_app.tables.managed import TransactionLog

logger = logging.getLogger("sqlqueue.receive")
background_logger = logging.getLogger("sqlqueue.background")


class TwoPhaseParticipants:
    """The other databases of one thread: those that can prepare a transaction take part, others are read-only."""

    def __init__(self, aliases: Sequence[str], log: TransactionLog, queue: str) -> None:
        self._log = log
        self._queue = queue
        can = {alias: connections[alias].vendor in CAN_PREPARE for alias in aliases}
        before_use = self._end_left if log.has_one_writer else None
        self._participants = [Participant(alias, before_use=before_use) for alias, prepares in can.items() if prepares]
        self._read_only = [ReadOnlyParticipant(alias) for alias, prepares in can.items() if not prepares]
        self._hooks: Hooks = []
        self._prepared: list[tuple[str, BranchId]] = []

    def begin_message(self) -> None:
        """Begin a message in every database."""
        for each in self._participants:
            each.begin_message()
        for other in self._read_only:
            other.begin_message()

    def end_message(self) -> None:
        """End the message, except for its commit."""
        for each in self._participants:
            self._hooks += each.end_message()
        for other in self._read_only:
            other.end_message()

    def _end_left(self, alias: str) -> None:
        """Finish branches of crashed processes before the message waits for their locks; required of a single writer."""
        for branch in prepared_branches(alias, self._log.coordinator()):
            end_in_doubt(branch, committed=self._log.knows(branch.id.transaction))

    def undo_message(self) -> None:
        """Undo the work of the message."""
        for each in self._participants:
            each.undo_message()

    def check_usable(self) -> None:
        """Raise DoomedTransaction if the transaction cannot commit."""
        for each in self._participants:
            each.check_usable()

    def prepare(self) -> bool:
        """Phase one. Returns whether `commit` has anything to do; leaves nothing prepared if it raises."""
        self.end_message()
        begun = [each for each in self._participants if each.begun]
        try:
            writers = [each for each in begun if each.has_written()]
            for each in begun:
                if each not in writers:
                    self._hooks += each.commit_plainly()
            if writers:
                self._prepare(writers)
        except BaseException:
            self._roll_back_prepared()
            self.abandon()
            raise
        return bool(self._prepared or self._hooks)

    def _prepare(self, writers: Sequence[Participant]) -> None:
        coordinator, transaction = self._log.coordinator(), uuid.uuid4()
        self._log.record(transaction, self._queue, [each.alias for each in writers])
        for number, each in enumerate(writers):
            branch = BranchId(coordinator, transaction, number)
            self._hooks += each.prepare(branch)
            self._prepared.append((each.alias, branch))

    def commit(self) -> Hooks:
        """Phase two, after the decision. Returns the `on_commit` hooks of the other databases; never raises."""
        hooks, self._hooks = self._hooks, []
        prepared, self._prepared = self._prepared, []
        for alias, branch in prepared:
            try:
                commit_prepared(alias, branch)
            except DatabaseError as error:
                self._in_doubt(
                    branch, error, "the message is handled, and the branch is committed as soon as a worker reaches the database"
                )
        return hooks

    def finish_by_log(self) -> None:
        """Finish the branches as the log decided, instead of `commit`, if the commit of the receive raised. Never raises."""
        self.abandon()
        # Leave undecided branches for later: the next message must neither commit nor roll them back.
        prepared, self._prepared = self._prepared, []
        if not prepared:
            return
        try:
            committed = self._log.is_committed(prepared[0][1].transaction)
        except DatabaseError as error:
            for _, branch in prepared:
                self._in_doubt(branch, error, "a worker checks again whether its transaction was committed")
            return
        if committed is None:
            return
        self._prepared = prepared
        if committed:
            self.commit()
        else:
            self._roll_back_prepared()

    def _roll_back_prepared(self) -> None:
        prepared, self._prepared = self._prepared, []
        for alias, branch in prepared:
            try:
                rollback_prepared(alias, branch)
            except DatabaseError as error:
                self._in_doubt(branch, error, "it is rolled back as soon as a worker reaches the database")

    def abandon(self) -> None:
        """Roll back what is not prepared. Never raises."""
        self._hooks = []
        for each in self._participants:
            each.abandon()
        for other in self._read_only:
            other.end_message()

    def _in_doubt(self, branch: BranchId, error: DatabaseError, then: str) -> None:
        text = "the branch %s is left prepared: %s; %s"
        logger.warning(text, branch, error, then, extra={"event": "branch_in_doubt", "queue": self._queue})


# Object not found: another process has finished the branch. Object in use: one is finishing it now.
_GONE: Final = "42704"
_WRONG_STATE: Final = "55000"


@dataclass(frozen=True, slots=True)
class PreparedBranch:
    """A branch that its server keeps, with its locks, until it is finished."""

    alias: str
    id: BranchId
    prepared_at: datetime


def prepare(connection: BaseDatabaseWrapper, branch: BranchId) -> None:
    """Phase one: turn the open transaction into a branch that any session can commit, even after a server crash.

    The connection then has no transaction, unknown to Django. Raises CannotPrepare if the server keeps no branches;
    DoomedTransaction if the transaction had failed and was rolled back.
    """
    alias = connection.alias
    try:
        with connection.cursor() as cursor:
            cursor.execute(_dialect().script("prepare_transaction", branch=branch.literal))
            command = cursor.statusmessage
    except Exception as error:
        if _code(error) == _WRONG_STATE:
            why = "allows no prepared transactions (raise max_prepared_transactions, which is 0)"
            raise CannotPrepare(cannot_prepare(alias, why)) from error
        raise
    if command != "PREPARE TRANSACTION":
        raise DoomedTransaction(
            f"the transaction on {alias!r} cannot be committed: a database error inside of it was caught outside of an atomic() "
            "block; wrap the statement that may fail in transaction.atomic()"
        )


def cannot_prepare(alias: str, why: str) -> str:
    """The error text for an alias that cannot take part."""
    return (
        f"the database {alias!r} {why}, so a handler's writes there cannot be committed together with its message; "
        "nothing was committed. Use TRANSACTION_MODE 'sends_atomic_with_receive' (those writes then commit "
        "on their own, before the message), or handle the message in an endpoint whose queues are in that database"
    )


def commit_prepared(alias: str, branch: BranchId) -> bool:
    """Phase two. Returns whether this call finished the branch. DatabaseError if the database cannot be queried."""
    return _end(alias, branch, "commit_prepared")


def rollback_prepared(alias: str, branch: BranchId) -> bool:
    """Roll back the branch of a transaction that is not committed; otherwise as `commit_prepared`."""
    return _end(alias, branch, "rollback_prepared")


def _end(alias: str, branch: BranchId, statement: str) -> bool:
    with database_errors(_dialect(), f"end the branch {branch} on {alias!r}"):
        try:
            with connection_of(alias).cursor() as cursor:
                cursor.execute(_dialect().script(statement, branch=branch.literal))
        except Exception as error:
            if _code(error) in (_GONE, _WRONG_STATE):
                return False
            raise
    return True


def end_in_doubt(branch: PreparedBranch, *, committed: bool) -> bool:
    """Finish a prepared branch as the log decided. Returns whether this process finished it; an unavailable database is logged."""
    try:
        ended = (commit_prepared if committed else rollback_prepared)(branch.alias, branch.id)
    except DatabaseError as error:
        text = "the branch %s on %r cannot be ended, and keeps its locks: %s"
        background_logger.warning(text, branch.id, branch.alias, error, extra={"event": "branch_in_doubt"})
        return False
    if ended:
        text = "the branch %s on %r was in doubt; it is now %s, as the transaction log decided"
        what = "committed" if committed else "rolled back"
        background_logger.warning(text, branch.id, branch.alias, what, extra={"event": "branch_resolved"})
    return ended


def prepared_branches(alias: str, coordinator: uuid.UUID) -> list[PreparedBranch]:
    """The branches of this coordinator in the database, oldest first. DatabaseError if it cannot be queried."""
    with database_errors(_dialect(), f"look for prepared transactions in {alias!r}"):
        pattern = f"sqlqueue-{coordinator.hex}-%"
        rows = fetch_all(connection_of(alias), _dialect().statement("prepared_branches"), pattern=pattern)
    found = [(BranchId.parse(gid), at) for gid, at in rows]
    return [PreparedBranch(alias, branch, at) for branch, at in found if branch is not None]


def max_prepared_transactions(alias: str) -> int:
    """The server's limit of prepared transactions; 0: none. DatabaseError if the database cannot be queried."""
    with database_errors(_dialect(), f"read the settings of {alias!r}"):
        return int(fetch_all(connection_of(alias), _dialect().statement("max_prepared_transactions"))[0][0])


def _dialect() -> Dialect:
    return dialect("postgresql")


def _code(error: BaseException) -> str | None:
    """The server's error code behind an exception of Django or psycopg."""
    return getattr(error.__cause__ or error, "sqlstate", None) or getattr(error.__cause__ or error, "pgcode", None)


# libpq's PQTRANS_INERROR: a statement has failed, and a commit would roll back without an error.
_IN_ERROR: Final = 3


class Participant:
    """Call `begin_message`, then `end_message` or `undo_message` per message; then `commit_plainly`, `prepare` or `abandon`.

    From the start of a message Django sees the connection inside an outermost `atomic()`, so that nested `atomic()`, `on_commit`
    and `durable` behave as on the alias of the queues. The transaction itself begins with the first use, which the watched
    connection reports. An object serves one thread.
    """

    def __init__(self, alias: str, *, before_use: Callable[[str], None] | None = None) -> None:
        """`before_use` is called with the alias before its transaction begins."""
        self.alias = alias
        self._before_use = before_use
        self.begun = False
        """Whether a transaction is open."""
        self._atomic = Atomic(alias, savepoint=True, durable=False)
        self._connection: WatchedConnection | None = None
        self._begun_before = False
        self._savepoint = False
        self._has_savepoint = False
        self._first_hook = 0

    @property
    def connection(self) -> WatchedConnection:
        """The thread's connection; available only while the alias takes part."""
        if self._connection is None:
            raise RuntimeError(f"{self.alias!r} does not take part in the transaction")
        return self._connection

    def begin_message(self) -> None:
        """Begin a message: later statements belong to it."""
        self._begun_before, self._savepoint = self.begun, False
        if self.begun:
            self._first_hook = len(self.connection.run_on_commit)
            self.connection.on_first_use = self._take_savepoint
            return
        connection = watch(connections[self.alias])
        if connection.in_atomic_block or not connection.settings_dict["AUTOCOMMIT"]:
            # A foreign transaction, or one that Django neither begins nor ends: the project manages it.
            self._connection = None
            return
        self._connection = connection
        self._first_hook = 0
        self._mark(connection)
        connection.on_first_use = self._begin

    def _mark(self, connection: WatchedConnection) -> None:
        """Set Django's bookkeeping of an outermost atomic()."""
        connection.commit_on_exit = True
        connection.needs_rollback = False
        connection.in_atomic_block = True
        connection.atomic_blocks[:] = [self._atomic]

    def _begin(self) -> None:
        connection = self.connection
        # Connecting resets all of these, and neither it nor the switch is allowed in a transaction.
        kept = list(connection.atomic_blocks), list(connection.savepoint_ids), list(connection.run_on_commit)
        needs_rollback = connection.needs_rollback
        connection.in_atomic_block = False
        try:
            connection.ensure_connection()
            if self._before_use is not None:
                self._before_use(self.alias)
            connection.set_autocommit(False)
            self.begun, self._has_savepoint = True, False
        finally:
            connection.in_atomic_block, connection.needs_rollback = True, needs_rollback
            connection.atomic_blocks[:], connection.savepoint_ids[:], connection.run_on_commit[:] = kept
            if not self.begun:
                connection.on_first_use = self._begin

    def _take_savepoint(self) -> None:
        if self._has_savepoint:
            # The savepoint of an earlier message, no longer needed.
            self._execute(f"RELEASE SAVEPOINT {SAVEPOINT}")
        self._execute(f"SAVEPOINT {SAVEPOINT}")
        self._has_savepoint = self._savepoint = True

    def end_message(self) -> Hooks:
        """End the message, except for its commit. Returns the `on_commit` hooks of an alias that was not used."""
        if self._connection is None:
            return []
        self._connection.on_first_use = None
        return [] if self.begun else self._leave()

    def undo_message(self) -> None:
        """Undo the message's work here, including its hooks; that of earlier messages stays. The message may be retried."""
        connection = self._connection
        if connection is None:
            return
        connection.on_first_use = None
        if not self._begun_before:
            self.abandon()
            self.begin_message()
            return
        del connection.run_on_commit[self._first_hook :]
        connection.needs_rollback = False
        connection.savepoint_ids.clear()
        del connection.atomic_blocks[1:]
        if self._savepoint:
            with database_errors(_dialect(), f"roll back to the savepoint on {self.alias!r}"):
                self._execute(f"ROLLBACK TO SAVEPOINT {SAVEPOINT}")
        connection.on_first_use = self._take_savepoint

    def check_usable(self) -> None:
        """Raise DoomedTransaction if the transaction cannot commit."""
        connection = self._connection
        if connection is None:
            return
        if len(connection.atomic_blocks) > 1:
            raise DoomedTransaction(
                f"the handler left an atomic() on {self.alias!r} open that it had entered by hand; use it in a with statement or "
                "as a decorator"
            )
        if connection.needs_rollback or not connection.in_atomic_block or (self.begun and self._has_failed()):
            raise DoomedTransaction(
                f"the transaction on {self.alias!r} cannot be committed: a database error inside of it was caught outside of an "
                "atomic() block, set_rollback(True) was called, or its connection was closed"
            )

    def _has_failed(self) -> bool:
        raw = self.connection.unwatched
        return raw is None or self.connection.closed_in_transaction or raw.info.transaction_status == _IN_ERROR

    def has_written(self) -> bool:
        """Whether the open transaction has written or locked a row."""
        return bool(fetch_all(self.connection, _dialect().statement("transaction_has_written"))[0][0])

    def commit_plainly(self) -> Hooks:
        """Commit a transaction that has written nothing, and return its hooks."""
        return self._leave()

    def prepare(self, branch: BranchId) -> Hooks:
        """Phase one: turn the transaction into a branch, leave the connection as after a commit, and return the hooks.

        Raises the database's error, or CannotPrepare; nothing of the transaction is left then.
        """
        connection = self.connection
        try:
            prepare(connection, branch)
        except BaseException:
            self.abandon()
            raise
        # The driver's connection has no transaction any more, so the commit sends nothing to the server.
        return self._leave()

    def _leave(self) -> Hooks:
        connection, self._connection = self.connection, None
        begun, self.begun = self.begun, False
        connection.on_first_use = None
        hooks: Hooks = [entry[1] for entry in connection.run_on_commit]
        connection.run_on_commit = []
        if begun:
            self._atomic.__exit__(None, None, None)
        else:
            _unmark(connection)
        return hooks

    def abandon(self) -> None:
        """Roll back everything. Does nothing without a transaction; never raises."""
        connection, self._connection = self._connection, None
        begun, self.begun = self.begun, False
        if connection is None:
            return
        connection.on_first_use = None
        connection.run_on_commit = []
        connection.savepoint_ids.clear()
        if not begun:
            _unmark(connection)
            return
        connection.atomic_blocks[:] = [self._atomic]
        with contextlib.suppress(DjangoDatabaseError):
            connection.needs_rollback = True
            self._atomic.__exit__(None, None, None)

    def _execute(self, statement: str) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(statement)


def _unmark(connection: WatchedConnection) -> None:
    connection.in_atomic_block = False
    connection.needs_rollback = False
    connection.atomic_blocks.clear()
    connection.savepoint_ids.clear()


# Statements that read, begin or end a transaction, or set up a session.
_HARMLESS: Final = re.compile(
    r"\s*(?:--[^\n]*\n\s*|/\*.*?\*/\s*|\(\s*)*"
    r"(?:SELECT|WITH|VALUES|SHOW|EXPLAIN|DESCRIBE|PRAGMA|BEGIN|START|COMMIT|ROLLBACK|SAVEPOINT|RELEASE|SAVE|SET|USE)\b",
    re.IGNORECASE | re.DOTALL,
)
_WRITES_INSIDE: Final = re.compile(r"\b(?:INSERT|UPDATE|DELETE|MERGE|REPLACE\s+INTO|INTO)\b", re.IGNORECASE)
_TEXTS: Final = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`[^`]*`|\[[^\]]*\]")


class ReadOnlyParticipant:
    """A database that cannot prepare a transaction: refuses writing statements while a handler runs.

    It refuses them at execution: at the end of the message nothing could be undone.
    """

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self._connection: BaseDatabaseWrapper | None = None

    def begin_message(self) -> None:
        """Refuse writing statements from now on."""
        if self._connection is None:
            self._connection = connections[self.alias]
            self._connection.execute_wrappers.append(self._refuse)

    def end_message(self) -> None:
        """Allow writing statements again."""
        connection, self._connection = self._connection, None
        if connection is not None and self._refuse in connection.execute_wrappers:
            connection.execute_wrappers.remove(self._refuse)

    def _refuse(self, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: dict[str, Any]) -> Any:
        if is_writing(str(sql)):
            vendor = context["connection"].display_name
            raise CannotPrepare(cannot_prepare(self.alias, f"({vendor}) cannot prepare a transaction"))
        return execute(sql, params, many, context)


def is_writing(sql: str) -> bool:
    """Whether a statement may change something; also True for one that only locks rows (FOR UPDATE)."""
    if _HARMLESS.match(sql) is None:
        return True
    return _WRITES_INSIDE.search(_TEXTS.sub("''", sql)) is not None
