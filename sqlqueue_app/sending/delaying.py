"""Messages that are delivered later: their rows, the table that they wait in, and who is told that there is one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial

from django.db import transaction

from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.delays import check_delay, delay_milliseconds, deliver_at_header, due_time
from sqlqueue_app.messages.envelope import OutgoingMessage, new_message_id
from sqlqueue_app.messages.errors import ConfigurationError
from sqlqueue_app.messages.headers import write_headers
from sqlqueue_app.messages.resolution import AddressBook
from sqlqueue_app.tables.connections import connection_of
from sqlqueue_app.tables.delayed import DelayedTable
from sqlqueue_app.tables.rows import NewRow
from sqlqueue_app.tables.well_known import delayed_address
from sqlqueue_app.tables.writing import Inserts

_OF_THE_DELAY = (names.DELIVER_AT, names.FORWARD_DESTINATION)


def delayed_row(message: OutgoingMessage, book: AddressBook, now: datetime) -> NewRow:
    """The row of a delayed message: its headers say when and where to, as core 8 and later write them (transport reference 7.2).

    Raises as `check_delay` and `deliver_at_header` do.
    """
    check_delay(message.delay, message.deliver_at, message.time_to_be_received)
    headers = {name: value for name, value in message.headers.items() if name not in _OF_THE_DELAY}
    headers[names.DELIVER_AT] = deliver_at_header(message.delay, message.deliver_at, now)
    headers[names.FORWARD_DESTINATION] = book.canonical(message.destination)
    return NewRow(
        id=message.message_id or new_message_id(),
        headers=write_headers(headers),
        body=message.body,
        delay_ms=None if message.delay is None else delay_milliseconds(message.delay),
        due=None if message.deliver_at is None else due_time(message.deliver_at),
    )


def check_can_delay(endpoint: str | None) -> str:
    """The endpoint as which a process delays; ConfigurationError if it is none."""
    if endpoint is None:
        raise ConfigurationError(
            "a message cannot be delayed where the settings name no endpoint, for it would wait in the endpoint's table: "
            'name the endpoint to send as in SQLQUEUE["SEND_AS"] and run sqlqueue_install, which makes the table'
        )
    return endpoint


def own_delayed_table(alias: str, book: AddressBook, endpoint: str | None) -> DelayedTable:
    """The table that messages of this endpoint wait in; ConfigurationError as `check_can_delay`."""
    return DelayedTable(alias, delayed_address(book, check_can_delay(endpoint)))


class Soonest:
    """Rows on their way into tables, and in how many seconds the first of the delayed ones is due; None: there is none.

    By the clock of this process: good enough to know whether somebody has to look earlier.
    """

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self.seconds: float | None = None

    def of(self, rows: Iterable[tuple[Inserts, NewRow]]) -> Iterator[tuple[Inserts, NewRow]]:
        """The rows as they are."""
        for placed in rows:
            row = placed[1]
            if row.is_delayed:
                wait = (row.delay_ms or 0) / 1000 if row.due is None else (row.due - self._now()).total_seconds()
                self.seconds = wait if self.seconds is None else min(wait, self.seconds)
            yield placed


# --- who waits for due times in this process: told at the commit of an earlier one ------------------------------------------------

Told = Callable[[float], None]
_watchers: dict[str, list[Told]] = {}
_watchers_lock = threading.Lock()


@contextmanager
def told_of_delays(alias: str, told: Told) -> Iterator[None]:
    """While open, `told` is called with the seconds to wait when this process has committed a delayed message on the alias.

    In the thread that committed; it must be quick and never raise.
    """
    with _watchers_lock:
        _watchers.setdefault(alias, []).append(told)
    try:
        yield
    finally:
        with _watchers_lock:
            _watchers[alias].remove(told)
            if not _watchers[alias]:
                del _watchers[alias]


def tell_of_delay(alias: str, seconds: float) -> None:
    """Tell those who wait, when the transaction of the calling thread on the alias commits; nothing where nobody waits."""
    if not _watchers.get(alias):
        return
    connection = connection_of(alias)
    if connection.in_atomic_block or connection.autocommit:
        transaction.on_commit(partial(_tell, alias, seconds), using=alias)


def _tell(alias: str, seconds: float) -> None:
    with _watchers_lock:
        watchers = list(_watchers.get(alias, ()))
    for told in watchers:
        told(seconds)
