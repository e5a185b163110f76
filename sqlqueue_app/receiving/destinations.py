"""The destinations that headers of received messages may name (ALLOWED_DESTINATIONS), and the routes of satellite queues."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction

from sqlqueue_app.conf.settings import LEGACY_RETRIES, LEGACY_TIMEOUTS
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.addresses import AddressBook, QueueAddress
from sqlqueue_app.messages.errors import (
    AddressError,
    ConfigurationError,
    DatabaseError,
    QueueNotFound,
    SqlQueueError,
    TableMismatch,
    TransientError,
)
from sqlqueue_app.messages.headers import Headers
from sqlqueue_app.messages.times import LATEST, parse_time
from sqlqueue_app.tables.installation import check_address
from sqlqueue_app.tables.queue import QueueTable, queue_table


class Unroutable(SqlQueueError):
    """A message cannot be moved to its destination; the text gives the reason."""


@dataclass(frozen=True, slots=True)
class Route:
    """The address text of a destination; `due` is the time of delivery, aware, None: now."""

    to: str
    due: datetime | None = None


def is_for_retries(queue: str) -> bool:
    """Whether messages in this satellite wait for a delayed retry."""
    return queue.endswith(LEGACY_RETRIES)


def cancelled_saga(queue: str, headers: Headers) -> str | None:
    """The id of the saga whose timeouts this message cancels; None for any other message."""
    return headers.get(names.SAGA_ID) if queue.endswith(LEGACY_TIMEOUTS) and headers.get(names.CLEAR_TIMEOUTS) else None


def route_of(queue: str, headers: Headers) -> Route:
    """The route of a message of the satellite `queue`, from its headers alone. Raises Unroutable.

    A row of `.Retries` awaits a delayed retry and returns to the queue in which it failed, a row of `.Timeouts` goes to its
    destination at its time. A row of `.TimeoutsDispatcher` names a timeout in the store of the old endpoint
    (docs/internals/wire.md#timeout-manager).
    """
    if is_for_retries(queue):
        failed = headers.get(names.FAILED_QUEUE)
        if not failed:
            raise Unroutable(f"the retry has no header {names.FAILED_QUEUE}, which names the queue to return to")
        return Route(failed)
    to = headers.get(names.TIMEOUT_ROUTE_TO)
    if queue.endswith(LEGACY_TIMEOUTS):
        due = _due(headers)
        if not to:
            raise Unroutable(f"the timeout has no header {names.TIMEOUT_ROUTE_TO}, which names its destination")
        return Route(to, due)
    if not to:
        timeout = headers.get(names.TIMEOUT_ID)
        raise Unroutable(
            f"the message names the timeout {timeout!r} in the timeout store of the old endpoint, which cannot be read here: "
            "let the old endpoint dispatch what it has stored"
        )
    return Route(to)


def _due(headers: Headers) -> datetime:
    text = headers.get(names.TIMEOUT_EXPIRE)
    if not text:
        if headers.get(names.CLEAR_TIMEOUTS):
            why = "cancels timeouts of a saga, none of which is stored here: the timeout store of the old endpoint may have them"
        else:
            why = f"has no time: it has no header {names.TIMEOUT_EXPIRE}"
        raise Unroutable(f"the message {why}")
    try:
        # DateTime.MaxValue means never; use the longest possible wait.
        return min(parse_time(text), LATEST - timedelta(seconds=1))
    except ValueError as error:
        raise Unroutable(f"the header {names.TIMEOUT_EXPIRE} is {text!r}: {error}") from error


class Destinations:
    """Finds the tables of destinations, in every address format of any version. May be shared by threads."""

    def __init__(
        self,
        alias: str,
        book: AddressBook,
        *,
        satellites: frozenset[str],
        own: str,
        allowed: AllowedDestinations | None,
        what: str = "the message is on its way to",
    ) -> None:
        self._alias = alias
        self._book = book
        self._satellites = frozenset(map(self._folded, satellites))
        self._own = own
        self._allowed = allowed
        self._what = what

    def table(self, text: str) -> QueueTable:
        """The queue of an address text; Unroutable if it does not exist or is not allowed.

        Transports 1.x and 2.x write `queue@machine`, which the newer format reads as a schema: the existing table decides, unless
        the endpoint cuts every address. Each table is checked once per process.
        """
        problem: Exception | None = None
        for read in (self._book.received, self._cut):
            try:
                address = read(text)
                check_address(address, self._book.dialect)
                table = queue_table(self._alias, address)
                table.layout()
            except (AddressError, QueueNotFound, TableMismatch) as error:
                problem = problem or error
                continue
            self._check_allowed(address)
            return table
        raise Unroutable(f"{self._what} {text!r}: {problem}") from problem

    @contextmanager
    def writing_to(self, text: str) -> Iterator[QueueTable]:
        """The queue of an address text, for a write within this context. Unroutable as `table`, and if the database refuses.

        The write is undone then, and the transaction of the caller stays usable. A transient error is raised unchanged.
        """
        try:
            with transaction.atomic(using=self._alias):
                yield self.table(text)
        except TransientError:
            raise
        except DatabaseError as error:
            raise Unroutable(f"{self._what} {text!r}: {error}") from error

    def _cut(self, text: str) -> QueueAddress:
        return self._book.resolve(QueueAddress.parse(text, "legacy"))

    def _check_allowed(self, queue: QueueAddress) -> None:
        if self._folded(queue.table) in self._satellites:
            raise Unroutable(f"{self._what} {queue.table!r}, which is a satellite queue of the same endpoint")
        if self._allowed is None or queue == self._book.of_queue(self._own) or self._allowed.has(queue):
            return
        raise Unroutable(f"{self._what} {self._allowed.shown(queue)}, which SQLQUEUE['ALLOWED_DESTINATIONS'] does not allow")

    def _folded(self, table: str) -> str:
        """The name as the database may compare it: ignoring case, except on PostgreSQL."""
        return table if self._book.dialect == "postgresql" else table.rstrip().casefold()


_ANY = "*"


def allowed_destinations(patterns: tuple[str, ...] | None, book: AddressBook) -> AllowedDestinations | None:
    """The destinations that the setting allows, in the database of the book; None: any queue."""
    return None if patterns is None else AllowedDestinations(patterns, book)


@dataclass(frozen=True, slots=True)
class AllowedDestinations:
    """Patterns of queues in one database.

    A plain name, including dots, is the queue where the settings place it: in the default schema, or that of SCHEMA_FOR_QUEUE or
    SCHEMA_FOR_ENDPOINT. Only a pattern written as an address can name another schema or catalog: otherwise a sender could choose
    among all queues of that name. `*` matches any characters; all others match themselves, and case matters.
    """

    patterns: tuple[str, ...]
    book: AddressBook

    def has(self, destination: QueueAddress) -> bool:
        """Whether messages may go to the queue, whose address the book has resolved."""
        return any(self._names(each, destination) or self._addresses(each, destination) for each in self.patterns)

    def check(self, destination: QueueAddress, *, message_id: str, what: str) -> None:
        """Raise ConfigurationError if the setting does not allow the queue that the message names for `what`."""
        if not self.has(destination):
            raise ConfigurationError(
                f"message {message_id!r} asks for {what} to {self.shown(destination)}, "
                "which SQLQUEUE['ALLOWED_DESTINATIONS'] does not allow"
            )

    def shown(self, destination: QueueAddress) -> str:
        """The queue in the form of an entry of the setting."""
        is_default = destination in self._defaults(destination.table)
        return repr(destination.table if is_default else str(destination))

    def _defaults(self, table: str) -> tuple[QueueAddress, ...]:
        return self.book.of_queue(table), self.book.of_endpoint(table)

    def _names(self, pattern: str, destination: QueueAddress) -> bool:
        return _matches(pattern, destination.table) and destination in self._defaults(destination.table)

    def _addresses(self, pattern: str, destination: QueueAddress) -> bool:
        try:
            read = QueueAddress.parse(pattern, self.book.dialect)
        except AddressError:
            return False
        if read.schema is None and read.catalog is None:
            return _matches(read.table, destination.table) and destination in self._defaults(destination.table)
        if read.schema is not None and _ANY in read.schema and self.book.dialect == "postgresql" and '"' not in pattern:
            return False  # such as *.Billing on PostgreSQL, which means names
        whole = self.book.resolve(read)
        # A setting for the queue determines its schema, whatever the address names.
        schema = read.schema or whole.schema
        return (
            _matches(read.table, destination.table)
            and _matches(schema, destination.schema)
            and _matches(read.catalog or whole.catalog, destination.catalog)
        )


def _matches(pattern: str | None, value: str | None) -> bool:
    if pattern is None or value is None:
        return pattern is None and value is None
    return re.fullmatch(".*".join(map(re.escape, pattern.split(_ANY))), value, re.DOTALL) is not None
