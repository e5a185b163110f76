"""What one polling thread does with the database: one poll, one transaction."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable

from django.conf import settings as django_settings
from django.db import connections, reset_queries

from sqlqueue_app.messages.errors import ConnectionLost, DatabaseError, TransientError
from sqlqueue_app.policies.rate_limit import WAIT_SECONDS
from sqlqueue_app.policies.transaction_mode import TransactionMode
from sqlqueue_app.receiving.non_transactional import NonTransactionalProcessor
from sqlqueue_app.receiving.processing import MessageProcessor
from sqlqueue_app.receiving.processor_config import ProcessorConfig
from sqlqueue_app.receiving.stopping import EmptyQueues, StopSignal
from sqlqueue_app.tables.queue import QueueTable
from sqlqueue_app.tables.receive_transaction import ReceiveTransaction, receive_transaction

logger = logging.getLogger("sqlqueue.receive")

# SQLite has one writer: the threads of a process take turns here instead of running into each other's lock (design 6.11).
_sqlite_turn = threading.Lock()


NewProcessor = Callable[[ProcessorConfig, ReceiveTransaction], MessageProcessor]


class QueuePoller:
    """Polls one queue in one thread. The thread's connection is opened by the first poll and given back by `close`."""

    def __init__(
        self,
        table: QueueTable,
        config: ProcessorConfig,
        *,
        stop: StopSignal,
        empty: EmptyQueues | None = None,
        count: Callable[[], None] = lambda: None,
        receives_ahead: bool = False,
        new_processor: NewProcessor | None = None,
    ) -> None:
        self._table = table
        self._config = config
        self._stop = stop
        self._empty = empty
        self._count = count
        self._receives_ahead = receives_ahead
        self._busy = False
        self.handling = False
        self._new_processor = new_processor or _processor_of_mode
        self._processor: MessageProcessor | None = None
        self._gave_way = False
        self._other_aliases = len(list(connections)) > 1
        self._turn = _sqlite_turn if table.dialect.name == "sqlite" else contextlib.nullcontext()

    def poll(self, received: Callable[[bool], None] | None = None) -> bool:
        """Receive and process a batch of messages; True if there was one. DatabaseError when the database cannot be asked.

        With `receives_ahead` a poll that found work may leave the next rows received: poll again at once, or `close`.
        """
        limit = self._config.rate_limit
        if not limit.limited:
            return self._poll_in_turn(received)
        self._give_back()
        with limit.one_at_a_time():
            found = self._poll_in_turn(received)
            if found and limit.limited:
                self._stop.wait(WAIT_SECONDS)
            return found

    def _poll_in_turn(self, received: Callable[[bool], None] | None) -> bool:
        with self._turn:
            if self._stop.is_set():
                return False
            if self._empty is None:
                return self._poll(received)
            return self._poll_and_tell(self._empty, received)

    def peek(self) -> int:
        """An upper bound of the messages that wait; rows that are being received do not count."""
        mark = None if self._empty is None else self._empty.poll_begins()
        waiting = -1
        try:
            waiting = self._table.waiting()
        finally:
            if self._empty is not None and mark is not None and self._empty.poll_ends(self._config.queue, mark, empty=waiting == 0):
                self._stop.set()
        return waiting

    def _poll(self, received: Callable[[bool], None] | None) -> bool:
        processor = self._ready()
        self._gave_way = False
        try:
            rows = processor.receive()
        except ConnectionLost:
            raise
        except TransientError as error:
            logger.warning("receive gave way to another session: %s", error, extra=self._extra("receive_gave_way"))
            self._gave_way = True
            return False
        if received is not None:
            received(bool(rows))
        if not rows:
            return False
        self._is_busy(True)
        self.handling = True
        try:
            found = processor.process(rows)
            if not found:
                # The model may wait now, and nothing is to be held meanwhile.
                processor.give_back()
            return found
        except DatabaseError as error:
            logger.critical(
                "a message could not be brought to an end and is in its queue again: %s",
                error,
                extra=self._extra("message_stays"),
            )
            raise
        finally:
            self.handling = False
            for _ in rows:
                self._count()
            # Rows that were received ahead are in no queue, so that an empty one proves nothing yet.
            self._is_busy(processor.has_rows_ahead)
            self._tidy()

    def _is_busy(self, busy: bool) -> None:
        if self._empty is not None and busy is not self._busy:
            self._busy = busy
            (self._empty.message_begins if busy else self._empty.message_ends)()

    def _poll_and_tell(self, empty: EmptyQueues, received: Callable[[bool], None] | None) -> bool:
        mark = empty.poll_begins()
        found: bool | None = None
        try:
            found = self._poll(received)
        finally:
            # A receive that gave way found nothing and knows nothing.
            if empty.poll_ends(self._config.queue, mark, empty=found is False and not self._gave_way):
                self._stop.set()
        return found

    def _ready(self) -> MessageProcessor:
        # Made here and not in the constructor: on SQL Server it looks at the table, which may be away like everything else.
        if self._processor is None:
            with self._table.errors(f"look at {self._table.qualified}"):
                opened = receive_transaction(self._table, self._config.bound)
                opened.others = self._config.others()
                self._processor = self._new_processor(self._config, opened)
                self._processor.may_receive_ahead = self._may_receive_ahead
        return self._processor

    def _may_receive_ahead(self) -> bool:
        return self._receives_ahead and not self._stop.is_set() and not self._config.rate_limit.limited

    def _tidy(self) -> None:
        """What Django does at the end of a request: forget the query log, close connections that are broken or too old."""
        if django_settings.DEBUG:
            reset_queries()
        if not self._other_aliases:
            return
        for connection in connections.all(initialized_only=True):
            if connection.alias != self._table.alias:
                connection.close_if_unusable_or_obsolete()

    def _give_back(self) -> None:
        if self._processor is not None:
            self._processor.give_back()
        self._is_busy(False)

    def close(self) -> None:
        """Close every connection of the calling thread; rows that were received ahead are in their queue again."""
        self._give_back()
        self._processor = None
        for dispatcher in (self._config.dispatcher, self._config.immediate_dispatcher):
            if dispatcher is not None:
                dispatcher.close()
        connections.close_all()

    def _extra(self, event: str) -> dict[str, object]:
        return {"event": event, "endpoint": self._config.endpoint, "queue": self._config.queue}


def _processor_of_mode(config: ProcessorConfig, opened: ReceiveTransaction) -> MessageProcessor:
    return (NonTransactionalProcessor if config.mode is TransactionMode.NONE else MessageProcessor)(config, opened)
