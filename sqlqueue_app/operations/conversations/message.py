"""One message of a conversation as a plain value, wherever it was found: what diagrams and lists are made of."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final
from uuid import UUID

from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.envelope import Intent
from sqlqueue_app.messages.message_times import message_times
from sqlqueue_app.messages.types import resolve_enclosed

_LAST: Final = datetime.max.replace(tzinfo=UTC)


class Kind(enum.StrEnum):
    """What a message is in the diagrams (operations reference 3.7)."""

    COMMAND = "command"
    EVENT = "event"
    TIMEOUT = "timeout"


class Fate(enum.StrEnum):
    """What has become of a message."""

    HANDLED = "handled"
    FAILED = "failed"
    ARCHIVED = "archived"
    RETRIED = "retried"
    WAITING = "waiting"
    DELAYED = "delayed"
    GONE = "gone"

    @property
    def is_in_queue(self) -> bool:
        """Whether nobody has received it yet."""
        return self in (Fate.WAITING, Fate.DELAYED)


@dataclass(frozen=True, slots=True)
class TalkMessage:
    """A message of a conversation. `key` tells it from all others of it, also from its own copies.

    `related_to` is the id of the message that was being handled when it was sent; empty for the first one, and where it is not
    known. `sending` and `receiving` are endpoints, empty where nothing says them. `queue` and `row_version` say where it lies,
    `failure` is its id in the index of failures; either may be missing. `started` and `ended` are of its processing, or failure.
    `delayed` tells a delayed message from the others of its table, which `queue` names then. `lake` is the table of the lake
    in which it was found, on this `day`, and `queue` then the one that it was taken or copied from.
    """

    key: str
    message_id: str
    related_to: str = ""
    message_type: str = ""
    kind: Kind = Kind.COMMAND
    fate: Fate = Fate.HANDLED
    sending: str = ""
    receiving: str = ""
    sent: datetime | None = None
    started: datetime | None = None
    ended: datetime | None = None
    processing: timedelta | None = None
    critical: timedelta | None = None
    queue: str = ""
    row_version: int | None = None
    failure: UUID | None = None
    delayed: str = ""
    lake: str = ""
    day: date | None = None

    @property
    def order(self) -> tuple[datetime, datetime, str]:
        """By when it was processed, which what waits has before it; then by when it was sent."""
        return self.ended or _LAST, self.sent or _LAST, self.key

    @property
    def short_type(self) -> str:
        """The type without its namespace."""
        name, bracket, arguments = self.message_type.partition("[")
        return (name.rpartition(".")[2].rpartition("+")[2] or name) + bracket + arguments


def talk_message(headers: Mapping[str, str | None], key: str, *, native_id: str, receiving: str, fate: Fate) -> TalkMessage:
    """What the headers of a message say of it; `native_id` stands in for a missing message id. Never raises."""
    times = message_times(headers)
    types = resolve_enclosed(headers.get(names.ENCLOSED_MESSAGE_TYPES))
    is_over = not fate.is_in_queue
    return TalkMessage(
        key=key,
        message_id=headers.get(names.MESSAGE_ID) or native_id,
        related_to=headers.get(names.RELATED_TO) or "",
        message_type=types[0] if types else "",
        kind=kind_of(headers),
        fate=fate,
        sending=headers.get(names.ORIGINATING_ENDPOINT) or "",
        receiving=receiving,
        sent=times.sent,
        started=times.started if is_over else None,
        ended=times.ended if is_over else None,
        processing=times.processing if is_over else None,
        critical=times.critical if is_over else None,
    )


def kind_of(headers: Mapping[str, str | None]) -> Kind:
    """What is published is an event, what a saga has sent to itself a timeout, all else a command."""
    if Intent.read(headers.get(names.MESSAGE_INTENT)) is Intent.PUBLISH:
        return Kind.EVENT
    return Kind.TIMEOUT if (headers.get(names.IS_SAGA_TIMEOUT_MESSAGE) or "").lower() == "true" else Kind.COMMAND
