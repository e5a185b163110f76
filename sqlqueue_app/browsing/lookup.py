"""The public calls `revoke()` and `message_status()`: cancel a message by its id, look up where it is."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from asgiref.sync import sync_to_async

# The newest rows of a queue and the first due rows of a delayed table (docs/internals/performance.md#looking-up-a-message).
SEARCHED_ROWS: Final = 100_000


class RevokeResult(enum.StrEnum):
    """The result of `revoke()`; true only if the message was cancelled."""

    CANCELLED = "cancelled"
    IN_PROGRESS = "in progress"
    """A worker has received it, or another transaction holds its row, such as the move of a due message or another revoke."""
    NOT_FOUND = "not found"
    """It does not wait: it was handled, has failed or expired, was sent by a transaction that is still open, or was never sent."""
    UNKNOWN = "unknown"
    """Not found, but it may be behind the rows that were read, or have been locked or moved while they were read.

    In a handler it always replaces NOT_FOUND, because a handler does not see the other messages of its batch.
    """

    def __bool__(self) -> bool:
        return self is RevokeResult.CANCELLED


class MessageState(enum.StrEnum):
    """The state of a message; the words are those of the admin."""

    WAITING = "waiting"
    DELAYED = "delayed"
    """It waits in a table of delayed messages: for its time, or for a delayed retry."""
    IN_PROGRESS = "in progress"
    """A worker has received it, or another transaction holds its row."""
    FAILED = "failed"
    """It is in an error queue."""
    RETRIED = "retried"
    """It failed, was sent again, and has not been found since."""
    ARCHIVED = "archived"
    """It failed and was archived."""
    GONE = "gone"
    """It failed and was deleted, or it belonged to a Django task and was cancelled."""
    HANDLED = "handled"
    UNKNOWN = "unknown"
    """Nothing was found: see `message_status()`."""


@dataclass(frozen=True, slots=True)
class MessageStatus:
    """The state of a message and its place.

    `queue`: the queue, delayed table or error queue, or the queue from which it was handled; empty if unknown. `due`: when a
    delayed message is delivered. `failure`: the id of a failed message in the admin and ServicePulse, once it is indexed.
    """

    message_id: str
    state: MessageState
    queue: str = ""
    due: datetime | None = None
    failure: UUID | None = None


def revoke(message_id: str | UUID, *, queue: str | None = None, limit: int = SEARCHED_ROWS) -> RevokeResult:
    """Cancel a message that waits in a queue or a delayed table: delete it, so that it is never handled.

    The row locks of the database decide between this call and the workers: a message is either cancelled or handled, never both.
    Inside `atomic()` on the queues' database a rollback restores the message; outside, the deletion is committed on return.
    The call does not wait for a handler, except on SQLite, which has one writer: it raises LockTimeout if the write lock is not
    free within the `timeout` of the connection. A failed message is not cancelled. All waiting copies of an event are cancelled.
    The result of a Django task whose message is cancelled has the status FAILED, with the error TaskRevoked.

    Headers have no index: at most `limit` rows are read in each table, the newest ones of a queue. `queue`: search only this
    queue or delayed table (`Sales.Delayed`). Otherwise all queue tables of the database are searched.

    Raises WireFormatError for an id that is neither text nor a UUID, ConfigurationError for an unknown queue or a wrong limit, and
    DatabaseError: PermissionDenied unless the user of the connection may SELECT and DELETE.
    """
    # Imported here, because the names that the package exports can be imported before Django is set up.
    from sqlqueue_app.browsing.by_id import cancel  # noqa: PLC0415

    return cancel(message_id, queue, limit)


def message_status(message_id: str | UUID, *, queue: str | None = None, limit: int = SEARCHED_ROWS) -> MessageStatus:
    """Look up where a message is; changes and locks nothing.

    Reads queues and delayed tables as `revoke()` does, error and audit queues, the index of failed messages, and if it was found
    in none of these: the ids of DEDUPLICATE_FOR, the results of Django tasks, and the lake, for up to two seconds.

    A message that was handled leaves no trace elsewhere. So UNKNOWN means: handled, expired, cancelled, never sent, sent by a
    transaction that is still open, or behind the rows that were read. If an event has several copies, a copy that is not handled
    yet is reported. Parameters and errors are those of `revoke()`.
    """
    from sqlqueue_app.browsing.by_id import status_of  # noqa: PLC0415 - as in revoke

    return status_of(message_id, queue, limit)


async def arevoke(message_id: str | UUID, *, queue: str | None = None, limit: int = SEARCHED_ROWS) -> RevokeResult:
    """`revoke()` for coroutines, as `asend()` is `send()`."""
    return await sync_to_async(revoke)(message_id, queue=queue, limit=limit)


async def amessage_status(message_id: str | UUID, *, queue: str | None = None, limit: int = SEARCHED_ROWS) -> MessageStatus:
    """`message_status()` for coroutines, as `asend()` is `send()`."""
    return await sync_to_async(message_status)(message_id, queue=queue, limit=limit)
