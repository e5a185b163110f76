"""Writing outgoing messages into their queue tables, all or none."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.envelope import OutgoingMessage, new_message_id
from sqlqueue_app.messages.headers import write_headers
from sqlqueue_app.messages.resolution import AddressBook
from sqlqueue_app.tables.announcing import announcing_table
from sqlqueue_app.tables.connections import SecondConnections
from sqlqueue_app.tables.queue import QueueTable, queue_table
from sqlqueue_app.tables.rows import NewRow
from sqlqueue_app.tables.writing import chunks_by_table, write_chunks

_REMEMBERED_ADDRESSES = 1_000


class Dispatcher:
    """Writes into the tables of one alias, on the calling thread's connection, inside its transaction if there is one.

    With `announces`, receivers that wait for announcements wake up with the commit.
    """

    def __init__(self, alias: str, book: AddressBook, *, announces: bool = False) -> None:
        self.alias = alias
        self._table_of = announcing_table if announces else queue_table
        self.book = book
        # The same few queues again and again; bounded, for peers' reply-to addresses come here too.
        self._resolve = lru_cache(maxsize=_REMEMBERED_ADDRESSES)(book.resolve)

    def dispatch(self, messages: Sequence[OutgoingMessage], *, begun: bool = False) -> None:
        """Insert the messages, those of each queue in the order given and with one statement for a few hundred: all or none.

        Two messages of the same id to the same queue are one: the later wins, in the place of the first (transport reference
        5.1). QueueNotFound if a queue is missing: nothing is written then. With `begun` the caller is in a transaction that it
        undoes on an error: several statements need no savepoint of their own.
        """
        if len(messages) == 1:
            message = messages[0]
            table = self._table(message.destination)
            table.insert([new_row(message, keep_id=table.dialect.name != "postgresql")])
            return
        unique: dict[tuple[QueueTable, str], OutgoingMessage] = {}
        for message in messages:
            unique[self._table(message.destination), message.message_id or new_message_id()] = message
        rows = ((table, new_row(message, keep_id=table.dialect.name != "postgresql")) for (table, _), message in unique.items())
        write_chunks(self.alias, chunks_by_table(rows), begun=begun)

    def dispatch_rows(self, rows: Iterable[tuple[QueueAddress, NewRow]], *, begun: bool = False) -> list[str]:
        """Insert rows with new ids as they are made, all or none, and return the ids in order; few rows are in memory at a time.

        With `begun` the caller has begun the transaction or savepoint, and rolls it back on an error. Then the rows may come from
        the alias's own connection: they are asked for between the statements.
        """
        ids: list[str] = []
        write_chunks(self.alias, chunks_by_table(self._with_tables(rows, ids)), begun=begun)
        return ids

    def _with_tables(self, rows: Iterable[tuple[QueueAddress, NewRow]], ids: list[str]) -> Iterator[tuple[QueueTable, NewRow]]:
        """Each row with its table; its id is noted on the way."""
        for destination, row in rows:
            ids.append(row.id)
            yield self._table(destination), row

    def _table(self, destination: QueueAddress) -> QueueTable:
        return self._table_of(self.alias, self._resolve(destination))

    def close(self) -> None:
        """Give back what the calling thread holds for sending; nothing here."""


class SeparateDispatcher(Dispatcher):
    """Writes on a second connection of the calling thread, in a transaction of its own: committed on return, whatever becomes
    of the transaction that the thread has open.
    """

    def __init__(self, alias: str, book: AddressBook, *, announces: bool = False) -> None:
        super().__init__(alias, book, announces=announces)
        self._second = SecondConnections(alias)

    def dispatch(self, messages: Sequence[OutgoingMessage], *, begun: bool = False) -> None:
        """As Dispatcher.dispatch, but never inside the caller's transaction, whatever `begun` says."""
        with self._second.used():
            super().dispatch(messages)

    def close(self) -> None:
        """Close the calling thread's second connection."""
        self._second.close()


def new_row(message: OutgoingMessage, *, keep_id: bool) -> NewRow:
    """The row of a message. Transports 1.x and 2.x take the message id from the row: it is kept there if it is a GUID.

    On PostgreSQL the row id is the primary key, so a message sent again with its id would be refused: always a new one.
    """
    lifetime = message.time_to_be_received
    return NewRow(
        id=_row_id(message.message_id) if keep_id else new_message_id(),
        headers=write_headers(message.headers),
        body=message.body,
        correlation_id=message.correlation_id,
        reply_to_address=message.reply_to,
        time_to_be_received_ms=None if lifetime is None else int(lifetime.total_seconds() * 1000),
    )


def _row_id(message_id: str | None) -> str:
    try:
        if message_id is None:
            return new_message_id()
        return str(uuid.UUID(message_id))
    except ValueError:
        return new_message_id()
