"""Two-phase commit as the other databases see it: prepare, commit and roll back branches, and list those that were left."""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.db.backends.base.base import BaseDatabaseWrapper

from sqlqueue_app.databases.dialect import Dialect, dialect
from sqlqueue_app.databases.two_phase import BranchId
from sqlqueue_app.messages.errors import CannotPrepare, DatabaseError, DoomedTransaction
from sqlqueue_app.tables.connections import connection_of, database_errors, fetch_all

logger = logging.getLogger("sqlqueue.background")

# An object is not there: somebody else has ended the branch. It is in use: somebody does so now.
_GONE: Final = "42704"
_NOT_IN_THE_STATE: Final = "55000"


@dataclass(frozen=True, slots=True)
class PreparedBranch:
    """A branch that its server keeps, with its locks, until somebody ends it."""

    alias: str
    id: BranchId
    prepared_at: datetime


def has_written(connection: BaseDatabaseWrapper) -> bool:
    """Whether the open transaction has written anything, or locked a row."""
    return bool(fetch_all(connection, _dialect().statement("transaction_has_written"))[0][0])


def prepare(connection: BaseDatabaseWrapper, branch: BranchId) -> None:
    """Phase one: end the open transaction as a branch that any session can commit, also after a crash of the server.

    The connection has no transaction then, which Django does not know. CannotPrepare where the server keeps no branches;
    DoomedTransaction where the transaction had failed, and was rolled back.
    """
    alias = connection.alias
    try:
        with connection.cursor() as cursor:
            cursor.execute(_dialect().script("prepare_transaction", branch=branch.literal))
            said = cursor.statusmessage
    except Exception as error:
        if _code(error) == _NOT_IN_THE_STATE:
            why = "keeps no prepared transactions (max_prepared_transactions = 0)"
            raise CannotPrepare(cannot_prepare(alias, why)) from error
        raise
    if said != "PREPARE TRANSACTION":
        raise DoomedTransaction(
            f"the transaction on {alias!r} cannot be committed: a database error inside of it was caught outside of an atomic() "
            "block; wrap the statement that may fail in transaction.atomic()"
        )


def cannot_prepare(alias: str, why: str) -> str:
    """The text for an alias that cannot take part."""
    return (
        f"the database {alias!r} {why}, so what a handler writes there cannot be committed together with its message; "
        "nothing was committed. Let it keep them, use TRANSACTION_MODE 'sends_atomic_with_receive' (what is written there "
        "then commits on its own, before the message), or have an endpoint whose queues are in that database do this work"
    )


def commit_prepared(alias: str, branch: BranchId) -> bool:
    """Phase two: whether it was this call that has ended the branch. DatabaseError if the database cannot be asked."""
    return _end(alias, branch, "commit_prepared")


def rollback_prepared(alias: str, branch: BranchId) -> bool:
    """As `commit_prepared`, for a transaction that is not committed."""
    return _end(alias, branch, "rollback_prepared")


def _end(alias: str, branch: BranchId, statement: str) -> bool:
    with database_errors(_dialect(), f"end the branch {branch} on {alias!r}"):
        try:
            with connection_of(alias).cursor() as cursor:
                cursor.execute(_dialect().script(statement, branch=branch.literal))
        except Exception as error:
            if _code(error) in (_GONE, _NOT_IN_THE_STATE):
                return False
            raise
    return True


def end_in_doubt(branch: PreparedBranch, *, committed: bool) -> bool:
    """End a branch as the log says, and tell; whether it was this process that has. A database that is away is logged."""
    try:
        ended = (commit_prepared if committed else rollback_prepared)(branch.alias, branch.id)
    except DatabaseError as error:
        text = "the branch %s on %r cannot be ended, and keeps its locks: %s"
        logger.warning(text, branch.id, branch.alias, error, extra={"event": "branch_in_doubt"})
        return False
    if ended:
        text = "the branch %s on %r was in doubt and is %s, as the log says"
        what = "committed" if committed else "rolled back"
        logger.warning(text, branch.id, branch.alias, what, extra={"event": "branch_resolved"})
    return ended


def prepared_branches(alias: str, coordinator: uuid.UUID) -> list[PreparedBranch]:
    """The branches of this coordinator in the database, the oldest first. DatabaseError if it cannot be asked."""
    with database_errors(_dialect(), f"look for prepared transactions in {alias!r}"):
        pattern = f"sqlqueue-{coordinator.hex}-%"
        rows = fetch_all(connection_of(alias), _dialect().statement("prepared_branches"), pattern=pattern)
    found = [(BranchId.parse(gid), at) for gid, at in rows]
    return [PreparedBranch(alias, branch, at) for branch, at in found if branch is not None]


def max_prepared_transactions(alias: str) -> int:
    """How many prepared transactions the server keeps at most; 0: none. DatabaseError if the database cannot be asked."""
    with database_errors(_dialect(), f"look at the settings of {alias!r}"):
        return int(fetch_all(connection_of(alias), _dialect().statement("max_prepared_transactions"))[0][0])


def _dialect() -> Dialect:
    return dialect("postgresql")


def _code(error: BaseException) -> str | None:
    """The server's code behind an error of Django or psycopg."""
    return getattr(error.__cause__ or error, "sqlstate", None) or getattr(error.__cause__ or error, "pgcode", None)
