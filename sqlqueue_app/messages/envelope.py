"""A message with what the wire says about it: as received from a row, and as it is about to be written.

Nothing here asks a clock, a machine or a database: whoever receives or sends hands those values in.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.headers import Headers
from sqlqueue_app.messages.times import format_time, format_timespan, parse_time
from sqlqueue_app.messages.types import resolve_enclosed

VERSION: Final = "9.0.0"
"""What we say in the header ``NServiceBus.Version``: three numbers, because readers expect a core version there.

5 or more, because a callback of core 5 takes a reply by its intent only from such a sender (transport reference §6.9); and
9, because the set of headers is that of core 9 (10 adds its trace header). Receivers took 99.0.0 and no version at all.
"""


class Intent(StrEnum):
    """Why a message was sent (transport reference §6.3); equal to its text on the wire."""

    UNDEFINED = ""
    SEND = "Send"
    PUBLISH = "Publish"
    SUBSCRIBE = "Subscribe"
    UNSUBSCRIBE = "Unsubscribe"
    REPLY = "Reply"

    @classmethod
    def read(cls, text: str | None) -> Intent:
        """The intent of a header: a name in any case or its number; what is unknown or missing is ``UNDEFINED``."""
        return _INTENTS.get((text or "").strip().lower(), cls.UNDEFINED)


_INTENTS: Final = {key: intent for number, intent in enumerate(Intent) for key in (intent.value.lower(), str(number)) if key}


@dataclass(frozen=True, slots=True)
class IncomingMessage:
    """A received row.

    ``correlation_id`` and ``reply_to`` are given as the columns of these names (absent on PostgreSQL, NULL from transport
    7 on) and hold, once made, what counts by transport reference §13.1: the correlation header if it says something,
    else the column; the reply column if it says something, else the header, and before both the callback queue that
    transport 2.x names in a header of its own. ``None`` if nobody said. ``reply_address`` is the same without that queue.
    """

    row_id: uuid.UUID
    headers: Headers
    body: bytes
    correlation_id: str | None = None
    reply_to: str | None = None
    reply_address: str | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        header = self.headers.get
        correlation_id = header(names.CORRELATION_ID) or self.correlation_id or None
        reply_address = self.reply_to or header(names.REPLY_TO_ADDRESS) or None
        reply_to = header(names.CALLBACK_QUEUE) or reply_address
        object.__setattr__(self, "correlation_id", correlation_id)
        object.__setattr__(self, "reply_to", reply_to)
        object.__setattr__(self, "reply_address", reply_address)

    @property
    def message_id(self) -> str:
        """The id in the header; the row's id, in lower case with dashes, where that is missing or empty."""
        return self.headers.get(names.MESSAGE_ID) or str(self.row_id)

    @property
    def message_types(self) -> list[str]:
        """The plain names of the enclosed types, the concrete one first."""
        return resolve_enclosed(self.headers.get(names.ENCLOSED_MESSAGE_TYPES))

    @property
    def content_type(self) -> str | None:
        """The content type as it was written, or ``None``."""
        return self.headers.get(names.CONTENT_TYPE) or None

    @property
    def intent(self) -> Intent:
        """Why it was sent; ``UNDEFINED`` for none and for one we do not know, which is handled as an ordinary message."""
        return Intent.read(self.headers.get(names.MESSAGE_INTENT))

    @property
    def conversation_id(self) -> str | None:
        """The conversation that the message belongs to, or ``None``."""
        return self.headers.get(names.CONVERSATION_ID) or None

    @property
    def time_sent(self) -> datetime | None:
        """When it was sent, aware, in UTC; ``None`` if the header is missing or cannot be read.

        A real endpoint fails on such a text; we only lose the critical time, as with a missing one.
        """
        text = self.headers.get(names.TIME_SENT)
        try:
            return parse_time(text) if text else None
        except ValueError:
            return None

    @property
    def is_control_message(self) -> bool:
        """Whether the message is for the infrastructure and carries no body (reference §6.6, §6.9)."""
        return names.CONTROL_MESSAGE in self.headers


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """A message to be written as one row; ``time_to_be_received`` as the database shall count it, ``None``: for ever.

    With ``delay`` (counted by the database's clock from the moment it is written) or ``deliver_at`` (aware) it waits in
    the table of delayed messages of the endpoint that sends it. At most one of the three is given.
    The correlation and reply columns of SQL Server repeat the headers (reference §13), so they are read from those.
    """

    destination: QueueAddress
    headers: Headers
    body: bytes
    time_to_be_received: timedelta | None = None
    delay: timedelta | None = None
    deliver_at: datetime | None = None
    because: str | None = None
    """Of a published copy: which subscription brings it to its destination, for the error that it cannot be written there."""

    @property
    def is_delayed(self) -> bool:
        """Whether it waits before it is delivered; also with a delay of nothing, or a time that has passed."""
        return self.delay is not None or self.deliver_at is not None

    @property
    def message_id(self) -> str | None:
        """The id in the header; ``None`` for a copy of a row that never had one."""
        return self.headers.get(names.MESSAGE_ID) or None

    @property
    def correlation_id(self) -> str | None:
        """The value of the column CorrelationId."""
        return columns_of(self.headers)[0]

    @property
    def reply_to(self) -> str | None:
        """The value of the column ReplyToAddress."""
        return columns_of(self.headers)[1]


def complete_headers(headers: Headers, *, message_id: str, correlation_id: str | None, reply_to: str | None) -> Headers:
    """A copy of the headers with what only the row's id and its columns say, for where there are no such columns, or nobody who
    reads them: transports from 7 on read the headers alone, versions 1 and 2 write a reply-to address into the column alone
    (transport reference §13.1).

    Which of both wins is as in :class:`IncomingMessage`.
    """
    copy = dict(headers)
    copy[names.MESSAGE_ID] = headers.get(names.MESSAGE_ID) or message_id
    if reply_to := reply_to or headers.get(names.REPLY_TO_ADDRESS):
        copy[names.REPLY_TO_ADDRESS] = reply_to
    if correlation_id := headers.get(names.CORRELATION_ID) or correlation_id:
        copy[names.CORRELATION_ID] = correlation_id
    return copy


def columns_of(headers: Headers) -> tuple[str | None, str | None]:
    """The columns CorrelationId and ReplyToAddress, which repeat the headers."""
    return headers.get(names.CORRELATION_ID) or None, headers.get(names.REPLY_TO_ADDRESS) or None


def new_message_id() -> str:
    """A random GUID as text, lower case with dashes: 1.x and 2.x need a GUID here, no version needs them in order."""
    # As uuid4() makes it (RFC 9562: version 4, variant 10), without the object in between, which takes longer than the rest.
    digits = os.urandom(16).hex()
    variant = "89ab"[int(digits[16], 16) & 3]
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"


def outgoing_headers(
    *,
    message_id: str,
    now: datetime,
    endpoint: str | None,
    machine: str,
    host_id: uuid.UUID,
    intent: Intent = Intent.SEND,
    enclosed_types: str | None = None,
    content_type: str | None = None,
    reply_to: str | None = None,
    incoming: IncomingMessage | None = None,
    time_to_be_received: timedelta | None = None,
    conversation_id: str | None = None,
    custom: Mapping[str, str | None] | None = None,
    trace: Mapping[str, str | None] | None = None,
) -> Headers:
    """The headers of a message that an endpoint sends, publishes or replies with, in the order of the recorded rows.

    ``now`` is aware and becomes TimeSent; ``endpoint`` is ``None`` in a process that sends as none; ``enclosed_types`` is
    the text of :func:`sqlqueue_app.messages.types.enclosed_types`; ``reply_to`` a canonical address; ``incoming`` the
    message being handled, which hands on its conversation and correlation. Without it a conversation starts:
    ``conversation_id``, or else the message's own id. ``trace`` are the headers of its trace, else that of ``incoming`` goes on,
    unless ``custom`` names another. ``custom`` headers stand first and win over ours, but for the message id. Values of ``None``
    among ours are left out. Raises :class:`WireFormatError` for a naive ``now`` and a duration that .NET could not hold.
    """
    related_to = conversation = correlation = None
    if incoming is not None:
        related_to = incoming.message_id
        conversation = incoming.conversation_id
        correlation = incoming.correlation_id or incoming.message_id
    ours: Headers = {
        names.MESSAGE_ID: message_id,
        names.MESSAGE_INTENT: intent.value or None,
        names.RELATED_TO: related_to,
        names.CONVERSATION_ID: conversation or conversation_id or message_id,
        names.CORRELATION_ID: correlation or message_id,
        names.TIME_TO_BE_RECEIVED: None if time_to_be_received is None else format_timespan(time_to_be_received),
        names.REPLY_TO_ADDRESS: reply_to,
        names.ORIGINATING_MACHINE: machine,
        names.ORIGINATING_ENDPOINT: endpoint,
        names.ORIGINATING_HOST_ID: host_id.hex,
        names.CONTENT_TYPE: content_type,
        names.ENCLOSED_MESSAGE_TYPES: enclosed_types,
        names.VERSION: VERSION,
        names.TIME_SENT: format_time(now),
    }
    own = {name: value for name, value in (custom or {}).items() if name != names.MESSAGE_ID}
    ours |= {} if names.TRACE_PARENT in own else trace or _trace_of(incoming)
    return own | {name: value for name, value in ours.items() if value is not None and name not in own}


def _trace_of(incoming: IncomingMessage | None) -> Headers:
    """The trace that a handled message belongs to, as it is passed on by who makes no spans.

    A request to begin a new trace goes along: nobody has followed it yet.
    """
    if incoming is None or not (header := incoming.headers).get(names.TRACE_PARENT):
        return {names.BAGGAGE: incoming.headers.get(names.BAGGAGE)} if incoming is not None else {}
    passed = {name: header.get(name) for name in names.TRACE_CONTEXT}
    if (header.get(names.START_NEW_TRACE) or "").lower() == "true":
        passed[names.START_NEW_TRACE] = "True"
    return passed
