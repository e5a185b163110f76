"""Where the messages in the satellite queues of transports 1.x to 3.x are on their way to (transport reference 7.1 and 9).

A row of `.Retries` waits for a delayed retry: it goes back to the queue that it failed in.
A row of `.Timeouts` waits for a time: it goes to its destination when that has come.
A row of `.TimeoutsDispatcher` names a timeout in the store of the old endpoint, which nobody here can read.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlqueue_app.conf.values import LEGACY_RETRIES, LEGACY_TIMEOUTS
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.delays import LATEST
from sqlqueue_app.messages.errors import AddressError, QueueNotFound, SqlQueueError, TableMismatch
from sqlqueue_app.messages.headers import Headers
from sqlqueue_app.messages.resolution import AddressBook
from sqlqueue_app.messages.times import parse_time
from sqlqueue_app.receiving.allowed import AllowedDestinations
from sqlqueue_app.tables.announcing import announcing_table
from sqlqueue_app.tables.queue import QueueTable, queue_table
from sqlqueue_app.tables.well_known import check_address


class Unroutable(SqlQueueError):
    """A message that cannot be brought where it was on its way to; the text says why."""


@dataclass(frozen=True, slots=True)
class Route:
    """The address text of a destination; `due` is when to be there, aware, None: now."""

    to: str
    due: datetime | None = None


def is_for_retries(queue: str) -> bool:
    """Whether messages in this satellite wait for a delayed retry."""
    return queue.endswith(LEGACY_RETRIES)


def cancelled_saga(queue: str, headers: Headers) -> str | None:
    """The id of the saga whose timeouts this message cancels; None for another message."""
    return headers.get(names.SAGA_ID) if queue.endswith(LEGACY_TIMEOUTS) and headers.get(names.CLEAR_TIMEOUTS) else None


def route_of(queue: str, headers: Headers) -> Route:
    """Where a message of the satellite `queue` goes, by its headers alone. Raises Unroutable."""
    if is_for_retries(queue):
        failed = headers.get(names.FAILED_QUEUE)
        if not failed:
            raise Unroutable(f"the retry has no header {names.FAILED_QUEUE}, which says where it failed and goes again")
        return Route(failed)
    to = headers.get(names.TIMEOUT_ROUTE_TO)
    if queue.endswith(LEGACY_TIMEOUTS):
        due = _due(headers)
        if not to:
            raise Unroutable(f"the timeout has no header {names.TIMEOUT_ROUTE_TO}, which says where it goes")
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
        clears = headers.get(names.CLEAR_TIMEOUTS)
        what = "cancels timeouts of a saga, of which none is here," if clears else "has no time"
        raise Unroutable(f"the message {what}: it has no header {names.TIMEOUT_EXPIRE}")
    try:
        # DateTime.MaxValue stands for never; it waits as long as anything can.
        return min(parse_time(text), LATEST - timedelta(seconds=1))
    except ValueError as error:
        raise Unroutable(f"the header {names.TIMEOUT_EXPIRE} is {text!r}: {error}") from error


class Destinations:
    """Finds the tables of destinations, in any form of address that a version has written. May be shared by threads."""

    def __init__(
        self,
        alias: str,
        book: AddressBook,
        *,
        satellites: frozenset[str],
        own: str,
        allowed: AllowedDestinations | None,
        what: str = "the message is on its way to",
        announces: bool = False,
    ) -> None:
        self._alias = alias
        self._table_of = announcing_table if announces else queue_table
        self._book = book
        self._satellites = frozenset(map(self._folded, satellites))
        self._own = own
        self._allowed = allowed
        self._what = what

    def table(self, text: str) -> QueueTable:
        """The queue of an address text; Unroutable if there is none, or no message may go there.

        Transports 1.x and 2.x write `queue@machine`, which reads as a schema in the newer form: what exists decides, unless the
        endpoint cuts every address. Each table is looked at once in a process.
        """
        problem: Exception | None = None
        for read in (self._book.received, self._cut):
            try:
                address = read(text)
                check_address(address, self._book.dialect)
                table = self._table_of(self._alias, address)
                table.layout()
            except (AddressError, QueueNotFound, TableMismatch) as error:
                problem = problem or error
                continue
            self._check_allowed(address)
            return table
        raise Unroutable(f"{self._what} {text!r}: {problem}") from problem

    def _cut(self, text: str) -> QueueAddress:
        return self._book.resolve(QueueAddress.parse(text, "legacy"))

    def _check_allowed(self, queue: QueueAddress) -> None:
        if self._folded(queue.table) in self._satellites:
            raise Unroutable(f"{self._what} {queue.table!r}, which is a satellite queue of this very endpoint")
        if self._allowed is None or queue == self._book.of_queue(self._own) or self._allowed.has(queue):
            return
        raise Unroutable(f"{self._what} {self._allowed.shown(queue)}, which SQLQUEUE['ALLOWED_DESTINATIONS'] does not allow")

    def _folded(self, table: str) -> str:
        """The name as the database may read it: but on PostgreSQL, case makes no difference."""
        return table if self._book.dialect == "postgresql" else table.rstrip().casefold()
