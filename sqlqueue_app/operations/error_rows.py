"""What a row of an error queue says: a failure, or that a retry has succeeded."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.envelope import IncomingMessage
from sqlqueue_app.messages.errors import PoisonMessage
from sqlqueue_app.messages.failure_groups import (
    Group,
    deterministic_guid,
    groups_of,
    guid_of,
    processing_endpoint,
    unique_message_id,
)
from sqlqueue_app.messages.headers import Headers, read_headers
from sqlqueue_app.messages.times import parse_time
from sqlqueue_app.models import FailedMessage
from sqlqueue_app.tables.rows import PeekedRow

MESSAGE_CHARACTERS: Final = 1_000
NO_FAILED_QUEUE: Final = f"the header {names.FAILED_QUEUE} is missing: nothing says where the message failed, or may go again"


@dataclass(frozen=True, slots=True)
class FailureRow:
    """A failed message in an error queue. `values` are those of the columns of FailedMessage but id, state, place, counts."""

    row_version: int
    id: uuid.UUID
    failed_at: datetime
    values: Mapping[str, Any]
    groups: tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """An endpoint says that it has handled a message that was sent again.

    `is_certain`: it can be nothing else, as endpoints write it; what only looks like one is left alone where nobody waits for it.
    """

    row_version: int
    id: uuid.UUID
    is_certain: bool


def read_error_row(queue: str, row: PeekedRow, now: datetime) -> tuple[Acknowledgement | None, FailureRow]:
    """The acknowledgement that the row is, if it is one, and the failure that it is otherwise. Never raises."""
    try:
        headers, unreadable = read_headers(row.headers), ""
    except PoisonMessage as error:
        headers, unreadable = {}, str(error)
    poison = unreadable or ("" if headers.get(names.FAILED_QUEUE) else NO_FAILED_QUEUE)
    return _acknowledgement(row, headers), _failure(queue, row, headers, poison, now)


def _acknowledgement(row: PeekedRow, headers: Headers) -> Acknowledgement | None:
    if names.RETRY_SUCCESSFUL not in headers:
        return None
    unique = guid_of(headers.get(names.RETRY_UNIQUE_MESSAGE_ID))
    if unique is None:
        return None
    is_control = (headers.get(names.CONTROL_MESSAGE) or "").lower() == "true"
    is_certain = is_control and names.FAILED_QUEUE not in headers and not row.body_length
    return Acknowledgement(row.row_version, unique, is_certain)


def _failure(queue: str, row: PeekedRow, headers: Headers, poison: str, now: datetime) -> FailureRow:
    message = IncomingMessage(row.id, headers, b"", row.correlation_id, row.reply_to_address)
    failed_at = _time(headers.get(names.TIME_OF_FAILURE)) or message.time_sent or now
    groups = () if poison else groups_of(headers)
    fields = {each.classifier.field: each.id for each in groups}
    values: dict[str, Any] = {
        "queue": queue,
        "message_id": message.message_id,
        "conversation_id": message.conversation_id or "",
        "message_type": next(iter(message.message_types), ""),
        "endpoint": processing_endpoint(headers),
        "failed_q": headers.get(names.FAILED_QUEUE) or "",
        "exception_type": headers.get(names.EXCEPTION_TYPE) or "",
        "exception_message": (headers.get(names.EXCEPTION_MESSAGE) or "")[:MESSAGE_CHARACTERS],
        "poison": poison,
        "sent_at": message.time_sent,
        "size": row.body_length,
        "edit_of": guid_of(headers.get(names.EDIT_OF)),
        **{field: fields.get(field) for field in _GROUP_FIELDS},
    }
    native = str(row.id)
    unique = deterministic_guid(queue, native) if poison else unique_message_id(headers, native_id=native)
    return FailureRow(row.row_version, unique, failed_at, {name: fitting(name, each) for name, each in values.items()}, groups)


_LONGEST: Final = {each.name: each.max_length for each in FailedMessage._meta.concrete_fields}
_GROUP_FIELDS: Final = tuple(each.name for each in FailedMessage._meta.get_fields() if each.name.endswith("_group"))


def fitting(column: str, value: Any) -> Any:
    """A value as the column of FailedMessage holds it: long texts cut, without the character NUL, which PostgreSQL refuses."""
    if not isinstance(value, str):
        return value
    return without_nul(value)[: _LONGEST.get(column)]


def without_nul(text: str) -> str:
    """The text with U+FFFD in the place of NUL."""
    return text.replace("\0", "\ufffd")


def _time(text: str | None) -> datetime | None:
    try:
        return parse_time(text) if text else None
    except ValueError:
        return None
