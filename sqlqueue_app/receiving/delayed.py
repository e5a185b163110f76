"""Delayed messages: the worker thread that moves due messages to their destinations, and its polling."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from django.db import connections, transaction

from sqlqueue_app.conf import EndpointSettings, Settings
from sqlqueue_app.dialects.schema import wake_up_channel
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.addresses import AddressBook
from sqlqueue_app.messages.envelope import body_for_null, columns_of, guid_of
from sqlqueue_app.messages.errors import ConnectionLost, DatabaseError, LockTimeout, PoisonMessage, QueueNotFound, TransientError
from sqlqueue_app.messages.headers import Headers, read_headers, write_headers
from sqlqueue_app.policies.polling import IDLE_WAIT_SECONDS, BackOff
from sqlqueue_app.receiving.destinations import Destinations, Unroutable
from sqlqueue_app.receiving.error_queue import ErrorQueue, Processor, failure_of
from sqlqueue_app.receiving.stopping import StopSignal
from sqlqueue_app.receiving.waiting import EmptyQueues
from sqlqueue_app.sending.composer import sender_identity
from sqlqueue_app.sending.dispatcher import notified_of_delays
from sqlqueue_app.tables.connections import connection_of, database_errors, dialect_of_connection
from sqlqueue_app.tables.delayed import DelayedRow, DelayedTable
from sqlqueue_app.tables.installation import delayed_address
from sqlqueue_app.tables.listing import current_catalog
from sqlqueue_app.tables.queue import QueueTable, chunks_by_table, write_chunks
from sqlqueue_app.tables.rows import NewRow, ReceivedRow

logger = logging.getLogger("sqlqueue.receive")
background_logger = logging.getLogger("sqlqueue.background")

# Messages per transaction, as in every version of NServiceBus.
BATCH = 100


@dataclass(frozen=True, slots=True)
class DueMessage:
    """A due message: its headers without those of the delay, and its destination as written."""

    headers: Headers
    body: bytes
    to: str

    @classmethod
    def of(cls, headers: str | None, body: bytes | None, *, main: str) -> DueMessage:
        """The message of a row of a delayed table, sent to `main` if it names no destination. Raises PoisonMessage."""
        known = read_headers(headers)
        to = known.pop(names.FORWARD_DESTINATION, None) or main
        return cls(known, body_for_null(known) if body is None else body, to)

    @property
    def row_id(self) -> uuid.UUID:
        """The message id if it can be a row id, from which transports 1.x and 2.x take it."""
        return guid_of(self.headers.get(names.MESSAGE_ID)) or uuid.uuid4()

    def row(self, table: QueueTable) -> NewRow:
        """The row for the destination."""
        row_id = uuid.uuid4() if table.has_unique_ids else self.row_id
        return NewRow(str(row_id), write_headers(self.headers), self.body, *columns_of(self.headers))


class DueMessages:
    """Moves due messages from one delayed table directly to their destinations (docs/internals/wire.md#delayed-messages).

    Several processes may work on one table; an object serves one thread.
    """

    def __init__(
        self,
        endpoint: str,
        delayed: DelayedTable,
        *,
        main: str,
        destinations: Destinations,
        error_queue_of: Callable[[str], ErrorQueue],
    ) -> None:
        """`main` is the address text of the endpoint's own queue, for messages that name no destination."""
        self.endpoint = endpoint
        self.delayed = delayed
        self._main = main
        self._destinations = destinations
        self._error_queue_of = error_queue_of

    def move_batch(self) -> int:
        """Move at most BATCH due messages, earliest first, in one transaction, and return their number. 0: none, or all locked.

        Messages without a destination and unreadable ones go to the error queue. Raises DatabaseError; nothing is moved then.
        """
        lost: list[tuple[str, Exception]] = []
        doing = database_errors(self.delayed.dialect, f"move due messages from {self.delayed.qualified}")
        with doing, transaction.atomic(using=self.delayed.alias):
            rows = self.delayed.take_due(BATCH)
            self._deliver([due for row in rows if (due := self._read(row, lost)) is not None], lost)
        for message_id, reason in lost:
            logger.error("a delayed message is moved to the error queue: %s", reason, extra=self._extra(message_id))
        return len(rows)

    def _read(self, row: DelayedRow, lost: list[tuple[str, Exception]]) -> DueMessage | None:
        """The message of a row; None for an unreadable one, which goes to the error queue."""
        try:
            return DueMessage.of(row.headers, row.body, main=self._main)
        except PoisonMessage as poison:
            row_id = uuid.uuid4()
            unread = ReceivedRow(row_id, None, None, False, row.headers, row.body)
            self._error_queue_of(self._main).move_poison(unread, poison, failure_of(poison, unrecoverable=True))
            lost.append((str(row_id), poison))
            return None

    def _deliver(self, messages: list[DueMessage], lost: list[tuple[str, Exception]]) -> None:
        """Write all with one statement for each destination; if that fails, one by one, so that one bad table blocks no other."""
        try:
            with transaction.atomic(using=self.delayed.alias):
                placed: list[tuple[QueueTable, NewRow]] = []
                for due in messages:
                    table = self._destinations.table(due.to)
                    placed.append((table, due.row(table)))
                write_chunks(self.delayed.alias, chunks_by_table(placed), begun=True)
        except TransientError:
            raise
        except (Unroutable, DatabaseError):
            for due in messages:
                self._deliver_one(due, lost)

    def _deliver_one(self, due: DueMessage, lost: list[tuple[str, Exception]]) -> None:
        try:
            with self._destinations.writing_to(due.to) as table:
                table.send([due.row(table)])
        except Unroutable as error:
            # Like NServiceBus, report the destination as the failed queue: a retry goes there.
            row = ReceivedRow(due.row_id, None, None, False, None, due.body)
            self._error_queue_of(due.to).move(row, due.headers, failure_of(error, unrecoverable=True))
            lost.append((due.headers.get(names.MESSAGE_ID) or str(row.id), error))

    def _extra(self, message_id: str) -> dict[str, object]:
        return {
            "event": "message_unroutable",
            "endpoint": self.endpoint,
            "queue": self.delayed.address.table,
            "message_id": message_id,
        }


def due_messages_of(settings: Settings) -> list[DueMessages]:
    """One object for each endpoint of the settings and for SEND_AS. Reaches no database; the tables need not exist.

    Any worker on the database moves messages for all of them: a process that sends as SEND_AS runs no worker itself. Raises
    ConfigurationError for a name that is not valid in an address.
    """
    connection = connection_of(settings.database)
    dialect, catalog = dialect_of_connection(connection).name, current_catalog(connection)
    return [
        _due_messages(settings, settings.address_book(dialect, catalog, endpoint=config.name), config)
        for config in settings.senders.values()
    ]


def _due_messages(settings: Settings, book: AddressBook, config: EndpointSettings) -> DueMessages:
    name = config.name
    alias = settings.database
    identity = sender_identity(name, book)
    processor = Processor(name, identity.machine, identity.host_id)
    return DueMessages(
        name,
        DelayedTable(alias, delayed_address(book, name)),
        main=book.canonical(book.of_queue(name)),
        destinations=destinations_of_delayed(settings, book, name),
        error_queue_of=lambda queue: ErrorQueue(alias, book.parse(config.error_queue), failed_queue=queue, processor=processor),
    )


def destinations_of_delayed(settings: Settings, book: AddressBook, endpoint: str) -> Destinations:
    """The destinations of the delayed messages of an endpoint, which need not be in the settings."""
    config = settings.senders.get(endpoint)
    return Destinations(
        settings.database,
        book,
        satellites=frozenset() if config is None else frozenset(config.legacy_satellite_names()),
        own=endpoint,
        # ALLOWED_DESTINATIONS restricts the headers of received messages. The endpoint itself has sent these, and checked those
        # that it drained from an old peer's queue.
        allowed=None,
    )


class DelayedWakeUp:
    """The wake-up of one delayed table: whether all new rows are announced, and whether one was. Safe from any thread."""

    def __init__(self, delayed: DelayedTable, wake: Callable[[], None], clock: Callable[[], float]) -> None:
        """`wake` ends the wait of the polling thread, `clock` measures seconds."""
        self.queue = delayed.address.table
        self.qualified = delayed.qualified
        self.channel = wake_up_channel(delayed.qualified)
        self._wake = wake
        self._clock = clock
        self._woken_at: float | None = None
        self.push_enabled = False
        self._announced = False

    @property
    def is_quiet(self) -> bool:
        """Whether nothing was announced for QUIET_SECONDS: a poll shows little of what was stored since the last one."""
        return self._woken_at is None or self._clock() - self._woken_at >= QUIET_SECONDS

    def wake(self) -> None:
        """Have the thread poll for a message that may be due earlier than the known ones."""
        self._woken_at = self._clock()
        self.wake_all()

    def wake_all(self) -> None:
        """Have the thread poll, because announcements may have been missed, or will be."""
        self._announced = True
        self._wake()

    def take(self) -> bool:
        """Return and reset whether there was an announcement since the last call; poll afterwards."""
        announced, self._announced = self._announced, False
        return announced


# NServiceBus polls every second (3.1 to 6.2), or after 1 to 60 s (8.1); short delays stored by a web process must not wait.
POLL_SECONDS = 1.0
# While many delayed messages arrive, the table is polled every second anyway.
QUIET_SECONDS = 5.0
# The database's clock and our timer never agree exactly.
SHORTEST_WAIT_SECONDS = 0.001
# See docs/internals/endpoints.md#circuit-breakers.
FAILURE_FIRST_SECONDS = 1.0
FAILURE_CAP_SECONDS = 10.0
# The table of an endpoint that runs elsewhere need not exist; it may be created at any time.
MISSING_SECONDS = 60.0


class DelayedMover:
    """Moves due messages until the stop signal. Run by one thread; `stored` and `anything_due` may be called from any.

    It sleeps until the earliest known message is due, at most POLL_SECONDS. The commit of an earlier one wakes it if this process
    stores it, or if the table has the wake-up trigger; such a table is polled less often. A poll is one statement for each table,
    which reads the first entry of the index on the due times. The database's clock decides what is due.
    """

    def __init__(
        self,
        tables: Sequence[DueMessages],
        stop: StopSignal,
        *,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        """`clock` measures seconds; `wait` waits for a number of them, or until it is woken."""
        self._stop = stop
        self._wake = threading.Event()
        self._wait = wait or self._wake.wait
        self._empty: EmptyQueues | None = None
        self._tables = [_WatchedTable(each, clock, self._wake.set) for each in tables]
        stop.subscribe(self._wake.set)

    @property
    def wake_ups(self) -> list[DelayedWakeUp]:
        """The wake-ups for an optional listener to notify of new messages."""
        return [table.wake_up for table in self._tables]

    def report_to(self, empty: EmptyQueues) -> None:
        """Report the start and the end of each move: a message between two tables is in no queue."""
        self._empty = empty

    @contextmanager
    def running(self) -> Iterator[None]:
        """While open, run a thread that moves due messages. It ends with the stop signal, which must be set on exit."""
        if not self._tables:
            yield
            return
        thread = threading.Thread(target=self._run, name="sqlqueue-delayed", daemon=True)
        with notified_of_delays(self._tables[0].due.delayed.alias, self.stored):
            thread.start()
            try:
                yield
            finally:
                self._stop.set()
                thread.join()

    def stored(self, seconds: float) -> None:
        """Poll earlier if needed, because this process has committed a message that is due in `seconds`."""
        if seconds < POLL_SECONDS:
            self._wake_all()

    def _wake_all(self) -> None:
        for table in self._tables:
            table.wake_up.wake()

    def anything_due(self) -> bool:
        """Whether a due message waits, read on the calling thread's connection; wakes the mover then. Raises TransientError."""
        found = any(table.anything_due() for table in self._tables)
        if found:
            self._wake_all()
        return found

    def _run(self) -> None:
        try:
            # Without this thread no delayed message of this worker would move.
            with self._stop.failing_with(background_logger, "the mover of delayed messages died"):
                while not self._stop.is_set():
                    self._wake.clear()
                    seconds = self.move_due()
                    if not self._stop.is_set():
                        self._wait(seconds)
        finally:
            connections.close_all()

    def move_due(self) -> float:
        """Move due messages, a batch from each table in turn. Returns the seconds until the next poll. Never raises."""
        waits: dict[_WatchedTable, float] = {}
        while len(waits) < len(self._tables) and not self._stop.is_set():
            for table in self._tables:
                if table not in waits and (seconds := table.move_due(self._empty)) is not None:
                    waits[table] = seconds
        return max(SHORTEST_WAIT_SECONDS, min(waits.values(), default=POLL_SECONDS))


class _WatchedTable:
    """The mover's state of one delayed table: whether it exists, and how long to wait after an error."""

    def __init__(self, due: DueMessages, clock: Callable[[], float], wake: Callable[[], None]) -> None:
        self.due = due
        self.wake_up = DelayedWakeUp(due.delayed, wake, clock)
        self._clock = clock
        self._failure = BackOff(FAILURE_FIRST_SECONDS, FAILURE_CAP_SECONDS)
        self._retry_at: float | None = None
        self._alone_until: float | None = None
        self._missing = False

    def anything_due(self) -> bool:
        try:
            seconds = self.due.delayed.seconds_until_due()
        except TransientError:
            raise
        except DatabaseError:
            return False  # a table that cannot be read cannot be emptied either
        return seconds is not None and seconds <= 0

    def move_due(self, empty: EmptyQueues | None) -> float | None:
        """Move a batch if one is due. Returns the seconds until the next poll; None: at once, because there may be more."""
        if self._retry_at is not None and (wait := self._retry_at - self._clock()) > 0:
            return wait
        self._retry_at = None
        # Cleared before the poll, so that an announcement during it causes another poll.
        announced = self.wake_up.take()
        if not announced and self._alone_until is not None and (wait := self._alone_until - self._clock()) > 0:
            return wait
        self._alone_until = None
        longest = IDLE_WAIT_SECONDS if self.wake_up.push_enabled else POLL_SECONDS
        try:
            seconds = self.due.delayed.seconds_until_due()
            moved = self._move(empty) if seconds is not None and seconds <= 0 else -1
        except LockTimeout as error:
            # SQLite: a handler holds the write lock for long. This is harmless.
            extra = self._extra("delayed_locked")
            background_logger.debug("due messages of %s wait for a lock: %s", self.due.delayed.qualified, error, extra=extra)
            return POLL_SECONDS
        except Exception as error:  # noqa: BLE001 - the thread must survive any error of a table or a row
            return self._back_off(error)
        self._failure.reset()
        self._missing = False
        if moved > 0:
            return None
        # Due rows exist but none could be taken: another process is moving them.
        wait = POLL_SECONDS if moved == 0 else longest if seconds is None else min(seconds, longest)
        if self.wake_up.push_enabled:
            self._alone_until = self._clock() + wait
        return wait

    def _move(self, empty: EmptyQueues | None) -> int:
        if empty is None:
            return self.due.move_batch()
        empty.message_begins()
        try:
            return self.due.move_batch()
        finally:
            empty.message_ends()

    def _back_off(self, error: Exception) -> float:
        if isinstance(error, QueueNotFound) and self._is_missing():
            if not self._missing:
                self._missing = True
                text = "%s does not exist: nothing is moved from there until it does; run sqlqueue_install"
                background_logger.info(text, self.due.delayed.qualified, extra=self._extra("delayed_table_missing"))
            wait = MISSING_SECONDS
        else:
            wait = self._failure.next_wait()
            background_logger.log(
                logging.DEBUG if isinstance(error, ConnectionLost) and wait > FAILURE_FIRST_SECONDS else logging.WARNING,
                "due messages of %s could not be moved, trying again in %g s: %s: %s",
                self.due.delayed.qualified,
                wait,
                type(error).__name__,
                error,
                extra=self._extra("delayed_move_failed"),
                exc_info=None if isinstance(error, DatabaseError) else error,
            )
            # The session may be lost, or read-only since a failover.
            connections[self.due.delayed.alias].close()
        self._retry_at = self._clock() + wait
        return wait

    def _is_missing(self) -> bool:
        try:
            return not self.due.delayed.exists()
        except DatabaseError:
            return False

    def _extra(self, event: str) -> dict[str, object]:
        return {"event": event, "endpoint": self.due.endpoint, "queue": self.due.delayed.address.table}
