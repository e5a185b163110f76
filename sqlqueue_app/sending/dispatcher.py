"""Writing outgoing messages into their queue tables, all or none."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from datetime import datetime
from functools import cached_property, lru_cache

from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.envelope import OutgoingMessage, new_message_id
from sqlqueue_app.messages.errors import QueueNotFound
from sqlqueue_app.messages.headers import write_headers
from sqlqueue_app.messages.resolution import AddressBook
from sqlqueue_app.sending.composer import utc_now
from sqlqueue_app.sending.delaying import Soonest, delayed_row, own_delayed_table, tell_of_delay
from sqlqueue_app.tables.announcing import announcing_table
from sqlqueue_app.tables.connections import SecondConnections
from sqlqueue_app.tables.delayed import DelayedTable
from sqlqueue_app.tables.queue import QueueTable, queue_table
from sqlqueue_app.tables.rows import NewRow
from sqlqueue_app.tables.writing import Inserts, chunks_by_table, write_chunks

_REMEMBERED_ADDRESSES = 1_000


class Dispatcher:
    """Writes into the tables of one alias, on the calling thread's connection, inside its transaction if there is one.

    With `announces`, receivers that wait for announcements wake up with the commit. Delayed messages go into the table of
    `endpoint`; without one they are refused. `now` is for the header that says when they shall arrive.
    """

    def __init__(
        self,
        alias: str,
        book: AddressBook,
        *,
        announces: bool = False,
        endpoint: str | None = None,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self.alias = alias
        self.endpoint = endpoint
        self._now = now
        self._table_of = announcing_table if announces else queue_table
        self.book = book
        # The same few queues again and again; bounded, for peers' reply-to addresses come here too.
        self._resolve = lru_cache(maxsize=_REMEMBERED_ADDRESSES)(book.resolve)

    def dispatch(self, messages: Sequence[OutgoingMessage], *, begun: bool = False) -> None:
        """Insert the messages, those of each queue in the order given and with one statement for a few hundred: all or none.

        Two messages of the same id to the same queue are one: the later wins, in the place of the first (transport reference
        5.1), but for two that wait for different times. QueueNotFound if a queue is missing, ConfigurationError for a delayed
        message of no endpoint, WireFormatError for a time beyond the year 9999: nothing is written then. With `begun` the caller
        is in a transaction that it undoes on an error: several statements need no savepoint of their own.
        """
        self.dispatch_each([messages], begun=begun)

    def dispatch_each(self, groups: Sequence[Sequence[OutgoingMessage]], *, begun: bool = False) -> None:
        """As `dispatch`, all groups at once; two messages of the same id are one within a group only.

        A group is what was sent while one message of a batch was handled: that some are handled together changes nothing.
        """
        try:
            self._dispatch_each(groups, begun=begun)
        except QueueNotFound as missing:
            if (because := self._because(groups, missing.table)) is None:
                raise
            raise QueueNotFound(f"{missing}; {because}") from missing

    def _dispatch_each(self, groups: Sequence[Sequence[OutgoingMessage]], *, begun: bool) -> None:
        if len(groups) == 1 and len(groups[0]) == 1 and not groups[0][0].is_delayed:
            table, row = self._immediate(groups[0][0])
            table.insert([row])
            return
        unique: dict[tuple[Hashable, ...], OutgoingMessage] = {}
        for number, messages in enumerate(groups):
            for message in messages:
                name = message.message_id or new_message_id()
                unique[number, self._table(message.destination), name, message.delay, message.deliver_at] = message
        # Made before anything is written: a time that no table can hold is found here.
        now = self._now()
        waiting = {place: delayed_row(message, self.book, now) for place, message in unique.items() if message.is_delayed}
        rows = (
            (self._delayed, waiting[place]) if place in waiting else self._immediate(message) for place, message in unique.items()
        )
        self._write(rows, begun=begun)

    def dispatch_rows(self, rows: Iterable[tuple[QueueAddress, NewRow]], *, begun: bool = False) -> list[str]:
        """Insert rows with new ids as they are made, all or none, and return the ids in order; few rows are in memory at a time.

        With `begun` the caller has begun the transaction or savepoint, and rolls it back on an error. Then the rows may come from
        the alias's own connection: they are asked for between the statements.
        """
        ids: list[str] = []
        self._write(self._with_tables(rows, ids), begun=begun)
        return ids

    def _write(self, rows: Iterable[tuple[Inserts, NewRow]], *, begun: bool) -> None:
        soonest = Soonest(self._now)
        write_chunks(self.alias, chunks_by_table(soonest.of(rows)), begun=begun)
        if soonest.seconds is not None:
            tell_of_delay(self.alias, soonest.seconds)

    def _with_tables(self, rows: Iterable[tuple[QueueAddress, NewRow]], ids: list[str]) -> Iterator[tuple[Inserts, NewRow]]:
        """Each row with its table; its id is noted on the way."""
        for destination, row in rows:
            ids.append(row.id)
            yield self._delayed if row.is_delayed else self._table(destination), row

    def _immediate(self, message: OutgoingMessage) -> tuple[QueueTable, NewRow]:
        table = self._table(message.destination)
        return table, new_row(message, keep_id=table.dialect.name != "postgresql")

    @cached_property
    def _delayed(self) -> DelayedTable:
        return own_delayed_table(self.alias, self.book, self.endpoint)

    def _because(self, groups: Sequence[Sequence[OutgoingMessage]], table: str | None) -> str | None:
        """Which subscription brought a message to the table, if one did."""
        told = (
            message.because for messages in groups for message in messages if self._table(message.destination).qualified == table
        )
        return next((because for because in told if because), None)

    def _table(self, destination: QueueAddress) -> QueueTable:
        return self._table_of(self.alias, self._resolve(destination))

    def close(self) -> None:
        """Give back what the calling thread holds for sending; nothing here."""


class SeparateDispatcher(Dispatcher):
    """Writes on a second connection of the calling thread, in a transaction of its own: committed on return, whatever becomes
    of the transaction that the thread has open.
    """

    def __init__(self, alias: str, book: AddressBook, *, announces: bool = False, endpoint: str | None = None) -> None:
        super().__init__(alias, book, announces=announces, endpoint=endpoint)
        self._second = SecondConnections(alias)

    def dispatch_each(self, groups: Sequence[Sequence[OutgoingMessage]], *, begun: bool = False) -> None:
        """As Dispatcher.dispatch_each, but never inside the caller's transaction, whatever `begun` says."""
        with self._second.used():
            super().dispatch_each(groups)

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
