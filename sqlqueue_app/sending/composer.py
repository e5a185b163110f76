"""Composes messages: turns the arguments of `send()` into headers, body and destination."""

from __future__ import annotations

import platform
import re
import sys
import typing
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from sqlqueue_app.conf import Settings
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.addresses import AddressBook, QueueAddress
from sqlqueue_app.messages.envelope import (
    IncomingMessage,
    NewMessage,
    OutgoingMessage,
    columns_of,
    guid_of,
    new_message_id,
    outgoing_headers,
    shared_headers,
)
from sqlqueue_app.messages.errors import (
    AddressError,
    ConfigurationError,
    MessageBodyError,
    MessageTypeError,
    SqlQueueError,
    WireFormatError,
)
from sqlqueue_app.messages.headers import Headers, Intent, check_custom_headers, read_headers, write_headers
from sqlqueue_app.messages.serializers import CONTENT_TYPES, Writer, is_xml, writer_for
from sqlqueue_app.messages.times import check_delay, delay_milliseconds, deliver_at_header, due_time
from sqlqueue_app.messages.type_hints import AS_IS, is_mappable, pascal_keys
from sqlqueue_app.messages.types import MessageType, full_name, name_fault, registry, resolve_enclosed, topics_of
from sqlqueue_app.policies.priorities import Priority
from sqlqueue_app.sending.claim_checks import claim_checks_of
from sqlqueue_app.sending.priority_queues import Priorities, checked_priority
from sqlqueue_app.sending.subscribers import Subscribers, subscribers_of
from sqlqueue_app.sending.tracing import OPENTELEMETRY, tracing
from sqlqueue_app.tables.rows import NewRow
from sqlqueue_app.tables.subscriptions import SubscriptionRow

REMOVE_IT = "create its queue, or remove it with unsubscribe() or sqlqueue_subscriptions --remove"

# Type names and addresses may come from anywhere: each cache is bounded.
_REMEMBERED = 1_000


class Options(typing.TypedDict, total=False):
    """The options that every sending call takes, for their overloads."""

    headers: Mapping[str, str | None] | None
    time_to_be_received: timedelta | None


class RequestOptions(Options, total=False):
    """The options of `request()`."""

    to: str | None
    priority: Priority | None
    message_id: str | None


class ManyOptions(Options, total=False):
    """The options of `send_many()`."""

    to: str | None
    priority: Priority | None
    delay: timedelta | float | None
    deliver_at: datetime | None


class DelayOptions(ManyOptions, total=False):
    """The options of `send()`."""

    message_id: str | None
    unique_key: str | None
    unique_for: timedelta | float | None


class ContextOptions(Options, total=False):
    """The options of `context.send_local()`."""

    priority: Priority | None
    delay: timedelta | float | None
    deliver_at: datetime | None
    immediate: bool


@dataclass(frozen=True, slots=True)
class SendOptions:
    """The options of one message, as `send()` describes them."""

    to: str | None = None
    headers: Mapping[str, str | None] | None = None
    time_to_be_received: timedelta | None = None
    delay: timedelta | None = None
    deliver_at: datetime | None = None
    message_id: str | None = None
    priority: Priority | None = None


NO_OPTIONS = SendOptions()


@dataclass(frozen=True, slots=True)
class SenderIdentity:
    """The sender: an endpoint with its reply-to address, or a process without one; machine name and id for the headers."""

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
    """The current time for header timestamps; the database computes due times and expiry."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class TypeForm:
    """The parts that all messages of one type from one sender share."""

    name: str
    known: MessageType | None
    """The registered type; None for a name without a registered class."""
    shared: Headers
    """The headers that all messages share. Never changed."""
    write_body: Writer
    """Writes a body in the format that the shared headers name."""


class Composer:
    """Composes messages under one set of settings for one sender. Immutable; shared by all threads."""

    has_middleware = False
    """Whether middleware may change each message."""

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
        self.subscribers = subscribers or subscribers_of(settings.database, book)
        self._settings = settings
        self._book = book
        self._now = now
        self.priorities = Priorities(settings, book)
        self.claim_checks = claim_checks_of(settings, book)
        routes = Routes(settings.routes)
        # Settings do not change while the composer lives.
        self._routed = lru_cache(_REMEMBERED)(lambda type_name: book.of_endpoint(routes.endpoint_for(type_name)))
        self._parsed = lru_cache(_REMEMBERED)(book.parse)
        self._forms = lru_cache(_REMEMBERED)(self._make_form)
        # Import a tracer provider that the environment names: `_trace` only checks what is already imported.
        tracing()

    def compose(
        self,
        message: object,
        body: object = None,
        options: SendOptions = NO_OPTIONS,
        *,
        incoming: IncomingMessage | None = None,
        intent: Intent = Intent.SEND,
    ) -> OutgoingMessage:
        """Compose a message with its headers; the caller's headers override ours.

        Raises MessageTypeError for an unknown type or one without a route, AddressError, MessageBodyError, WireFormatError for a
        header, id, lifetime or time of the wrong type, and the errors of `check_delay`.
        """
        if options.delay is not None or options.deliver_at is not None:
            self.check_delay(options)
        payload = payload_of(message, body)
        form = self.form_of(message)
        if options.priority is not None:
            options = self.with_priority(form, options)
        destination = self.destination_of(form, options)
        headers = self.headers_of(form, options, incoming=incoming, intent=intent, sent_to=destination.table)
        data = self.body_writer(form, options, headers, destination, incoming)(payload)
        if self.claim_checks is not None:
            self.claim_checks.check_size(destination, len(data), form.name)
        return NewMessage(destination, headers, data, options.time_to_be_received, options.delay, options.deliver_at)

    def compose_event(
        self, message: object, body: object = None, options: SendOptions = NO_OPTIONS, *, incoming: IncomingMessage | None = None
    ) -> tuple[str, list[OutgoingMessage]]:
        """Compose an event: its id, and a copy for each address that has subscribed to its type or to one of its parents.

        An event has no `to` and no delay. Raises as `compose` except for routes; QueueNotFound without a subscription table,
        AddressError for a row without an address.
        """
        payload = payload_of(message, body)
        form = self.form_of(message)
        headers = self.headers_of(form, options, incoming=incoming, intent=Intent.PUBLISH, sent_to=form.name)
        data = self.body_writer(form, options, headers, None, incoming)(payload)
        # Receivers match their handlers with this header, also where the caller has written it.
        topics = (*topics_of(headers[names.ENCLOSED_MESSAGE_TYPES]), _BASE_OF_ALL)
        copies: dict[QueueAddress, OutgoingMessage] = {}
        for subscription in self.subscribers.of(topics):
            destination = self._address_of(subscription)
            if destination not in copies:
                if self.claim_checks is not None:
                    self.claim_checks.check_size(destination, len(data), form.name)
                because = f"{subscription} leads there: {REMOVE_IT}"
                copies[destination] = NewMessage(destination, headers, data, options.time_to_be_received, because=because)
        return headers[names.MESSAGE_ID] or "", list(copies.values())

    def _address_of(self, subscription: SubscriptionRow) -> QueueAddress:
        try:
            return self._parsed(subscription.address)
        except AddressError as error:
            raise AddressError(f"{subscription} names no queue: {error}; {REMOVE_IT}") from error

    def control(
        self, to: str, headers: Mapping[str, str | None], *, incoming: IncomingMessage | None = None, intent: Intent
    ) -> OutgoingMessage:
        """Compose a control message: headers only, no type, no body. Raises AddressError for a bad address, WireFormatError."""
        check_custom_headers(headers)
        content = outgoing_headers(
            message_id=new_message_id(), now=self._now(), shared=self._shared(), intent=intent, incoming=incoming, custom=headers
        )
        return NewMessage(self.destination(to), content, b"")

    def check_delay(self, options: SendOptions) -> None:
        """Check the delay or due time of a send.

        Raises WireFormatError for anything but a timedelta or an aware datetime, and for a time after the year 9999;
        ConfigurationError for more than one of the three times, and if the settings name no endpoint and no SEND_AS.
        """
        check_delay(options.delay, options.deliver_at, options.time_to_be_received)
        deliver_at_header(options.delay, options.deliver_at, self._now())
        check_can_delay(self.identity.endpoint or self._settings.delays_as)

    def form_of(self, message: object) -> TypeForm:
        """The shared parts of messages of a type, by object or type name. MessageTypeError for anything but a message type."""
        if isinstance(message, type):
            raise MessageTypeError(f"the message is the class {message.__qualname__}: pass an instance of it")
        # Registering a type later changes the meaning of its name and of its subclasses.
        kind = message if isinstance(message, str) else type(message)
        return self._forms(kind, registry.version)  # type: ignore[arg-type]  # the stubs do not make metaclasses hashable

    def _make_form(self, kind: str | type, _version: int) -> TypeForm:
        if isinstance(kind, str):
            if fault := name_fault(kind):
                raise MessageTypeError(f"the message type {kind!r} {fault}: expected a name such as 'Sales.PlaceOrder'")
            # An assembly may follow the name. Routes and the registry know the name alone.
            given, name = kind.strip(), full_name(kind)
            known = registry.by_name(name)
        else:
            known = registry.of(kind)
            given = name = known.name
        enclosed = given if known is None else registry.enclosed(known.cls)
        if known is not None and given != name:
            enclosed = ";".join([given, *enclosed.split(";")[1:]])
        content_type = CONTENT_TYPES[self.serializer]
        return TypeForm(name, known, self._shared(content_type, enclosed), self._writer(known, content_type, enclosed))

    def _shared(self, content_type: str | None = None, enclosed: str | None = None) -> Headers:
        identity = self.identity
        return shared_headers(
            endpoint=identity.endpoint,
            machine=identity.machine,
            host_id=identity.host_id,
            reply_to=identity.reply_to,
            content_type=content_type,
            enclosed_types=enclosed,
        )

    def destination_of(self, form: TypeForm, options: SendOptions) -> QueueAddress:
        """The destination of a message: the caller's address, else the route. Raises AddressError, MessageTypeError."""
        return self._routed(form.name) if options.to is None else self.destination(options.to)

    def with_priority(self, form: TypeForm, options: SendOptions) -> SendOptions:
        """The options that send to the queue of their priority, with its header. Raises as `destination_of`, ConfigurationError if
        the destination has no queues for priorities, WireFormatError for another value.
        """
        if (priority := checked_priority(options.priority)) == "normal":
            return options
        queue = self.priorities.queue(self.destination_of(form, options), priority)
        check_custom_headers(options.headers)
        headers = {names.PRIORITY: priority, **(options.headers or {})}
        return replace(options, to=self._book.canonical(queue), headers=headers)

    def priority_of_reply(self, address: str, incoming: IncomingMessage) -> Priority | None:
        """The priority of the message that is replied to; None unless the endpoint at this address has a queue for it."""
        if not self.priorities:
            return None
        main = self.destination(address)
        priority = incoming.headers.get(names.PRIORITY)
        return None if self.priorities.kept(main, priority) == main else checked_priority(priority)

    def destination(self, address: str) -> QueueAddress:
        """The queue of an address text, resolved; AddressError for bad text."""
        try:
            return self._parsed(address)
        except TypeError:
            # Not hashable, so it is not text: the book raises the error.
            return self._book.parse(address)

    def headers_of(
        self,
        form: TypeForm,
        options: SendOptions,
        *,
        incoming: IncomingMessage | None,
        intent: Intent,
        sent_to: str,
        for_many: bool = False,
    ) -> Headers:
        """Build the headers, and the span if tracing is on, of a message sent to a queue or published under a type.

        `for_many`: many messages share the headers, and `message_id` is a placeholder for their ids.
        """
        custom, message_id = options.headers, options.message_id
        if message_id is not None or options.time_to_be_received is not None:
            _check_kinds(message_id, options.time_to_be_received)
        if custom is not None:
            check_custom_headers(custom)
            message_id = message_id or custom.get(names.MESSAGE_ID)
        message_id = message_id or new_message_id()
        trace = None
        if OPENTELEMETRY in sys.modules and not (custom and names.TRACE_PARENT in custom):
            trace = _trace(sent_to, intent, form.name, None if for_many else message_id)
        return outgoing_headers(
            message_id=message_id,
            now=self._now(),
            shared=form.shared,
            intent=intent,
            incoming=incoming,
            time_to_be_received=options.time_to_be_received,
            custom=custom,
            trace=trace,
        )

    def body_writer(
        self,
        form: TypeForm,
        options: SendOptions,
        headers: Headers,
        destination: QueueAddress | None,
        incoming: IncomingMessage | None,
    ) -> Writer:
        """The writer of a type's bodies in the format that the headers name; the caller's headers take precedence.

        The other arguments are for middleware, which may change `headers` (`ComposerWithMiddleware`).
        """
        if options.headers is None or _HEADERS_OF_THE_BODY.isdisjoint(options.headers):
            return form.write_body
        return self.writer_of(form, {**form.shared, **options.headers})

    def writer_of(self, form: TypeForm, headers: Headers) -> Writer:
        """The writer of a type's bodies in the format of complete headers."""
        return self._writer(form.known, headers.get(names.CONTENT_TYPE), headers.get(names.ENCLOSED_MESSAGE_TYPES))

    def _writer(self, known: MessageType | None, content_type: str | None, enclosed: str | None) -> Writer:
        # Receivers read a body whose content type is neither JSON nor XML in the format of the settings, so write it in that.
        as_xml = is_xml(content_type, self.serializer)
        spelling = self._spelling(known)
        # Only XML names the types in the body.
        write = writer_for(spelling, CONTENT_TYPES["xml" if as_xml else "json"], resolve_enclosed(enclosed) if as_xml else ())
        # Claim checks know the limit, because it depends on the destination.
        limit = None if self.claim_checks is not None else self._settings.max_body_size
        what = known.name if known is not None else enclosed
        is_spelled = known is not None and spelling != AS_IS and typing.is_typeddict(known.cls)

        def checked(payload: typing.Any) -> bytes:
            data = write(pascal_keys(payload, known.cls) if is_spelled else payload)  # type: ignore[union-attr]
            if limit is not None and len(data) > limit:
                raise MessageBodyError(
                    f"the body of a {what} has {len(data):,} bytes, more than the {_mebibytes(limit)} of "
                    'SQLQUEUE["MAX_BODY_SIZE"]: set CLAIM_CHECK, send a reference to the data, or raise the limit'
                )
            return data

        return checked

    def reply_address(self, incoming: IncomingMessage) -> str | None:
        """The address for replies to a message; None if the message names none. AddressError for a bad one.

        Unchanged, unless the endpoint reads addresses as transports 1.x and 2.x do. Transport 2.x names its callback queue in a
        header: a bare name, cut at an @, in the schema of the reply-to address (docs/internals/endpoints.md#callback-queue).
        """
        queue = incoming.headers.get(names.CALLBACK_QUEUE)
        if not queue:
            if incoming.reply_to is None or not self._book.cuts_received:
                return incoming.reply_to
            return self._book.canonical(self._book.received(incoming.reply_to))
        beside = self._book.received(incoming.reply_address) if incoming.reply_address else None
        schema, catalog = (beside.schema, beside.catalog) if beside is not None else (None, None)
        return self._book.canonical(QueueAddress(queue.partition("@")[0], schema, catalog, self._book.dialect))

    @property
    def serializer(self) -> str:
        """The default serializer of the settings."""
        return self._settings.serializer

    def spelling(self, type_name: str) -> str:
        """The spelling of the member names of a type."""
        return self._spelling(registry.by_name(type_name))

    def _spelling(self, known: MessageType | None) -> str:
        return (known.names if known else None) or self._settings.body_names

    def row_of(self, message: OutgoingMessage) -> NewRow:
        """The row of a message that may have the id of another one."""
        return self.delayed_row(message) if message.is_delayed else new_row(message, keep_id=self._book.dialect != "postgresql")

    def delayed_row(self, message: OutgoingMessage) -> NewRow:
        """The row of a delayed message."""
        return delayed_row(message, self._book, self._now())


# Publishers of NServiceBus look for subscribers of every base class (docs/internals/wire.md#subscription-table).
_BASE_OF_ALL = "System.Object"
_HEADERS_OF_THE_BODY = frozenset({names.CONTENT_TYPE, names.ENCLOSED_MESSAGE_TYPES})


def payload_of(message: object, body: object) -> object:
    """The payload of the body: the message object, or the body given with a type name.

    Raises MessageTypeError if both are given, MessageBodyError for a list with a type name.
    """
    if isinstance(message, str):
        # No .NET type serializes to an array, and no handler accepts one.
        if isinstance(body, (list, tuple)) and not is_mappable(type(body)):
            raise MessageBodyError(f"the body of {message!r} is a {type(body).__name__}; expected an object: dict or dataclass")
        return {} if body is None else body
    if body is not None:
        what = f"class {message.__qualname__}" if isinstance(message, type) else f"message {type(message).__qualname__}"
        raise MessageTypeError(f"a body was passed with the {what}: pass either a message object, or a type name and a body")
    return message


def check_can_delay(endpoint: str | None) -> str:
    """The endpoint whose table holds a process's delayed messages; ConfigurationError if there is none."""
    if endpoint is None:
        raise ConfigurationError(
            "a message cannot be delayed without an endpoint, whose table would hold it: "
            'set SQLQUEUE["SEND_AS"] to the endpoint to send as and run sqlqueue_install, which creates the table'
        )
    return endpoint


def _trace(sent_to: str, intent: Intent, message_type: str, message_id: str | None) -> Mapping[str, str | None] | None:
    """The trace headers of a message; None without a tracer provider."""
    active = tracing()
    return None if active is None else active.sent(sent_to, intent=intent, message_type=message_type, message_id=message_id)


def _check_kinds(message_id: object, time_to_be_received: object) -> None:
    """Raise WireFormatError for values that a type checker would reject, such as a UUID or a number of seconds."""
    if message_id is not None and not isinstance(message_id, str):
        raise WireFormatError(f"message_id is {type(message_id).__name__} ({message_id!r}); expected str: convert it first")
    if time_to_be_received is not None and not isinstance(time_to_be_received, timedelta):
        raise WireFormatError(
            f"time_to_be_received is {type(time_to_be_received).__name__} ({time_to_be_received!r}); expected a timedelta"
        )


Target = typing.TypeVar("Target")


class Routes(typing.Generic[Target]):
    """Maps message type names and `Namespace.*` patterns to endpoints, or to the values of another setting.

    The exact name wins, then the longest pattern.
    """

    def __init__(self, routes: Mapping[str, Target]) -> None:
        self._exact = {name: endpoint for name, endpoint in routes.items() if not name.endswith("*")}
        patterns = ((name.removesuffix("*"), endpoint) for name, endpoint in routes.items() if name.endswith("*"))
        self._patterns = sorted(patterns, key=lambda entry: len(entry[0]), reverse=True)

    def endpoint_for(self, message_type: str) -> Target:
        """The endpoint that a type is routed to. Raises MessageTypeError, with the remedy, if there is no route."""
        endpoint = self.find(message_type)
        if endpoint is None:
            raise MessageTypeError(
                f"message type {message_type!r} has no route: "
                f'add {message_type!r}: "<endpoint>" to SQLQUEUE["ROUTES"], or name the queue with to='
            )
        return endpoint

    def find(self, message_type: str) -> Target | None:
        """The endpoint that a type is routed to, or None."""
        if message_type in self._exact:
            return self._exact[message_type]
        return next((endpoint for start, endpoint in self._patterns if message_type.startswith(start)), None)


def _mebibytes(size: int) -> str:
    return f"{size >> 20:,} MiB" if size % (1 << 20) == 0 else f"{size:,} bytes"


_GUID = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_HEADERS_OF_THE_DELAY = (names.DELIVER_AT, names.FORWARD_DESTINATION)


def new_row(message: OutgoingMessage, *, keep_id: bool) -> NewRow:
    """The row of a message. `keep_id` keeps a GUID as the row id, from which transports 1.x and 2.x take the message id.

    On PostgreSQL the row id is the primary key, which would reject a message sent again: use a new id there.
    """
    lifetime = message.time_to_be_received
    correlation_id, reply_to = columns_of(message.headers)
    return NewRow(
        _row_id(message.message_id) if keep_id else new_message_id(),
        write_headers(message.headers),
        message.body,
        correlation_id,
        reply_to,
        None if lifetime is None else int(lifetime.total_seconds() * 1000),
    )


def _row_id(message_id: str | None) -> str:
    if message_id is None:
        return new_message_id()
    # Our own ids have this form already.
    if _GUID.fullmatch(message_id):
        return message_id
    found = guid_of(message_id)
    return new_message_id() if found is None else str(found)


def delayed_row(message: OutgoingMessage, book: AddressBook, now: datetime) -> NewRow:
    """The row of a delayed message, with due time and destination in its headers as core 8 and later write them.

    Raises as `check_delay` and `deliver_at_header` do (docs/internals/wire.md#delayed-messages).
    """
    check_delay(message.delay, message.deliver_at, message.time_to_be_received)
    headers = {name: value for name, value in message.headers.items() if name not in _HEADERS_OF_THE_DELAY}
    headers[names.DELIVER_AT] = deliver_at_header(message.delay, message.deliver_at, now)
    headers[names.FORWARD_DESTINATION] = book.canonical(message.destination)
    return NewRow(
        id=message.message_id or new_message_id(),
        headers=write_headers(headers),
        body=message.body,
        delay_ms=None if message.delay is None else delay_milliseconds(message.delay),
        due=None if message.deliver_at is None else due_time(message.deliver_at),
    )


def outgoing_of(destination: QueueAddress, row: NewRow) -> OutgoingMessage:
    """Turn a composed row back into its message, for handlers whose messages are collected."""
    headers = read_headers(row.headers)
    lifetime, delay = _duration(row.time_to_be_received_ms), _duration(row.delay_ms)
    return NewMessage(destination, headers, row.body, lifetime, delay, row.due)


def _duration(milliseconds: int | None) -> timedelta | None:
    return None if milliseconds is None else timedelta(milliseconds=milliseconds)


# An iterable may be slow: at most this many messages of one type share a time sent.
MESSAGES_PER_TEMPLATE = 500


@dataclass(frozen=True, slots=True)
class _Template:
    """A composed message with a placeholder for its id."""

    destination: QueueAddress
    headers: tuple[str, ...]
    write_body: Writer
    correlates_itself: bool
    sample: NewRow

    def row(self, payload: object) -> NewRow:
        """The row of one message. On every database its id is the message id, which is new and so in no table yet."""
        message_id = new_message_id()
        return NewRow(
            message_id,
            message_id.join(self.headers),
            self.write_body(payload),
            message_id if self.correlates_itself else self.sample.correlation_id,
            self.sample.reply_to_address,
            self.sample.time_to_be_received_ms,
            self.sample.delay_ms,
            self.sample.due,
        )


def compose_rows(
    composer: Composer,
    messages: Iterable[tuple[object, object]],
    options: SendOptions,
    *,
    what: str,
    incoming: IncomingMessage | None,
    ids: list[str],
) -> Iterator[tuple[QueueAddress, NewRow]]:
    """Yield each message, given as to `Composer.compose`, as a row with its queue; rows are composed lazily.

    The id of a row is that of its message. Middleware may change the latter: if there is any, `ids` gets the ids of the messages.
    Up to MESSAGES_PER_TEMPLATE messages of one type share a time sent. Raises as `compose`, with the message's position in `what`
    before the text, ConfigurationError for headers with a message id, and the errors of `Composer.check_delay` before any row.
    """
    if options.delay is not None or options.deliver_at is not None:
        composer.check_delay(options)
    # Headers of another kind are refused with the first message.
    if isinstance(options.headers, Mapping) and names.MESSAGE_ID in options.headers:
        raise ConfigurationError(
            f"headers= of send_many() names {names.MESSAGE_ID!r}, which would give every message the same id; "
            "leave it out, or call send() with message_id= for each"
        )
    templates: dict[object, _Template] = {}
    for place, (message, body) in enumerate(messages):
        try:
            if composer.has_middleware:
                # Middleware may give each message its own headers, so nothing is shared.
                made = composer.compose(message, body, options, incoming=incoming)
                destination, row = made.destination, composer.row_of(made)
                ids.append(made.message_id or "")
            else:
                payload = payload_of(message, body)
                kind = message if isinstance(message, str) else type(message)
                if place % MESSAGES_PER_TEMPLATE == 0:
                    templates.clear()
                if (template := templates.get(kind)) is None:
                    template = templates[kind] = _template(composer, message, options, incoming)
                destination, row = template.destination, template.row(payload)
        except SqlQueueError as error:
            raise type(error)(f"{what}[{place}]: {error}") from error
        except Exception as error:
            error.add_note(f"while {what}[{place}] of send_many() was composed")
            raise
        yield destination, row


def _template(composer: Composer, message: object, options: SendOptions, incoming: IncomingMessage | None) -> _Template:
    mark = new_message_id()
    form = composer.form_of(message)
    if options.priority is not None:
        options = composer.with_priority(form, options)
    destination = composer.destination_of(form, options)
    marked = replace(options, message_id=mark)
    headers = composer.headers_of(form, marked, incoming=incoming, intent=Intent.SEND, sent_to=destination.table, for_many=True)
    sample = OutgoingMessage(destination, headers, b"", options.time_to_be_received, options.delay, options.deliver_at)
    row = composer.delayed_row(sample) if sample.is_delayed else new_row(sample, keep_id=True)
    write_body = composer.body_writer(form, options, headers, destination, incoming)
    if (claim_checks := composer.claim_checks) is not None:

        def checked(payload: typing.Any, write: Writer = write_body) -> bytes:
            data = write(payload)
            claim_checks.check_size(destination, len(data), form.name)
            return data

        write_body = checked
    return _Template(
        destination,
        tuple(row.headers.split(mark)),
        write_body,
        row.correlation_id == mark,
        row,
    )
