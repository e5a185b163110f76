"""Convert rows of a DataFrame to rows of a staging table: checked one by one, sent all together or not at all."""

from __future__ import annotations

import math
import platform
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.types import BinaryType, MapType, NumericType, StringType, StructType

from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.envelope import columns_of, new_message_id, outgoing_headers, shared_headers
from sqlqueue_app.messages.errors import ConfigurationError, MessageBodyError, SqlQueueError, WireFormatError
from sqlqueue_app.messages.headers import check_custom_headers, write_headers
from sqlqueue_app.messages.serializers import JSON_CONTENT_TYPE, deserialize, media_type
from sqlqueue_app.messages.times import check_delay, delay_milliseconds, deliver_at_header
from sqlqueue_app.messages.types import resolve_enclosed

COLUMNS = ("position", "id", "correlation_id", "reply_to_address", "headers", "body", "time_to_be_received_ms", "delay_ms")
_ROWS = 1_000
_BYTES = 4 * 1024 * 1024
_TEXT = (StringType,)
_KINDS: Mapping[str, tuple[type, ...]] = {
    "type": _TEXT,
    "body": (StringType, BinaryType),
    "id": _TEXT,
    "content_type": _TEXT,
    "headers": (MapType,),
    "delay": (NumericType,),
    "time_to_be_received": (NumericType,),
}
# The databases store lifetimes as 32-bit milliseconds.
_MAX_LIFETIME_MS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Sending:
    """Defaults of a write: message type, sending endpoint, and whether a table of delayed messages is given."""

    message_type: str | None
    send_as: str | None
    can_delay: bool


def check_columns(schema: StructType, sending: Sending) -> None:
    """Raise ConfigurationError unless the DataFrame has the columns of messages."""
    for field in schema.fields:
        kinds = _KINDS.get(field.name.lower())
        if kinds is None:
            raise ConfigurationError(f"the DataFrame has the column {field.name!r}: messages have {', '.join(_KINDS)}")
        if not isinstance(field.dataType, kinds):
            expected = " or ".join(kind.__name__.removesuffix("Type").lower() for kind in kinds)
            raise ConfigurationError(f"the column {field.name} is {field.dataType.simpleString()}: expected {expected}")
    given = [field.name.lower() for field in schema.fields]
    if "body" not in given:
        raise ConfigurationError("the DataFrame has no column body: expected the text or bytes of each message")
    if "type" not in given and sending.message_type is None:
        raise ConfigurationError("the DataFrame has no column type: name the message type of all rows with the option message_type")
    if "delay" in given and not sending.can_delay:
        raise ConfigurationError(
            "the DataFrame has the column delay: name the table of delayed messages with the option delayed, such as Sales.Delayed"
        )


def staged_rows(rows: Iterable[Mapping[str, Any]], sending: Sending, destination: QueueAddress) -> Iterator[dict[str, Any]]:
    """Convert rows to staging rows, numbered from 1. WireFormatError names the row and the invalid value."""
    host_id = uuid.uuid5(uuid.NAMESPACE_DNS, f"sqlqueue.{platform.node() or 'unknown'}")
    for position, row in enumerate(rows, 1):
        try:
            yield {"position": position, **_staged(row, sending, destination, host_id)}
        except SqlQueueError as error:
            named = row.get("id")
            what = f"the message {named!r}" if named else f"row {position} of a partition"
            raise WireFormatError(f"{what} cannot be sent, so nothing was sent: {error}") from None


def _staged(row: Mapping[str, Any], sending: Sending, destination: QueueAddress, host_id: uuid.UUID) -> dict[str, Any]:
    # Arrow returns a map as pairs
    custom = dict(row.get("headers") or ())
    check_custom_headers(custom)
    message_id = _message_id(row.get("id"))
    lifetime, delay = _seconds(row, "time_to_be_received"), _seconds(row, "delay")
    check_delay(delay, None, lifetime)
    content_type = row.get("content_type") or custom.get(names.CONTENT_TYPE) or JSON_CONTENT_TYPE
    now = datetime.now(UTC)
    headers = outgoing_headers(
        message_id=message_id,
        now=now,
        shared=shared_headers(
            endpoint=sending.send_as,
            machine=platform.node() or "unknown",
            host_id=host_id,
            content_type=content_type,
            enclosed_types=_type(row.get("type"), sending),
        ),
        time_to_be_received=lifetime,
        custom=custom,
    )
    if delay is not None:
        headers[names.DELIVER_AT] = deliver_at_header(delay, None, now)
        headers[names.FORWARD_DESTINATION] = destination.full(destination.schema, destination.catalog)
    correlation_id, reply_to = columns_of(headers)
    return {
        "id": message_id,
        "correlation_id": correlation_id,
        "reply_to_address": reply_to,
        "headers": write_headers(headers),
        "body": _body(row.get("body"), content_type),
        "time_to_be_received_ms": None if lifetime is None else min(int(lifetime.total_seconds() * 1000), _MAX_LIFETIME_MS),
        "delay_ms": None if delay is None else delay_milliseconds(delay),
    }


def _message_id(value: Any) -> str:
    if value is None:
        return new_message_id()
    text = str(value)
    if not text.strip():
        raise WireFormatError(f"id is {text!r}: expected text, or NULL for a new id")
    return text


def _type(value: Any, sending: Sending) -> str:
    text = value if value is not None else sending.message_type
    if not text or not resolve_enclosed(text):
        raise WireFormatError(f"type is {text!r}: expected the full name of a message type, such as 'Sales.PlaceOrder'")
    return str(text)


def _seconds(row: Mapping[str, Any], name: str) -> timedelta | None:
    value = row.get(name)
    if value is None:
        return None
    seconds = float(value)
    try:
        if not math.isfinite(seconds) or seconds < 0:
            raise OverflowError
        return timedelta(seconds=seconds)
    except OverflowError:
        raise WireFormatError(f"{name} is {value!r}: expected seconds, 0 or more") from None


def _body(value: Any, content_type: str) -> bytes:
    if value is None:
        raise WireFormatError("body is NULL: expected text or bytes")
    body = value.encode("utf-8") if isinstance(value, str) else bytes(value)
    if media_type(content_type) == JSON_CONTENT_TYPE:
        try:
            # As a receiver reads it: json.loads() also takes NaN and UTF-16.
            deserialize(body, content_type, Any)
        except MessageBodyError as error:
            raise WireFormatError(f"body is not JSON ({error}): {body[:80]!r}; or set content_type") from None
    return body


def chunks(rows: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Split rows into chunks of at most 1,000 rows and 4 MiB; a larger row is a chunk of its own."""
    chunk: list[dict[str, Any]] = []
    held = 0
    for row in rows:
        size = len(row["body"]) + len(row["headers"])
        if chunk and (len(chunk) >= _ROWS or held + size > _BYTES):
            yield chunk
            chunk, held = [], 0
        chunk.append(row)
        held += size
    if chunk:
        yield chunk


def question_marks(sql: str) -> str:
    """Replace `%s` by the placeholders of SQLite and SQL Server."""
    # In one pass: a name such as "50%sales" is in the text as "50%%sales".
    return re.sub(r"%s|%%", lambda mark: "?" if mark[0] == "%s" else "%", sql)
