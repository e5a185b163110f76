"""Arbitrary arguments of a caller: no written row is one that a real endpoint refuses or is blocked by.

See docs/internals/wire.md#rows-written-by-hand.
"""

from __future__ import annotations

import enum
import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

from hypothesis import given, strategies as st

from sqlqueue_app import message_type
from sqlqueue_app.conf import Settings
from sqlqueue_app.messages.addresses import AddressBook
from sqlqueue_app.messages.errors import SqlQueueError
from sqlqueue_app.messages.serializers import deserialize
from sqlqueue_app.sending.composer import Composer, SendOptions, new_row, sender_identity

BOOK = AddressBook("postgresql")
NOW = datetime(2026, 11, 21, tzinfo=UTC)
TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d:\d{6} Z")
TIMESPAN = re.compile(r"-?(\d+\.)?\d\d:\d\d:\d\d(\.\d{7})?")


class Status(enum.IntEnum):
    Open = 0
    OnHold = 7


@message_type("Refused.Everything", names="pascal")
@dataclass
class Everything:
    order_id: UUID
    placed_at: datetime
    patience: timedelta
    status: Status
    total: Decimal
    anything: Any


def composer(serializer: str) -> Composer:
    settings = Settings(send_as="Web", serializer=serializer)  # type: ignore[arg-type]
    return Composer(settings, BOOK, sender_identity("Web", BOOK), now=lambda: NOW)


texts = st.text(max_size=20)
scalars = [st.none(), st.booleans(), st.integers(), st.floats(), texts, st.decimals(), st.uuids(), st.binary()]
values = st.recursive(
    st.one_of(*scalars, st.datetimes(), st.timedeltas()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
KNOWN = ["TimeSent", "DeliverAt", "TimeToBeReceived", "EnclosedMessageTypes", "MessageId", "ContentType", "MessageIntent"]
header_names = texts | st.sampled_from(["__type", *(f"NServiceBus.{name}" for name in KNOWN)])
times = st.sampled_from(["2026-11-20 10:11:12:123456 Z", "2026-11-20T10:11:12Z", "00:00:05", "5", "text/xml", "A.B, C", " ; "])
headers = st.dictionaries(header_names, st.none() | texts | times, max_size=4)
typed = st.builds(
    Everything,
    order_id=st.uuids(),
    placed_at=st.datetimes(timezones=st.sampled_from([None, UTC, timezone(timedelta(hours=2, seconds=1))])),
    patience=st.timedeltas(),
    status=st.sampled_from(Status),
    total=st.decimals(allow_nan=False, allow_infinity=False, places=4),
    anything=values,
)


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    assert len(found) == len(pairs), "a header comes twice"
    return found


def check_row(written: str, body: bytes) -> dict[str, Any]:
    """Check everything that would stop a real endpoint; returns the headers."""
    assert written.isascii()
    read = json.loads(written, object_pairs_hook=unique)
    assert isinstance(read, dict)
    assert all(isinstance(value, str) or value is None for value in read.values())
    # transports up to 9.0 take it for the type of the dictionary
    assert "__type" not in read
    # a lone surrogate would be poison for 9.1
    assert all(text.encode("utf-8") is not None for pair in read.items() for text in pair if text is not None)
    assert read["NServiceBus.MessageId"]
    assert read["NServiceBus.EnclosedMessageTypes"].strip("; ")
    for name in ("NServiceBus.TimeSent", "NServiceBus.DeliverAt"):
        assert name not in read or TIME.fullmatch(read[name])
    assert TIMESPAN.fullmatch(read.get("NServiceBus.TimeToBeReceived", "00:00:00"))
    assert isinstance(body, bytes)
    assert body
    assert body != b"null"
    assert not body.startswith((b"\xff\xfe", b"\xfe\xff"))
    return read


durations = st.none() | st.timedeltas()
options = st.fixed_dictionaries(
    {"headers": headers},
    optional={"message_id": texts, "time_to_be_received": durations, "delay": durations},
)


@given(values, options, st.sampled_from(["json", "xml"]))
def test_any_dictionary_headers_ids_and_times_give_a_valid_row(value: Any, given: dict[str, Any], serializer: str) -> None:
    try:
        message = composer(serializer).compose("Refused.Thing", {"value": value}, SendOptions(to="Sales", **given))
        row = composer(serializer).delayed_row(message) if message.is_delayed else new_row(message, keep_id=True)
    except SqlQueueError:
        return  # a clear error, and nothing is written
    read = check_row(row.headers, row.body)
    # read by its content type, with the rule of an endpoint with the same default
    assert isinstance(deserialize(row.body, read["NServiceBus.ContentType"], default=serializer), dict)
    if not row.body.startswith(b"<"):
        assert isinstance(json.loads(row.body), dict)


@given(typed)
def test_any_typed_message_gives_a_valid_row(message: Everything) -> None:
    try:
        row = new_row(composer("json").compose(message, options=SendOptions(to="Sales")), keep_id=True)
    except SqlQueueError:
        return
    check_row(row.headers, row.body)
    body = json.loads(row.body, parse_float=Decimal)
    assert list(body) == ["OrderId", "PlacedAt", "Patience", "Status", "Total", "Anything"]
    assert body["OrderId"] == str(message.order_id)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?", body["PlacedAt"])
    assert TIMESPAN.fullmatch(body["Patience"])
    assert (type(body["Status"]), body["Status"]) == (int, message.status.value)
    assert body["Total"] == message.total
