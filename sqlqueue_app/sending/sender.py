"""`send()` and `send_many()`: what a project calls, inside a transaction or out of it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from datetime import datetime, timedelta
from functools import lru_cache

from django.core.signals import setting_changed
from django.db import connections, transaction

from sqlqueue_app.conf import get_settings
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.envelope import OutgoingMessage
from sqlqueue_app.messages.errors import MessageTypeError
from sqlqueue_app.sending.batch import compose_rows, outgoing_of
from sqlqueue_app.sending.composer import Composer, sender_identity
from sqlqueue_app.sending.current import current_handling
from sqlqueue_app.sending.dispatcher import Dispatcher
from sqlqueue_app.tables.connections import connection_of, dialect_of_connection
from sqlqueue_app.tables.inspection import current_catalog
from sqlqueue_app.tables.rows import NewRow
from sqlqueue_app.tables.writing import all_or_none

logger = logging.getLogger("sqlqueue.send")


class Sender:
    """Composes and writes under the settings of the process. Shared by all threads."""

    def __init__(self, endpoint: str | None) -> None:
        settings = get_settings()
        connection = connection_of(settings.database)
        book = settings.address_book(dialect_of_connection(connection).name, current_catalog(connection))
        self.alias = settings.database
        self.composer = Composer(settings, book, sender_identity(endpoint, book))
        delays_as = endpoint or settings.delays_as
        self.dispatcher = Dispatcher(settings.database, book, announces=settings.announces, endpoint=delays_as)

    def write(self, messages: Sequence[OutgoingMessage]) -> None:
        """Write now, in the transaction of the queue's alias if there is one; if only another alias has one, when it commits."""
        handled = current_handling()
        if handled is not None and handled.collect is not None:
            handled.collect(messages)
            return
        self.when_possible(lambda: self.dispatcher.dispatch(messages))

    def when_possible(self, write: Callable[[], None]) -> None:
        """Call `write` now, where it joins the transaction of the queue's alias; if only another has one, when that commits."""
        other = self._other_alias_in_transaction()
        if other is None:
            write()
            return
        _warn_once(self.alias, other)
        transaction.on_commit(write, using=other)

    def write_rows(self, rows: Iterable[tuple[QueueAddress, NewRow]], source: Iterable[object]) -> list[str]:
        """As `write`, for rows that are made while they are written; returns their ids. Not while messages are collected.

        `source` is what the rows are made from: reading anything but a list may run the caller's code.
        """
        other = self._other_alias_in_transaction()
        if other is None:
            if isinstance(source, (list, tuple)):
                return self.dispatcher.dispatch_rows(rows)
            # The transaction is there before the caller's code runs, and a generator is ended before it is rolled back: an
            # atomic() of the caller's, open around a yield, lies inside of ours from its begin to its end.
            ended = closing(source) if isinstance(source, Generator) else nullcontext()
            with all_or_none(self.alias), ended:
                return self.dispatcher.dispatch_rows(rows, begun=True)
        made = list(rows)
        _warn_once(self.alias, other)
        transaction.on_commit(lambda: self.dispatcher.dispatch_rows(made), using=other)
        return [row.id for _, row in made]

    def _other_alias_in_transaction(self) -> str | None:
        if connection_of(self.alias).in_atomic_block:
            return None
        opened = connections.all(initialized_only=True)
        return next((connection.alias for connection in opened if connection.in_atomic_block), None)


@lru_cache(maxsize=32)
def _sender(endpoint: str | None) -> Sender:
    return Sender(endpoint)


def sender(otherwise: str | None = None) -> Sender:
    """The sender of the calling thread: of the endpoint whose message it handles, else of SEND_AS, else of `otherwise`."""
    handled = current_handling()
    return sender_as(handled.endpoint if handled is not None else get_settings().send_as or otherwise)


def sender_as(endpoint: str | None) -> Sender:
    """The sender of an endpoint, or of a process that is none."""
    return _sender(endpoint)


def send(
    message: object,
    body: object = None,
    *,
    to: str | None = None,
    headers: Mapping[str, str | None] | None = None,
    time_to_be_received: timedelta | None = None,
    delay: timedelta | None = None,
    deliver_at: datetime | None = None,
    message_id: str | None = None,
) -> str:
    """Send a message and return its id: an object of a `message_type`, or a type name with its body.

    It goes where ROUTES says, or to the address `to`. Inside `atomic()` on the queue's database it commits and rolls back with your
    rows; outside it is committed on return. While only another database is in `atomic()`, it is sent when that one commits.

    With `delay` (a timedelta, counted by the database's clock from the moment it is written; 0 or less: at once) or `deliver_at`
    (an aware datetime) it waits in the delayed table of the endpoint that sends it, until a worker that knows this endpoint moves
    it. A process that is none uses the table of SEND_AS, or of the first endpoint of the settings.

    Raises MessageTypeError (unknown type, no route), AddressError, MessageBodyError, QueueNotFound, WireFormatError (an argument of
    another kind, a time after the year 9999), ConfigurationError (a delay without any endpoint, two of `delay`, `deliver_at` and
    `time_to_be_received`); nothing is sent then.
    """
    handled = current_handling()
    chosen = sender()
    outgoing = chosen.composer.compose(
        message,
        body,
        to=to,
        headers=headers,
        time_to_be_received=time_to_be_received,
        delay=delay,
        deliver_at=deliver_at,
        message_id=message_id,
        incoming=handled.incoming if handled is not None else None,
    )
    chosen.write([outgoing])
    return outgoing.message_id or ""


def send_many(
    messages: Iterable[object],
    bodies: Iterable[object] | None = None,
    *,
    to: str | None = None,
    headers: Mapping[str, str | None] | None = None,
    time_to_be_received: timedelta | None = None,
    delay: timedelta | None = None,
    deliver_at: datetime | None = None,
) -> list[str]:
    """Send many messages, all or none, a few hundred rows or more per statement; returns their ids in order.

    `messages` are objects of message types, `(type name, body)` pairs, or one type name with its `bodies`. Otherwise as `send()`.

    Any iterable will do. It is read while messages are written, in the same transaction (inside `atomic()`: a savepoint), and few
    messages are in memory at a time: 100,000 in one call need no more than 1,000, but for their ids. Not so where messages have to
    wait: for the commit of another database, and in mode receive_only for the end of the handler. If the iterable raises or one
    message is wrong, nothing is sent; the error names its place, as `messages[7]`, counted from 0.
    """
    handled = current_handling()
    chosen = sender()
    source, what = _source(messages, bodies)
    rows = compose_rows(
        chosen.composer,
        _pairs(messages, source),
        what=what,
        to=to,
        headers=headers,
        time_to_be_received=time_to_be_received,
        delay=delay,
        deliver_at=deliver_at,
        incoming=handled.incoming if handled is not None else None,
    )
    if handled is None or handled.collect is None:
        return chosen.write_rows(rows, source)
    made = list(rows)
    chosen.write([outgoing_of(destination, row) for destination, row in made])
    return [row.id for _, row in made]


def _source(messages: Iterable[object], bodies: Iterable[object] | None) -> tuple[Iterable[object], str]:
    """What is to be read, and its name; MessageTypeError for arguments that do not go together."""
    if isinstance(messages, str):
        if bodies is None:
            raise MessageTypeError(
                f"send_many() was given the type name {messages!r} without bodies: hand in bodies=[...] beside it"
            )
        if isinstance(bodies, (str, bytes, Mapping)) or not isinstance(bodies, Iterable):
            raise MessageTypeError(f"send_many() was given one {type(bodies).__qualname__} as bodies: hand in a list of bodies")
        return bodies, "bodies"
    if bodies is not None:
        raise MessageTypeError(
            "send_many() was given bodies beside messages: hand in one type name with bodies, or messages that bring their own"
        )
    if isinstance(messages, (bytes, Mapping)) or not isinstance(messages, Iterable):
        raise MessageTypeError(f"send_many() was given one {type(messages).__qualname__}: hand in a list, or call send()")
    return messages, "messages"


def _pairs(messages: Iterable[object], source: Iterable[object]) -> Iterator[tuple[object, object]]:
    """Each message with its body, None for an object."""
    if isinstance(messages, str):
        yield from ((messages, body) for body in source)
        return
    for message in source:
        # Only a plain tuple is a pair: a named tuple may be a message type.
        yield message if type(message) is tuple and len(message) == 2 else (message, None)


_warned: set[tuple[str, str]] = set()
_warned_lock = threading.Lock()


def _warn_once(alias: str, other: str) -> None:
    with _warned_lock:
        if (alias, other) in _warned:
            return
        _warned.add((alias, other))
    logger.warning(
        "send() while only database %r is in atomic(): the message goes to %r after that commit, and is lost if the process dies "
        "in between; open transaction.atomic(using=%r) around both to send with your rows",
        other,
        alias,
        alias,
        extra={"event": "send_after_other_commit"},
    )


def _settings_changed(*, setting: str, **_: object) -> None:
    if setting in ("SQLQUEUE", "DATABASES", "TASKS"):
        _sender.cache_clear()


setting_changed.connect(_settings_changed, dispatch_uid="sqlqueue.sender")
