"""Writes outgoing messages into their queue tables, all or none."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime
from functools import cached_property, lru_cache, partial
from itertools import chain, islice

from django.db import transaction

from sqlqueue_app.conf import get_settings
from sqlqueue_app.conf.validation import suggestion
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.addresses import AddressBook, QueueAddress
from sqlqueue_app.messages.envelope import OutgoingMessage, new_message_id
from sqlqueue_app.messages.errors import QueueNotFound
from sqlqueue_app.sending.claim_checks import ClaimChecks
from sqlqueue_app.sending.composer import check_can_delay, delayed_row, new_row, outgoing_of, utc_now
from sqlqueue_app.signals import about, message_sent
from sqlqueue_app.tables.connections import SecondConnections, connection_of
from sqlqueue_app.tables.delayed import DelayedTable
from sqlqueue_app.tables.installation import delayed_address
from sqlqueue_app.tables.queue import Inserts, QueueTable, all_or_none, chunks_by_table, queue_table, write_chunks
from sqlqueue_app.tables.rows import NewRow

_REMEMBERED_ADDRESSES = 1_000
_SIGNALLED_TOGETHER = 500


class Dispatcher:
    """Writes into the tables of one alias, on the calling thread's connection, inside its transaction if there is one.

    Delayed messages go into the table of `endpoint`; without one they are refused.
    """

    def __init__(
        self,
        alias: str,
        book: AddressBook,
        *,
        endpoint: str | None = None,
        claim_checks: ClaimChecks | None = None,
    ) -> None:
        self.alias = alias
        self.endpoint = endpoint
        self.book = book
        self._claim_checks = claim_checks
        # Mostly the same few queues; bounded, because reply-to addresses of other endpoints are resolved here too.
        self._resolve = lru_cache(maxsize=_REMEMBERED_ADDRESSES)(book.resolve)

    def dispatch(self, messages: Sequence[OutgoingMessage], *, begun: bool = False) -> None:
        """Insert the messages, all or none, in the given order per queue, with one statement for a few hundred.

        Two messages of the same id to the same queue count as one: the later wins, in the place of the first
        (docs/internals/endpoints.md#dispatch), unless they wait for different times. Raises QueueNotFound if a queue is missing,
        ConfigurationError for a delayed message without an endpoint, WireFormatError for a time beyond the year 9999; nothing is
        written then. `begun`: the caller rolls back its open transaction on an error, so several statements need no savepoint.
        """
        self.dispatch_each([messages], begun=begun)

    def dispatch_each(self, groups: Sequence[Sequence[OutgoingMessage]], *, begun: bool = False) -> None:
        """Insert all groups at once; otherwise as `dispatch`, but two messages of the same id count as one only within a group.

        A group holds the messages sent while one message of a batch was handled, so batching does not change the result.
        """
        if message_sent.receivers:
            # Also where the caller has begun: a receiver may catch an error that has broken the transaction.
            with all_or_none(self.alias):
                self._dispatch_each(groups, begun=True)
                for message in chain.from_iterable(groups):
                    if message.is_new:
                        self._signal_sent(message)
        else:
            self._dispatch_each(groups, begun=begun)

    def _dispatch_each(self, groups: Sequence[Sequence[OutgoingMessage]], *, begun: bool) -> None:
        try:
            if len(groups) == 1 and len(groups[0]) == 1 and not groups[0][0].is_delayed:
                table, row = self._immediate(groups[0][0])
                table.insert([row])
            else:
                self._write(self._rows_of(groups), begun=begun)
        except QueueNotFound as missing:
            self._explain(missing, groups)
            raise

    def keep(self, messages: Sequence[OutgoingMessage], *, kept: list[OutgoingMessage]) -> None:
        """Add messages that are written later. QueueNotFound as `dispatch`, now, while their sender can still fail."""
        try:
            for message in messages:
                if not message.is_delayed:
                    self._table(message.destination).layout()
        except QueueNotFound as missing:
            self._explain(missing, [messages])
            raise
        kept.extend(messages)

    def _explain(self, missing: QueueNotFound, groups: Sequence[Sequence[OutgoingMessage]]) -> None:
        """Add to the error what has led to the missing queue, or which one may be meant."""
        because = self._because(groups, missing.table)
        missing.args = (f"{missing}; {because}" if because else f"{missing}{missing_queue_hint(missing.queue, missing.table)}",)

    def _rows_of(self, groups: Sequence[Sequence[OutgoingMessage]]) -> Iterator[tuple[Inserts, NewRow]]:
        """The messages as rows with their tables. Rows of immediate messages are made lazily."""
        unique: dict[tuple[Hashable, ...], OutgoingMessage] = {}
        for number, messages in enumerate(groups):
            for message in messages:
                name = message.message_id or new_message_id()
                unique[number, self._table(message.destination), name, message.delay, message.deliver_at] = message
        # Before anything is written: a time that no table can hold raises here.
        now = utc_now()
        waiting = {place: self._delayed_row(message, now) for place, message in unique.items() if message.is_delayed}
        return (
            (self._delayed, waiting[place]) if place in waiting else self._immediate(message) for place, message in unique.items()
        )

    def send_rows(self, rows: Iterable[tuple[QueueAddress, NewRow]], *, begun: bool = False) -> list[str]:
        """`dispatch_rows` for new messages: with receivers of `message_sent`, some rows at a time, followed by their signals."""
        if not message_sent.receivers:
            return self.dispatch_rows(rows, begun=begun)
        source, ids = iter(rows), list[str]()
        with nullcontext() if begun else all_or_none(self.alias):
            while written := list(islice(source, _SIGNALLED_TOGETHER)):
                ids += self.dispatch_rows(written, begun=True)
                for destination, row in written:
                    self._signal_sent(outgoing_of(destination, row))
        return ids

    def _signal_sent(self, message: OutgoingMessage) -> None:
        """Send the signal in the caller's transaction. Raises what a receiver raises."""
        message_sent.send(
            **about(message.headers, message.body),
            message_id=message.message_id or "",
            destination=self.book.canonical(message.destination),
            endpoint=message.headers.get(names.ORIGINATING_ENDPOINT),
        )

    def dispatch_rows(self, rows: Iterable[tuple[QueueAddress, NewRow]], *, begun: bool) -> list[str]:
        """Insert rows with new ids as they are made, all or none, and return the ids in order. Holds few rows in memory.

        `begun`: the caller has begun the transaction or savepoint, and rolls it back on an error. The rows may then come from the
        alias's own connection: they are read between the statements.
        """
        ids: list[str] = []
        try:
            self._write(self._with_tables(rows, ids), begun=begun)
        except QueueNotFound as missing:
            missing.args = (f"{missing}{missing_queue_hint(missing.queue, missing.table)}",)
            raise
        return ids

    def _with_tables(self, rows: Iterable[tuple[QueueAddress, NewRow]], ids: list[str]) -> Iterator[tuple[Inserts, NewRow]]:
        """Yield each row with its table, and append its id to `ids`."""
        for destination, row in rows:
            ids.append(row.id)
            if self._claim_checks is not None:
                row = self._claim_checks.check_in(self._resolve(destination), row)
            yield self._delayed if row.is_delayed else self._table(destination), row

    def _write(self, rows: Iterable[tuple[Inserts, NewRow]], *, begun: bool) -> None:
        soonest = _EarliestDue()
        write_chunks(self.alias, chunks_by_table(soonest.of(rows)), begun=begun)
        if soonest.seconds is not None:
            notify_of_delay(self.alias, soonest.seconds)

    def _immediate(self, message: OutgoingMessage) -> tuple[QueueTable, NewRow]:
        table = self._table(message.destination)
        row = new_row(message, keep_id=table.dialect.name != "postgresql")
        if self._claim_checks is not None:
            row = self._claim_checks.check_in(table.address, row)
        return table, row

    def _delayed_row(self, message: OutgoingMessage, now: datetime) -> NewRow:
        row = delayed_row(message, self.book, now)
        return row if self._claim_checks is None else self._claim_checks.check_in(self._resolve(message.destination), row)

    def _table(self, destination: QueueAddress) -> QueueTable:
        return queue_table(self.alias, self._resolve(destination))

    @cached_property
    def _delayed(self) -> DelayedTable:
        return own_delayed_table(self.alias, self.book, self.endpoint)

    def _because(self, groups: Sequence[Sequence[OutgoingMessage]], table: str | None) -> str | None:
        """The subscription that sent a message to the table, if any."""
        reasons = (
            message.because for messages in groups for message in messages if self._table(message.destination).qualified == table
        )
        return next((because for because in reasons if because), None)

    def close(self) -> None:
        """Release what the calling thread holds for sending; nothing here."""


class SeparateDispatcher(Dispatcher):
    """Writes on a second connection of the calling thread: committed on return, independent of the thread's transaction."""

    def __init__(
        self, alias: str, book: AddressBook, *, endpoint: str | None = None, claim_checks: ClaimChecks | None = None
    ) -> None:
        super().__init__(alias, book, endpoint=endpoint, claim_checks=claim_checks)
        self.second = SecondConnections(alias)
        """The second connections, for other work that must not join the thread's transaction."""

    def dispatch_each(self, groups: Sequence[Sequence[OutgoingMessage]], *, begun: bool = False) -> None:
        """Insert as Dispatcher.dispatch_each, but never inside the caller's transaction, whatever `begun` is."""
        with self.second.used():
            super().dispatch_each(groups)

    def close(self) -> None:
        """Close the calling thread's second connection."""
        self.second.close()


def own_delayed_table(alias: str, book: AddressBook, endpoint: str | None) -> DelayedTable:
    """The delayed table of an endpoint. Raises ConfigurationError as `check_can_delay`."""
    return DelayedTable(alias, delayed_address(book, check_can_delay(endpoint)))


def missing_queue_hint(queue: str, table: str | None = None) -> str:
    """The end of an error about a queue that does not exist: the route that names it, and the queue that may be meant."""
    settings = get_settings()
    for name in settings.queue_names():
        if "." in name and table == QueueAddress.parse(name, "postgresql").qualified(None):
            return f": did you mean '\"{name}\"'? Without the quotes, the text before the dot is a schema"
    if queue in settings.endpoints:
        return ""
    route = next((f'; SQLQUEUE["ROUTES"]["{pattern}"] names it' for pattern, name in settings.routes.items() if name == queue), "")
    return route + suggestion(queue, {*settings.endpoints, *settings.routes.values()} - {queue})


class _EarliestDue:
    """Records in how many seconds, by our clock, the first delayed row is due; None if there is none."""

    def __init__(self) -> None:
        self.seconds: float | None = None

    def of(self, rows: Iterable[tuple[Inserts, NewRow]]) -> Iterator[tuple[Inserts, NewRow]]:
        """Pass the rows through unchanged."""
        for placed in rows:
            row = placed[1]
            if row.is_delayed:
                wait = (row.delay_ms or 0) / 1000 if row.due is None else (row.due - utc_now()).total_seconds()
                self.seconds = wait if self.seconds is None else min(wait, self.seconds)
            yield placed


Notify = Callable[[float], None]
_watchers: dict[str, list[Notify]] = {}
_watchers_lock = threading.Lock()


@contextmanager
def notified_of_delays(alias: str, notify: Notify) -> Iterator[None]:
    """While open, call `notify` with the seconds to wait when this process commits a delayed message; it must never raise."""
    with _watchers_lock:
        _watchers.setdefault(alias, []).append(notify)
    try:
        yield
    finally:
        with _watchers_lock:
            _watchers[alias].remove(notify)
            if not _watchers[alias]:
                del _watchers[alias]


def notify_of_delay(alias: str, seconds: float) -> None:
    """Notify the watchers when the calling thread's transaction on the alias commits; does nothing without watchers."""
    if not _watchers.get(alias):
        return
    connection = connection_of(alias)
    if connection.in_atomic_block or connection.autocommit:
        transaction.on_commit(partial(_notify_watchers, alias, seconds), using=alias)


def _notify_watchers(alias: str, seconds: float) -> None:
    with _watchers_lock:
        watchers = list(_watchers.get(alias, ()))
    for notify in watchers:
        notify(seconds)
