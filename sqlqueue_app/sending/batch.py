"""Many messages at once: what those of one type have in common is composed once, which leaves an id and a body for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.envelope import IncomingMessage, OutgoingMessage, new_message_id
from sqlqueue_app.messages.errors import ConfigurationError, SqlQueueError
from sqlqueue_app.messages.headers import read_headers
from sqlqueue_app.sending.composer import Composer
from sqlqueue_app.sending.dispatcher import new_row
from sqlqueue_app.tables.rows import NewRow

# An iterable may be slow: so many messages of one type at most are stamped with the same time sent.
MESSAGES_PER_TEMPLATE = 500


@dataclass(frozen=True, slots=True)
class _Template:
    """A composed message with a mark in the place of its id; a correlation id of None is the message's own."""

    destination: QueueAddress
    headers: tuple[str, ...]
    body_of: Callable[[object], bytes]
    correlation_id: str | None
    reply_to_address: str | None
    time_to_be_received_ms: int | None
    delay_ms: int | None
    due: datetime | None

    def row(self, payload: object) -> NewRow:
        """The row of one message. Its id is the message id on every database: it is new, so no table can have it yet."""
        message_id = new_message_id()
        return NewRow(
            message_id,
            message_id.join(self.headers),
            self.body_of(payload),
            self.correlation_id or message_id,
            self.reply_to_address,
            self.time_to_be_received_ms,
            self.delay_ms,
            self.due,
        )


def compose_rows(
    composer: Composer,
    messages: Iterable[tuple[object, object]],
    *,
    what: str = "messages",
    to: str | None = None,
    headers: Mapping[str, str | None] | None = None,
    time_to_be_received: timedelta | None = None,
    delay: timedelta | None = None,
    deliver_at: datetime | None = None,
    incoming: IncomingMessage | None = None,
) -> Iterator[tuple[QueueAddress, NewRow]]:
    """Each message, given as to `Composer.compose`, as a row with its queue; composed when it is asked for.

    Up to MESSAGES_PER_TEMPLATE messages of one type have the same time sent. Raises as `compose`, the message's place in `what`
    before the text, and ConfigurationError for headers with a message id; for the delay as `Composer.check_delay`, at once.
    """
    composer.check_delay(delay, deliver_at, time_to_be_received)
    if names.MESSAGE_ID in (headers or {}):
        raise ConfigurationError(
            f"headers= of send_many() names {names.MESSAGE_ID!r}, which would give every message the same id; "
            "leave it out, or call send() with message_id= for each"
        )
    envelope = partial(
        composer.envelope, to=to, headers=headers, time_to_be_received=time_to_be_received, incoming=incoming, for_many=True
    )

    def template_of(message: object) -> _Template:
        mark = new_message_id()
        destination, content = envelope(message, message_id=mark)
        composed = OutgoingMessage(destination, content, b"", time_to_be_received, delay, deliver_at)
        row = composer.delayed_row(composed) if composed.is_delayed else new_row(composed, keep_id=True)
        return _template(destination, row, mark, composer.body_writer(message, content))

    templates: dict[object, _Template] = {}
    for place, (message, body) in enumerate(messages):
        try:
            payload = composer.payload(message, body)
            kind = message if isinstance(message, str) else type(message)
            if place % MESSAGES_PER_TEMPLATE == 0:
                templates.clear()
            if (template := templates.get(kind)) is None:
                template = templates[kind] = template_of(message)
            row = template.row(payload)
        except SqlQueueError as error:
            raise type(error)(f"{what}[{place}]: {error}") from error
        except Exception as error:
            error.add_note(f"while {what}[{place}] of send_many() was composed")
            raise
        yield template.destination, row


def _template(destination: QueueAddress, row: NewRow, mark: str, body_of: Callable[[object], bytes]) -> _Template:
    return _Template(
        destination,
        tuple(row.headers.split(mark)),
        body_of,
        None if row.correlation_id == mark else row.correlation_id,
        row.reply_to_address,
        row.time_to_be_received_ms,
        row.delay_ms,
        row.due,
    )


def outgoing_of(destination: QueueAddress, row: NewRow) -> OutgoingMessage:
    """A composed row as the message that it came from, for handlers whose messages are collected."""
    headers = read_headers(row.headers)
    lifetime, delay = _duration(row.time_to_be_received_ms), _duration(row.delay_ms)
    return OutgoingMessage(destination, headers, row.body, lifetime, delay, row.due)


def _duration(milliseconds: int | None) -> timedelta | None:
    return None if milliseconds is None else timedelta(milliseconds=milliseconds)
