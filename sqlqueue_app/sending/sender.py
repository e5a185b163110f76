"""The public calls `send()`, `send_many()`, `publish()`, `subscribe()`, `unsubscribe()`, inside or outside a transaction."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache, partial
from typing import Any, Unpack, overload

from asgiref.sync import sync_to_async
from django.db import connections, transaction

from sqlqueue_app.conf import get_settings
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.envelope import IncomingMessage, OutgoingMessage
from sqlqueue_app.messages.errors import ConfigurationError, MessageTypeError, QueueNotFound
from sqlqueue_app.messages.times import as_delay
from sqlqueue_app.messages.types import Body, full_name, name_fault, registry
from sqlqueue_app.policies.priorities import Priority
from sqlqueue_app.sending.composer import (
    DelayOptions,
    ManyOptions,
    Options,
    SendOptions,
    compose_rows,
    outgoing_of,
    sender_identity,
)
from sqlqueue_app.sending.dispatcher import Dispatcher, missing_queue_hint
from sqlqueue_app.sending.middleware import composer_for
from sqlqueue_app.sending.unique import Unique, claim
from sqlqueue_app.tables.connections import connection_of, dialect_of_connection, on_settings_changed
from sqlqueue_app.tables.listing import current_catalog
from sqlqueue_app.tables.queue import all_or_none, queue_table
from sqlqueue_app.tables.rows import NewRow
from sqlqueue_app.tables.subscriptions import SubscriptionRow

logger = logging.getLogger("sqlqueue.send")


@overload
def send(message: str, body: Body = None, **options: Unpack[DelayOptions]) -> str: ...


@overload
def send(message: object, **options: Unpack[DelayOptions]) -> str: ...


def send(
    message: object,
    body: object = None,
    *,
    to: str | None = None,
    headers: Mapping[str, str | None] | None = None,
    time_to_be_received: timedelta | None = None,
    delay: timedelta | float | None = None,
    deliver_at: datetime | None = None,
    message_id: str | None = None,
    priority: Priority | None = None,
    unique_key: str | None = None,
    unique_for: timedelta | float | None = None,
) -> str:
    """Send a message, given as an object of a `message_type` or as a type name with its body, and return its id.

    The message follows ROUTES, or goes to the address `to`. Inside `atomic()` on the queue's database it commits and rolls back
    with your rows; outside it is committed on return. While only another database is in `atomic()`, it is sent when that commits.

    With `delay` (seconds or a timedelta, counted from the write by the database's clock; 0 or less: at once) or `deliver_at` (an
    aware datetime) the message waits in the delayed table of the sending endpoint until a worker that knows this endpoint moves
    it. A process that is not an endpoint uses the table of SEND_AS, or of the first endpoint in the settings.

    With `priority` it goes to the queue of this priority of its endpoint: "high" and "low" need PRIORITIES of that endpoint.

    With `unique_key` nothing is sent if a message with this key was sent to the same queue within `unique_for` (seconds or a
    timedelta), or still waits there: the id of that one is returned. The key is recorded in the transaction of the message.

    Raises MessageTypeError (unknown type, no route), AddressError, MessageBodyError, QueueNotFound, WireFormatError (an argument
    of the wrong type, a time after the year 9999) or ConfigurationError (a delay without any endpoint, two of `delay`,
    `deliver_at` and `time_to_be_received`, a `priority` for an endpoint without PRIORITIES, a `unique_key` where the message
    cannot be sent at once). Nothing is sent after an error.
    """
    handled = current_handling()
    chosen = _sender_in(handled)
    options = SendOptions(to, headers, time_to_be_received, as_delay(delay), deliver_at, message_id, priority)
    outgoing = chosen.composer.compose(message, body, options, incoming=handled.incoming if handled is not None else None)
    if unique_key is not None or unique_for is not None:
        return chosen.write_once(outgoing, unique_key, unique_for)
    chosen.write([outgoing])
    return outgoing.message_id or ""


def send_many(
    messages: Iterable[object],
    bodies: Iterable[object] | None = None,
    *,
    to: str | None = None,
    headers: Mapping[str, str | None] | None = None,
    time_to_be_received: timedelta | None = None,
    delay: timedelta | float | None = None,
    deliver_at: datetime | None = None,
    priority: Priority | None = None,
) -> list[str]:
    """Send many messages, all or none, with a few hundred rows or more per statement, and return their ids in order.

    `messages` are objects of message types, `(type name, body)` pairs, or one type name with its `bodies`. Otherwise as `send()`.

    The iterable is read while messages are written, in the same transaction (inside `atomic()`: a savepoint), and only a few
    messages are in memory at a time: apart from their ids, 100,000 need no more than 1,000. This does not hold where messages
    must wait: for the commit of another database, or in mode receive_only for the end of the handler. If the iterable raises or
    a message is invalid, nothing is sent; the error gives its position, such as `messages[7]`, counted from 0.
    """
    handled = current_handling()
    chosen = _sender_in(handled)
    source, what = _source(messages, bodies)
    ids: list[str] = []
    rows = compose_rows(
        chosen.composer,
        _pairs(messages, source),
        SendOptions(to, headers, time_to_be_received, as_delay(delay), deliver_at, priority=priority),
        what=what,
        incoming=handled.incoming if handled is not None else None,
        ids=ids,
    )
    if handled is None or (collect := handled.collect) is None:
        row_ids = chosen.write_rows(rows, source)
    else:
        made = list(rows)
        collect([outgoing_of(destination, row) for destination, row in made])
        row_ids = [row.id for _, row in made]
    return ids or row_ids


def _source(messages: Iterable[object], bodies: Iterable[object] | None) -> tuple[Iterable[object], str]:
    """The iterable to read, and its name. Raises MessageTypeError for arguments that do not go together."""
    if isinstance(messages, str):
        if bodies is None:
            raise MessageTypeError(f"send_many() was given the type name {messages!r} without bodies: pass bodies=[...] with it")
        if isinstance(bodies, (str, bytes, Mapping)) or not isinstance(bodies, Iterable):
            raise MessageTypeError(f"send_many() was given one {type(bodies).__qualname__} as bodies: pass a list of bodies")
        return bodies, "bodies"
    if bodies is not None:
        raise MessageTypeError(
            "send_many() was given bodies as well as messages: pass one type name with bodies, or messages with their bodies"
        )
    if isinstance(messages, (bytes, Mapping)) or not isinstance(messages, Iterable):
        raise MessageTypeError(f"send_many() was given one {type(messages).__qualname__}: pass a list, or call send()")
    return messages, "messages"


def _pairs(messages: Iterable[object], source: Iterable[object]) -> Iterator[tuple[object, object]]:
    """Yield each message with its body, which is None for an object."""
    if isinstance(messages, str):
        yield from ((messages, body) for body in source)
        return
    for message in source:
        # Only a plain tuple is a pair: a named tuple may be a message type.
        yield message if type(message) is tuple and len(message) == 2 else (message, None)


@overload
def publish(message: str, body: Body = None, *, message_id: str | None = None, **options: Unpack[Options]) -> str: ...


@overload
def publish(message: object, *, message_id: str | None = None, **options: Unpack[Options]) -> str: ...


def publish(
    message: object,
    body: object = None,
    *,
    headers: Mapping[str, str | None] | None = None,
    time_to_be_received: timedelta | None = None,
    message_id: str | None = None,
) -> str:
    """Send an event to all subscribers of its type or of one of its parents, and return the message id.

    Each address gets one copy, all with the same id; without subscribers nothing is written. The copies are written, all or none,
    in the same transactions as messages of `send()`. Subscriptions are cached for 5 seconds.

    Raises as `send()` except for routes. Also raises QueueNotFound if the queue of a subscriber or the subscription table does
    not exist, and AddressError if a row of the table holds no address. The error names the subscription, and nothing is sent.
    """
    handled = current_handling()
    chosen = _sender_in(handled)
    options = SendOptions(headers=headers, time_to_be_received=time_to_be_received, message_id=message_id)
    event_id, copies = chosen.composer.compose_event(
        message, body, options, incoming=handled.incoming if handled is not None else None
    )
    if copies:
        chosen.write(copies)
    return event_id


@overload
async def asend(message: str, body: Body = None, **options: Unpack[DelayOptions]) -> str: ...


@overload
async def asend(message: object, **options: Unpack[DelayOptions]) -> str: ...


async def asend(message: object, body: object = None, **options: Any) -> str:
    """`send()` for coroutines: with the same arguments, result, errors and transactions.

    Django's thread for synchronous code writes the message, the thread of the ORM's `a…` methods: inside an `async def` handler
    that is the thread of the receive transaction.
    """
    call: Callable[..., str] = send
    return await sync_to_async(call)(message, body, **options)


async def asend_many(
    messages: Iterable[object], bodies: Iterable[object] | None = None, **options: Unpack[ManyOptions]
) -> list[str]:
    """`send_many()` for coroutines, as `asend()` is `send()`. The iterables are read in that thread."""
    return await sync_to_async(send_many)(messages, bodies, **options)


@overload
async def apublish(message: str, body: Body = None, *, message_id: str | None = None, **options: Unpack[Options]) -> str: ...


@overload
async def apublish(message: object, *, message_id: str | None = None, **options: Unpack[Options]) -> str: ...


async def apublish(message: object, body: object = None, **options: Any) -> str:
    """`publish()` for coroutines, as `asend()` is `send()`."""
    call: Callable[..., str] = publish
    return await sync_to_async(call)(message, body, **options)


def subscribe(event: type | str, *, endpoint: str | None = None) -> None:
    """Subscribe an endpoint to a type of events and to the types derived from it: its queue receives them from now on.

    `event` is a class of a message type or a type name; `endpoint` defaults to the one whose message is handled, else SEND_AS.
    The subscription is committed on return, whatever transaction is open (on SQLite, which has one writer, it joins an open one).
    Other publishing processes see it within 5 seconds. Subscribing again changes nothing.

    Raises MessageTypeError for a class that is not a message type, ConfigurationError without an endpoint, and QueueNotFound if
    its queue or the subscription table does not exist.
    """
    topic, name = _topic(event), _endpoint(endpoint)
    chosen = sender_as(name)
    queue = queue_table(chosen.alias, chosen.dispatcher.book.of_queue(name))
    if not queue.exists():
        why = f"its queue {queue.qualified} does not exist: run sqlqueue_install or migrate{missing_queue_hint(name)}"
        raise QueueNotFound(f"endpoint {name!r} cannot subscribe to {topic!r}: {why}")
    chosen.composer.subscribers.table.subscribe(SubscriptionRow(name, topic, chosen.composer.identity.reply_to or ""))


def unsubscribe(event: type | str, *, endpoint: str | None = None) -> bool:
    """End the subscription of an endpoint to a type. Returns whether there was one. Otherwise as `subscribe`.

    The queue need not exist. A worker of the endpoint that still handles the type subscribes again when it starts.
    """
    topic, name = _topic(event), _endpoint(endpoint)
    return sender_as(name).composer.subscribers.table.unsubscribe(name, topic)


def _topic(event: object) -> str:
    if not isinstance(event, str):
        return registry.of(event).name
    fault = name_fault(event) if (topic := full_name(event)) else "is blank"
    if fault:
        raise MessageTypeError(f"the event type {event!r} {fault}: expected a name such as 'Sales.OrderPlaced'")
    return topic


def _endpoint(given: str | None) -> str:
    if given is not None and not isinstance(given, str):
        raise ConfigurationError(f"endpoint is {given!r}: expected the name of an endpoint, or None for the current one")
    handled = current_handling()
    name = given or (handled.endpoint if handled is not None else get_settings().send_as)
    if name is None:
        raise ConfigurationError('no endpoint to subscribe: name it with endpoint=, or set SQLQUEUE["SEND_AS"]')
    return name


def eager_module() -> Any:
    """The module that handles messages for the setting EAGER. The app replaces this function, as that module imports this one."""


class Sender:
    """Composes and writes messages under the settings of the process. Shared by all threads."""

    def __init__(self, endpoint: str | None) -> None:
        settings = get_settings()
        # None unless the setting EAGER is on.
        self._eager = eager_module() if settings.eager else None
        if self._eager is not None:
            self._eager.subscribe_handlers(settings)
        connection = connection_of(settings.database)
        book = settings.address_book(dialect_of_connection(connection).name, current_catalog(connection))
        self.alias = settings.database
        self.composer = composer_for(settings, book, sender_identity(endpoint, book))
        delays_as = endpoint or settings.delays_as
        self.dispatcher = Dispatcher(settings.database, book, endpoint=delays_as, claim_checks=self.composer.claim_checks)

    def write(self, messages: Sequence[OutgoingMessage]) -> None:
        """Write now, in the transaction of the queue's alias if one is open; if only another alias has one, when that commits."""
        handled = current_handling()
        # Read once: in a thread with a copy of the context, the handler may end at any time.
        if handled is not None and (collect := handled.collect) is not None:
            collect(messages)
        else:
            self.when_possible(partial(self.dispatcher.dispatch, messages))

    def write_once(self, message: OutgoingMessage, key: object, kept_for: object) -> str:
        """Write the message unless one with this key was sent before; return the id of the one that was sent."""
        unique = Unique.of(key, kept_for)
        handled = current_handling()
        if handled is not None and handled.collect is not None:
            raise ConfigurationError(
                "send(unique_key=…) in a handler of mode 'receive_only', whose messages are sent after it has ended: leave out "
                "unique_key, or choose another TRANSACTION_MODE"
            )
        if others := self._others_in_transaction():
            other = others[0]
            raise ConfigurationError(
                f"send(unique_key=…) while only database {other!r} is in atomic(), after whose commit the message would be sent: "
                f"open transaction.atomic(using={self.alias!r}) around both"
            )
        with all_or_none(self.alias):
            queues = self.composer.priorities.all_of(message.destination)
            first = claim(self.alias, self.dispatcher.book, unique, message, queues, self.dispatcher.endpoint)
            if first is None:
                self.write([message])
        return first or message.message_id or ""

    def when_possible(self, write: Callable[[], object]) -> None:
        """Call `write` now, in the transaction of the queue's alias if one is open; if only others have one, after their commits.

        With the setting EAGER the messages are handled then, unless this is called by a handler: they come after its own.
        """
        if self._eager is not None and current_handling() is None:
            write = partial(self._eager.write_and_handle, self.alias, write)
        if others := self._others_in_transaction():
            self._write_after(others, write)
        else:
            write()

    def write_rows(self, rows: Iterable[tuple[QueueAddress, NewRow]], source: Iterable[object]) -> list[str]:
        """Write rows as they are made and return their ids; otherwise as `write`. Not while messages are collected.

        The rows are made from `source`: reading anything but a list or tuple may run the caller's code.
        """
        if self._eager is None and not self._others_in_transaction():
            if isinstance(source, (list, tuple)):
                return self.dispatcher.send_rows(rows)
            # Begin before the caller's code runs, and close a generator before rolling back: an atomic() that the caller holds
            # open around a yield must begin and end inside ours.
            ended = closing(source) if isinstance(source, Generator) else nullcontext()
            with all_or_none(self.alias), ended:
                return self.dispatcher.send_rows(rows, begun=True)
        made = list(rows)
        self.when_possible(partial(self.dispatcher.send_rows, made))
        return [row.id for _, row in made]

    def _write_after(self, others: Sequence[str], write: Callable[[], object]) -> None:
        """Call `write` when all of these aliases have committed; never after a rollback of one."""
        _warn_once(self.alias, others[0])
        open_ones = set(others)

        def committed(alias: str) -> None:
            open_ones.discard(alias)
            if not open_ones:
                write()

        for alias in others:
            transaction.on_commit(partial(committed, alias), using=alias)

    def _others_in_transaction(self) -> list[str]:
        """The aliases in a transaction, while that of the queues is in none."""
        # Most projects have one database.
        if len(connections.settings) == 1 or connections[self.alias].in_atomic_block:
            return []
        return [connection.alias for connection in connections.all(initialized_only=True) if connection.in_atomic_block]


@lru_cache(maxsize=32)
def sender_as(endpoint: str | None) -> Sender:
    """The sender of an endpoint, or of a process that is not one."""
    return Sender(endpoint)


def sender(otherwise: str | None = None) -> Sender:
    """The sender of the calling thread: of the endpoint whose message it handles, else of SEND_AS, else of `otherwise`."""
    return _sender_in(current_handling(), otherwise)


def _sender_in(handled: Handling | None, otherwise: str | None = None) -> Sender:
    return sender_as(handled.endpoint if handled is not None else get_settings().send_as or otherwise)


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


on_settings_changed(sender_as.cache_clear, "SQLQUEUE", "DATABASES", "TASKS")


Collect = Callable[[Sequence[OutgoingMessage]], None]


@dataclass(slots=True, eq=False)
class Handling:
    """The message in progress, and the endpoint that handles it. While it is open as a context, this thread handles the message."""

    incoming: IncomingMessage
    endpoint: str
    collect: Collect | None = None
    """Takes the messages of a plain `send()` in modes in which they must not join the receive transaction."""
    _token: Token[Handling | None] | None = field(default=None, init=False)

    def __enter__(self) -> None:
        self._token = _handling.set(self)

    def __exit__(self, *exception: object) -> None:
        if self._token is not None:
            _handling.reset(self._token)
        # A thread that copied the context may outlive the handler. Messages collected after this point would be lost.
        self.collect = None


_handling: ContextVar[Handling | None] = ContextVar("sqlqueue_handling", default=None)


def current_handling() -> Handling | None:
    """The message that the calling thread handles, or None outside a handler."""
    return _handling.get()
