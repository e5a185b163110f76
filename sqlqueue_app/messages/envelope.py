"""A message with its headers: as received from a row, as about to be written, and the times in its headers.

Nothing here accesses a clock, a machine or a database: the caller passes those values.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import ClassVar, Final

from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.errors import NullBody
from sqlqueue_app.messages.headers import Headers, Intent
from sqlqueue_app.messages.times import format_time, format_timespan, time_or_none
from sqlqueue_app.messages.types import resolve_enclosed

VERSION: Final = "9.0.0"
"""The value of the header ``NServiceBus.Version``: three numbers, because readers expect a core version.

At least 5, because a callback of core 5 accepts a reply by its intent only from such a sender (docs/internals/wire.md#callbacks);
9, because the set of headers is that of core 9 (10 adds its trace header). Receivers accepted 99.0.0 and no version at all.
"""


# Immutable by convention: one is created for each message, and frozen=True would triple the cost.
@dataclass(slots=True)
class IncomingMessage:
    """A received row.

    ``correlation_id`` and ``reply_to`` are passed as the columns of these names (absent on PostgreSQL, NULL from transport 7 on).
    After construction they contain the effective values (docs/internals/wire.md#rows-by-writer): the correlation header if it has
    a value, else the column; the callback queue that transport 2.x names in its own header, else the reply column if it has a
    value, else the header. ``None`` without any. ``reply_address`` is the same without the callback queue.
    """

    # A class attribute, which costs nothing if no saga handles the message.
    saga_headers: ClassVar[Headers | None] = None
    row_id: uuid.UUID
    headers: Headers
    body: bytes
    correlation_id: str | None = None
    reply_to: str | None = None
    reply_address: str | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        header = self.headers.get
        self.correlation_id = header(names.CORRELATION_ID) or self.correlation_id or None
        self.reply_address = self.reply_to or header(names.REPLY_TO_ADDRESS) or None
        self.reply_to = header(names.CALLBACK_QUEUE) or self.reply_address

    @property
    def message_id(self) -> str:
        """The id in the header; if missing or empty, the row's id in lower case with dashes."""
        return self.headers.get(names.MESSAGE_ID) or str(self.row_id)

    @property
    def message_types(self) -> list[str]:
        """The plain names of the enclosed types, the concrete one first."""
        return resolve_enclosed(self.headers.get(names.ENCLOSED_MESSAGE_TYPES))

    @property
    def content_type(self) -> str | None:
        """The content type as written, or ``None``."""
        return self.headers.get(names.CONTENT_TYPE) or None

    @property
    def intent(self) -> Intent:
        """The intent of the message; ``UNDEFINED`` if missing or unknown, which is handled as an ordinary message."""
        return Intent.read(self.headers.get(names.MESSAGE_INTENT))

    @property
    def conversation_id(self) -> str | None:
        """The conversation that the message belongs to, or ``None``."""
        return self.headers.get(names.CONVERSATION_ID) or None

    @property
    def time_sent(self) -> datetime | None:
        """The time of sending, aware, in UTC; ``None`` if the header is missing or unreadable."""
        return time_or_none(self.headers.get(names.TIME_SENT))

    @property
    def is_control_message(self) -> bool:
        """Whether the message is for the infrastructure and has no body (docs/internals/wire.md#control-messages)."""
        return names.CONTROL_MESSAGE in self.headers


class SagaMessage(IncomingMessage):
    """A received message while a saga handles it: what the saga sends names it (docs/internals/wire.md#sagas)."""

    saga_headers: Headers  # type: ignore[misc]

    def __init__(self, incoming: IncomingMessage, *, saga_id: str, saga_type: str) -> None:
        IncomingMessage.__init__(
            self, incoming.row_id, incoming.headers, incoming.body, incoming.correlation_id, incoming.reply_address
        )
        headers: Headers = {names.ORIGINATING_SAGA_ID: saga_id, names.ORIGINATING_SAGA_TYPE: saga_type}
        self.saga_headers = headers


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """A message to be written as one row; the database counts ``time_to_be_received``, ``None`` means no limit.

    With ``delay`` (counted by the database's clock from the moment of writing) or ``deliver_at`` (aware) it waits in the
    table of delayed messages of the sending endpoint. At most one of the three is set.
    The correlation and reply columns of SQL Server repeat the headers (docs/internals/wire.md#rows-for-every-version), so they are
    taken from those.
    """

    destination: QueueAddress
    headers: Headers
    body: bytes
    time_to_be_received: timedelta | None = None
    delay: timedelta | None = None
    deliver_at: datetime | None = None
    because: str | None = None
    """The subscription that a published copy follows; the error names it if the copy cannot be written to its destination."""
    is_new: ClassVar[bool] = False
    """Whether a sender has just composed it, so it is not a copy of a received message."""

    @property
    def is_delayed(self) -> bool:
        """Whether it goes through the table of delayed messages; also true for a zero delay or a time in the past."""
        return self.delay is not None or self.deliver_at is not None

    @property
    def message_id(self) -> str | None:
        """The id in the header; ``None`` for a copy of a row without one."""
        return self.headers.get(names.MESSAGE_ID) or None


class NewMessage(OutgoingMessage):
    """A message that a sender has just composed."""

    __slots__ = ()
    is_new = True


def complete_headers(headers: Headers, *, message_id: str, correlation_id: str | None, reply_to: str | None) -> Headers:
    """Copy the headers and add values found only in the row's id and columns; precedence is as in :class:`IncomingMessage`.

    Transports from 7 on read only the headers; versions 1 and 2 write the reply-to address only to the column
    (docs/internals/wire.md#rows-by-writer).
    """
    copy = dict(headers)
    copy[names.MESSAGE_ID] = headers.get(names.MESSAGE_ID) or message_id
    if reply_to := reply_to or headers.get(names.REPLY_TO_ADDRESS):
        copy[names.REPLY_TO_ADDRESS] = reply_to
    if correlation_id := headers.get(names.CORRELATION_ID) or correlation_id:
        copy[names.CORRELATION_ID] = correlation_id
    return copy


def body_for_null(headers: Headers) -> bytes:
    """The body of a row whose column is NULL: empty for a control message. Raises NullBody for any other.

    Transport 1.x writes NULL into control messages, later ones no bytes (docs/internals/wire.md#receive).
    """
    if names.CONTROL_MESSAGE not in headers:
        raise NullBody("the column Body is NULL")
    return b""


def columns_of(headers: Headers) -> tuple[str | None, str | None]:
    """The columns CorrelationId and ReplyToAddress, which repeat the headers."""
    return headers.get(names.CORRELATION_ID) or None, headers.get(names.REPLY_TO_ADDRESS) or None


def new_message_id() -> str:
    """A random GUID as text, lower case with dashes: 1.x and 2.x need a GUID, no version needs them ordered."""
    # Like uuid4() (RFC 9562: version 4, variant 10), without the UUID object, whose creation takes longer than the rest.
    digits = os.urandom(16).hex()
    variant = "89ab"[int(digits[16], 16) & 3]
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"


def guid_of(text: str | None) -> uuid.UUID | None:
    """Parse a text as a GUID; None for any other text."""
    try:
        return uuid.UUID(text or "")
    except ValueError:
        return None


def shared_headers(
    *,
    endpoint: str | None,
    machine: str,
    host_id: uuid.UUID,
    reply_to: str | None = None,
    content_type: str | None = None,
    enclosed_types: str | None = None,
) -> Headers:
    """The headers shared by all messages of one type from one sender, in the order of the recorded rows.

    ``endpoint`` is ``None`` in a process without an endpoint; ``reply_to`` is a canonical address; ``enclosed_types`` is the
    text of :func:`sqlqueue_app.messages.types.enclosed_types`. Values of ``None`` are omitted.
    """
    shared: Headers = {
        names.REPLY_TO_ADDRESS: reply_to,
        names.ORIGINATING_MACHINE: machine,
        names.ORIGINATING_ENDPOINT: endpoint,
        names.ORIGINATING_HOST_ID: host_id.hex,
        names.CONTENT_TYPE: content_type,
        names.ENCLOSED_MESSAGE_TYPES: enclosed_types,
        names.VERSION: VERSION,
    }
    return {name: value for name, value in shared.items() if value is not None}


_OURS_ALONE: Final = frozenset({names.MESSAGE_ID, names.CLAIM_CHECK})


def outgoing_headers(
    *,
    message_id: str,
    now: datetime,
    shared: Headers,
    intent: Intent = Intent.SEND,
    incoming: IncomingMessage | None = None,
    time_to_be_received: timedelta | None = None,
    conversation_id: str | None = None,
    custom: Mapping[str, str | None] | None = None,
    trace: Mapping[str, str | None] | None = None,
) -> Headers:
    """The headers of a sent, published or reply message, in the order of the recorded rows.

    ``now`` is aware and becomes TimeSent; ``shared`` are :func:`shared_headers`; ``incoming`` is the message being handled, which
    passes on its conversation and correlation. Without it a conversation starts: ``conversation_id``, or the message's own id.
    ``trace`` are the headers of its trace; by default the trace of ``incoming`` continues, unless ``custom`` names another.
    ``custom`` headers come first and override all others except the message id; the name of a file is that of another message's
    body, and is left out. Raises :class:`WireFormatError` for a naive ``now`` and for a duration beyond the range of .NET.
    """
    ours: Headers = {names.MESSAGE_ID: message_id}
    if intent is not Intent.UNDEFINED:
        ours[names.MESSAGE_INTENT] = intent.value
    if incoming is None:
        ours[names.CONVERSATION_ID] = conversation_id or message_id
        ours[names.CORRELATION_ID] = message_id
    else:
        ours[names.RELATED_TO] = incoming.message_id
        ours[names.CONVERSATION_ID] = incoming.conversation_id or conversation_id or message_id
        ours[names.CORRELATION_ID] = incoming.correlation_id or incoming.message_id
        if incoming.saga_headers is not None:
            ours |= incoming.saga_headers
    if time_to_be_received is not None:
        ours[names.TIME_TO_BE_RECEIVED] = format_timespan(time_to_be_received)
    ours |= shared
    ours[names.TIME_SENT] = format_time(now)
    if not custom or names.TRACE_PARENT not in custom:
        ours |= trace or ({} if incoming is None else _trace_of(incoming))
    if not custom:
        return ours
    headers = {name: value for name, value in custom.items() if name not in _OURS_ALONE}
    for name, value in ours.items():
        headers.setdefault(name, value)
    return headers


def _trace_of(incoming: IncomingMessage) -> Headers:
    """The trace headers of a handled message, passed on without spans, including a request to start a new trace."""
    header = incoming.headers.get
    has_parent = bool(header(names.TRACE_PARENT))
    passed = names.TRACE_CONTEXT if has_parent else (names.BAGGAGE,)
    found: Headers = {name: value for name in passed if (value := header(name)) is not None}
    if has_parent and (header(names.START_NEW_TRACE) or "").lower() == "true":
        found[names.START_NEW_TRACE] = "True"
    return found


@dataclass(frozen=True, slots=True)
class MessageTimes:
    """Instants and the durations between them (docs/internals/operations.md#metrics); None without a readable header.

    Clocks that differ cause negative durations. `ended` is the time when processing ended or failed.
    """

    sent: datetime | None
    due: datetime | None
    started: datetime | None
    ended: datetime | None
    failed: bool

    @property
    def begin(self) -> datetime | None:
        """The earliest time of handling: when it was due, else when it was sent."""
        return self.due or self.sent

    @property
    def delivery(self) -> timedelta | None:
        """The time from `begin` until processing started."""
        return _between(self.begin, self.started)

    @property
    def processing(self) -> timedelta | None:
        """The processing time."""
        return _between(self.started, self.ended)

    @property
    def critical(self) -> timedelta | None:
        """The critical time: from `begin` until it was handled or had failed."""
        return _between(self.begin, self.ended)


def message_times(headers: Mapping[str, str | None]) -> MessageTimes:
    """Read the times in headers: all of them in an audit queue, the time of failure in an error queue. Never raises."""
    failed = time_or_none(headers.get(names.TIME_OF_FAILURE))
    ended = time_or_none(headers.get(names.PROCESSING_ENDED))
    return MessageTimes(
        sent=time_or_none(headers.get(names.TIME_SENT)),
        due=time_or_none(headers.get(names.DELIVER_AT)),
        started=time_or_none(headers.get(names.PROCESSING_STARTED)),
        ended=ended or failed,
        failed=ended is None and failed is not None,
    )


def _between(begin: datetime | None, end: datetime | None) -> timedelta | None:
    return None if begin is None or end is None else end - begin
