"""From what a user hands to `send()` to a message with headers, body and destination."""

from __future__ import annotations

import platform
import typing
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial

from sqlqueue_app.conf import Settings
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.custom_headers import check_custom_headers
from sqlqueue_app.messages.delays import check_delay, deliver_at_header
from sqlqueue_app.messages.envelope import IncomingMessage, Intent, OutgoingMessage, new_message_id, outgoing_headers
from sqlqueue_app.messages.errors import AddressError, MessageBodyError, MessageTypeError, WireFormatError
from sqlqueue_app.messages.headers import Headers
from sqlqueue_app.messages.resolution import AddressBook
from sqlqueue_app.messages.serializers import CONTENT_TYPES, is_xml, serialize
from sqlqueue_app.messages.shapes import PASCAL, is_mappable
from sqlqueue_app.messages.typed_dicts import pascal_keys
from sqlqueue_app.messages.types import enclosed_types, find_message_type, message_type_name, resolve_enclosed
from sqlqueue_app.sending.delaying import check_can_delay, delayed_row
from sqlqueue_app.sending.routing import Routes
from sqlqueue_app.sending.subscribers import Subscribers, subscribers_of
from sqlqueue_app.sending.tracing import tracing
from sqlqueue_app.tables.rows import NewRow
from sqlqueue_app.tables.subscriptions import Subscription

REMOVE_IT = "make its queue, or remove it with unsubscribe() or sqlqueue_subscriptions --remove"


@dataclass(frozen=True, slots=True)
class SenderIdentity:
    """Who sends: an endpoint with its reply-to address, or a process that is none; the machine and its id for the headers."""

    endpoint: str | None
    reply_to: str | None
    machine: str
    host_id: uuid.UUID


def sender_identity(endpoint: str | None, book: AddressBook) -> SenderIdentity:
    """The identity of an endpoint on this machine; the host id is the same for every process of the machine."""
    machine = platform.node() or "unknown"
    host_id = uuid.uuid5(uuid.NAMESPACE_DNS, f"sqlqueue.{machine}")
    reply_to = book.canonical(book.of_queue(endpoint)) if endpoint else None
    return SenderIdentity(endpoint, reply_to, machine, host_id)


def utc_now() -> datetime:
    """The instant for header stamps; due times and expiry are the database's business."""
    return datetime.now(UTC)


class Composer:
    """Composes messages under one set of settings for one sender. Immutable; shared by all threads."""

    def __init__(
        self,
        settings: Settings,
        book: AddressBook,
        identity: SenderIdentity,
        *,
        subscribers: Subscribers | None = None,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self.identity = identity
        self._settings = settings
        self._book = book
        routes = Routes(settings.routes)
        # Settings do not change while we live; bounded, for a type name may come from anywhere.
        self._routed = lru_cache(maxsize=1_000)(lambda type_name: book.of_endpoint(routes.endpoint_for(type_name)))
        self._parsed = lru_cache(maxsize=1_000)(book.parse)
        self.subscribers = subscribers or subscribers_of(settings.database, book)
        self._now = now

    def destination(self, address: str) -> QueueAddress:
        """The queue of an address text, resolved; AddressError for bad text."""
        return self._book.parse(address)

    def compose(
        self,
        message: object,
        body: object = None,
        *,
        to: str | None = None,
        headers: Mapping[str, str | None] | None = None,
        time_to_be_received: timedelta | None = None,
        delay: timedelta | None = None,
        deliver_at: datetime | None = None,
        message_id: str | None = None,
        incoming: IncomingMessage | None = None,
        intent: Intent = Intent.SEND,
    ) -> OutgoingMessage:
        """The message with its headers; the caller's headers win over ours.

        MessageTypeError for an unknown type or one without a route, AddressError, MessageBodyError, WireFormatError for a header,
        id, lifetime or time of another kind, and as `check_delay` raises.
        """
        self.check_delay(delay, deliver_at, time_to_be_received)
        payload = self.payload(message, body)
        destination, content = self.envelope(
            message,
            to=to,
            headers=headers,
            time_to_be_received=time_to_be_received,
            message_id=message_id,
            incoming=incoming,
            intent=intent,
        )
        return OutgoingMessage(
            destination, content, self.body_writer(message, content)(payload), time_to_be_received, delay, deliver_at
        )

    def check_delay(self, delay: timedelta | None, deliver_at: datetime | None, time_to_be_received: timedelta | None) -> None:
        """Raise what a send with this delay would fail with; nothing where there is none.

        WireFormatError for another kind than a timedelta or an aware datetime, and for a time after the year 9999;
        ConfigurationError for more than one of the three, and where the settings name no endpoint and no SEND_AS.
        """
        if delay is None and deliver_at is None:
            return
        check_delay(delay, deliver_at, time_to_be_received)
        deliver_at_header(delay, deliver_at, self._now())
        check_can_delay(self.identity.endpoint or self._settings.delays_as)

    def delayed_row(self, message: OutgoingMessage) -> NewRow:
        """The row of a delayed message."""
        return delayed_row(message, self._book, self._now())

    def envelope(
        self,
        message: object,
        *,
        to: str | None = None,
        headers: Mapping[str, str | None] | None = None,
        time_to_be_received: timedelta | None = None,
        message_id: str | None = None,
        incoming: IncomingMessage | None = None,
        intent: Intent = Intent.SEND,
        for_many: bool = False,
    ) -> tuple[QueueAddress, Headers]:
        """Where a message or type name goes, and its headers; raises as `compose`, but for the body.

        `for_many`: the headers are those of many messages, and `message_id` stands for their ids.
        """
        type_name, enclosed = _type_of(message)
        destination = self._routed(type_name) if to is None else self.destination(to)
        content = self._headers(
            type_name,
            enclosed,
            headers=headers,
            time_to_be_received=time_to_be_received,
            message_id=message_id,
            incoming=incoming,
            intent=intent,
            sent_to=destination.table,
            for_many=for_many,
        )
        return destination, content

    def compose_event(
        self,
        message: object,
        body: object = None,
        *,
        headers: Mapping[str, str | None] | None = None,
        time_to_be_received: timedelta | None = None,
        message_id: str | None = None,
        incoming: IncomingMessage | None = None,
    ) -> tuple[str, list[OutgoingMessage]]:
        """The id of an event, and a copy of it for each address that has subscribed to its type or to one of its parents.

        Raises as `compose`, but for routes; QueueNotFound without a subscription table, AddressError for a row without an address.
        """
        payload = self.payload(message, body)
        type_name, enclosed = _type_of(message)
        content = self._headers(
            type_name,
            enclosed,
            headers=headers,
            time_to_be_received=time_to_be_received,
            message_id=message_id,
            incoming=incoming,
            intent=Intent.PUBLISH,
            sent_to=type_name,
        )
        data = self.body_writer(message, content)(payload)
        # What the header says is what receivers match their handlers with, also where a caller has written it.
        topics = tuple(dict.fromkeys(resolve_enclosed(content[names.ENCLOSED_MESSAGE_TYPES])))
        copies: dict[QueueAddress, OutgoingMessage] = {}
        for subscription in self.subscribers.of(topics):
            destination = self._address_of(subscription)
            if destination not in copies:
                because = f"an event goes there by {subscription}: {REMOVE_IT}"
                copies[destination] = OutgoingMessage(destination, content, data, time_to_be_received, because=because)
        return content[names.MESSAGE_ID] or "", list(copies.values())

    def _address_of(self, subscription: Subscription) -> QueueAddress:
        try:
            return self._parsed(subscription.address)
        except AddressError as error:
            raise AddressError(f"{subscription} names no queue: {error}; {REMOVE_IT}") from error

    def _headers(
        self,
        type_name: str,
        enclosed: str,
        *,
        headers: Mapping[str, str | None] | None,
        time_to_be_received: timedelta | None,
        message_id: str | None,
        incoming: IncomingMessage | None,
        intent: Intent,
        sent_to: str,
        for_many: bool = False,
    ) -> Headers:
        """The headers, and in traces the span, of what is sent to a queue or published under a type."""
        _check_kinds(message_id, time_to_be_received)
        check_custom_headers(headers)
        chosen_id = message_id or (headers or {}).get(names.MESSAGE_ID) or new_message_id()
        return outgoing_headers(
            message_id=chosen_id,
            enclosed_types=enclosed,
            content_type=CONTENT_TYPES[self.serializer],
            intent=intent,
            now=self._now(),
            endpoint=self.identity.endpoint,
            machine=self.identity.machine,
            host_id=self.identity.host_id,
            reply_to=self.identity.reply_to,
            incoming=incoming,
            time_to_be_received=time_to_be_received,
            custom=headers,
            trace=_trace(sent_to, headers, intent, type_name, None if for_many else chosen_id),
        )

    def control(
        self, to: str, headers: Mapping[str, str | None], *, incoming: IncomingMessage | None = None, intent: Intent
    ) -> OutgoingMessage:
        """A message of headers alone, for the infrastructure: no type, no body. AddressError for a bad address, WireFormatError."""
        check_custom_headers(headers)
        content = outgoing_headers(
            message_id=new_message_id(),
            intent=intent,
            now=self._now(),
            endpoint=self.identity.endpoint,
            machine=self.identity.machine,
            host_id=self.identity.host_id,
            reply_to=self.identity.reply_to,
            incoming=incoming,
            custom=headers,
        )
        return OutgoingMessage(self.destination(to), content, b"")

    def reply_address(self, incoming: IncomingMessage) -> str | None:
        """The address that a reply to the message goes to; None if the message names none. AddressError for a bad one.

        As it is written, unless the endpoint reads addresses as transports 1.x and 2.x do.

        Transport 2.x names its callback queue in a header, as a bare name that is never parsed but for the cut at an @. Its schema
        is that of the queue that the message names beside it (transport reference 4.5).
        """
        queue = incoming.headers.get(names.CALLBACK_QUEUE)
        if not queue:
            if incoming.reply_to is None or not self._book.cuts_received:
                return incoming.reply_to
            return self._book.canonical(self._book.received(incoming.reply_to))
        home = self._book.received(incoming.reply_address) if incoming.reply_address else None
        schema, catalog = (home.schema, home.catalog) if home is not None else (None, None)
        return self._book.canonical(QueueAddress(queue.partition("@")[0], schema, catalog, self._book.dialect))

    def payload(self, message: object, body: object) -> object:
        """What goes into the body: the message object, or the body beside a type name.

        MessageTypeError if both are given, MessageBodyError for a list beside a type name.
        """
        if isinstance(message, str):
            # An array is what no type of .NET is written as, and what no handler is called with.
            if isinstance(body, (list, tuple)) and not is_mappable(type(body)):
                raise MessageBodyError(f"the body of {message!r} is a {type(body).__name__}; expected an object: dict or dataclass")
            return {} if body is None else body
        if body is not None:
            raise MessageTypeError(
                f"a body was given beside the message {type(message).__qualname__}: "
                "hand in either a message object, or a type name and a body"
            )
        return message

    @property
    def serializer(self) -> str:
        """The default serializer of the settings."""
        return self._settings.serializer

    def body_writer(self, message: object, headers: Headers) -> Callable[[object], bytes]:
        """What writes a payload in the form that the headers of the message name; raises MessageBodyError for what has none.

        It serves all messages of the type with these headers.
        """
        # A content type that is neither JSON nor XML is read as that of the settings, so it is written as that.
        content_type = CONTENT_TYPES["xml" if is_xml(headers.get(names.CONTENT_TYPE), self.serializer) else "json"]
        # Only XML names the types in the body.
        types = resolve_enclosed(headers.get(names.ENCLOSED_MESSAGE_TYPES)) if is_xml(content_type) else ()
        spelling = self.spelling(message)
        write = partial(serialize, names=spelling, content_type=content_type, types=types)
        known = find_message_type(message) if spelling == PASCAL and isinstance(message, str) else None
        if known is None or not typing.is_typeddict(known.cls):
            return write
        return lambda payload: write(pascal_keys(payload, known.cls))

    def spelling(self, message: object) -> str:
        """How the names of its members are written."""
        known = find_message_type(message if isinstance(message, str) else message_type_name(message))
        return (known.names if known else None) or self._settings.body_names


def _trace(
    sent_to: str,
    headers: Mapping[str, str | None] | None,
    intent: Intent,
    message_type: str,
    message_id: str | None,
) -> Mapping[str, str | None] | None:
    """The headers of the trace that the message belongs to, where somebody makes spans and the caller names no trace himself."""
    active = tracing()
    if active is None or names.TRACE_PARENT in (headers or {}):
        return None
    return active.sent(sent_to, intent=intent, message_type=message_type, message_id=message_id)


def _check_kinds(message_id: object, time_to_be_received: object) -> None:
    """WireFormatError for what a caller without a type checker hands in: a UUID, a number of seconds."""
    if message_id is not None and not isinstance(message_id, str):
        raise WireFormatError(f"message_id is {type(message_id).__name__} ({message_id!r}); expected str: convert it first")
    if time_to_be_received is not None and not isinstance(time_to_be_received, timedelta):
        raise WireFormatError(
            f"time_to_be_received is {type(time_to_be_received).__name__} ({time_to_be_received!r}); expected a timedelta"
        )


def _type_of(message: object) -> tuple[str, str]:
    """The name of the type and the text of EnclosedMessageTypes."""
    if isinstance(message, type):
        raise MessageTypeError(f"the message is the class {message.__qualname__}: hand in an object of it")
    if not isinstance(message, str):
        return message_type_name(message), enclosed_types(message)
    if not resolve_enclosed(message):
        what = "names no type" if message.strip() else "is blank"
        raise MessageTypeError(f"the message type {message!r} {what}: expected a name such as 'Sales.PlaceOrder'")
    known = find_message_type(message)
    return message, enclosed_types(known.cls) if known else message
