"""What is done with one message of a queue, by its RowVersion: deleted, or moved to another queue."""

from __future__ import annotations

from django.db import transaction

from sqlqueue_app.conf import Settings
from sqlqueue_app.messages.errors import QueueNotFound, SqlQueueError
from sqlqueue_app.operations.known_queues import address_book_of
from sqlqueue_app.tables.chosen_rows import TakenRow, remove_rows, take_rows
from sqlqueue_app.tables.queue import QueueTable, queue_table
from sqlqueue_app.tables.rows import NewRow


class MessageNotThere(SqlQueueError):
    """The message was received or deleted, or somebody is at work on it now."""


def delete_message(table: QueueTable, row_version: int) -> None:
    """Delete it for good. MessageNotThere; DatabaseErrors."""
    if not remove_rows(table, [row_version]):
        raise MessageNotThere(_gone(table, row_version))


def move_message(settings: Settings, table: QueueTable, row_version: int, to: str) -> QueueTable:
    """Put it into another queue as it is, in one transaction; returns the table of that queue.

    `to` is the literal name of a table, or an address. What is left of its life it keeps. MessageNotThere; QueueNotFound for a
    queue that does not exist; AddressError for a text that is no address; ValueError for the queue that it is in; DatabaseErrors.
    """
    target = target_of(settings, to)
    if target.qualified == table.qualified:
        raise ValueError(f"{to!r} is the queue that the message is in: name another one")
    with transaction.atomic(using=table.alias):
        taken = take_rows(table, [row_version])
        if not taken:
            raise MessageNotThere(_gone(table, row_version))
        target.send(map(moved_row, taken))
    return target


def target_of(settings: Settings, text: str) -> QueueTable:
    """The queue that an operator names: the table of this literal name, else what the text means as an address. QueueNotFound."""
    book = address_book_of(settings)
    literal = queue_table(settings.database, book.of_queue(text))
    if literal.exists():
        return literal
    parsed = queue_table(settings.database, book.parse(text))
    if not parsed.exists():
        raise QueueNotFound(f"there is no queue {text!r} in database {settings.database!r}: make it, or name another one")
    return parsed


def moved_row(row: TakenRow) -> NewRow:
    """The row as another queue gets it: the same but for its RowVersion. A NULL body, which would stop others, becomes empty."""
    return NewRow(
        id=str(row.id),
        headers=row.headers or "",
        body=row.body or b"",
        correlation_id=row.correlation_id,
        reply_to_address=row.reply_to_address,
        time_to_be_received_ms=row.lifetime_ms,
    )


def _gone(table: QueueTable, row_version: int) -> str:
    return (
        f"message {row_version} is not in {table.qualified}: it was received or deleted, or somebody is at work on it; look again"
    )
