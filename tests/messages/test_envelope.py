"""Received rows as messages, and the headers of sent messages."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import RFC_4122, UUID

import pytest

from sqlqueue_app.messages import QueueAddress, headers as names, parse_time, read_headers
from sqlqueue_app.messages.envelope import (
    VERSION,
    IncomingMessage,
    OutgoingMessage,
    columns_of,
    new_message_id,
    outgoing_headers,
    shared_headers,
)
from sqlqueue_app.messages.errors import PoisonMessage, WireFormatError
from sqlqueue_app.messages.headers import Intent
from sqlqueue_app.messages.times import parse_timespan
from tests.support.golden import rows

ROW_ID = UUID("ABCDEF00-0000-0000-0000-000000000001")
HOST_ID = UUID("dee2068d-fe8d-92ad-5f3c-0b96e35b9d78")
NOW = datetime(2026, 11, 20, 12, 14, 22, 71189, UTC)


def incoming(headers: dict[str, str | None], **columns: str | None) -> IncomingMessage:
    return IncomingMessage(ROW_ID, headers, b"", **columns)


SHARED = {"endpoint", "machine", "host_id", "reply_to", "content_type", "enclosed_types"}


def sent(**changes: Any) -> dict[str, str | None]:
    origin = {"machine": "host-1", "host_id": HOST_ID, **{name: changes.pop(name) for name in SHARED & changes.keys()}}
    return outgoing_headers(**{"message_id": "m", "now": NOW, "shared": shared_headers(**{"endpoint": "Web"} | origin), **changes})


@pytest.mark.parametrize(
    ("header", "column", "expected"),
    [(None, None, None), ("h", None, "h"), (None, "c", "c"), ("h", "c", "h"), ("", "c", "c"), ("h", "", "h"), ("", "", None)],
)
def test_correlation_is_the_header_else_the_column(header: str | None, column: str | None, expected: str | None) -> None:
    assert incoming({names.CORRELATION_ID: header}, correlation_id=column).correlation_id == expected


@pytest.mark.parametrize(
    ("callback", "column", "header", "expected"),
    [
        (None, None, None, None),
        (None, None, "h", "h"),
        (None, "c", "h", "c"),
        (None, "", "h", "h"),
        ("q", "c", "h", "q"),
        ("", "c", "h", "c"),
    ],
)
def test_reply_goes_to_the_callback_queue_else_the_column_else_the_header(
    callback: str | None, column: str | None, header: str | None, expected: str | None
) -> None:
    headers = {names.CALLBACK_QUEUE: callback, names.REPLY_TO_ADDRESS: header}
    assert incoming(headers, reply_to=column).reply_to == expected
    assert incoming({}).reply_to is None


def test_message_id_is_the_header_else_the_row() -> None:
    assert incoming({names.MESSAGE_ID: "order-17"}).message_id == "order-17"
    without: list[dict[str, str | None]] = [{}, {names.MESSAGE_ID: ""}, {names.MESSAGE_ID: None}]
    for headers in without:
        assert incoming(headers).message_id == "abcdef00-0000-0000-0000-000000000001"


@pytest.mark.parametrize(
    ("text", "intent"),
    [
        ("Send", Intent.SEND),
        ("publish", Intent.PUBLISH),
        (" REPLY ", Intent.REPLY),
        ("3", Intent.SUBSCRIBE),
        ("4", Intent.UNSUBSCRIBE),
        ("0", Intent.UNDEFINED),
        ("9", Intent.UNDEFINED),
        ("Whatever", Intent.UNDEFINED),
        ("", Intent.UNDEFINED),
        (None, Intent.UNDEFINED),
    ],
)
def test_intent(text: str | None, intent: Intent) -> None:
    assert incoming({names.MESSAGE_INTENT: text}).intent is intent


def test_message_without_headers_has_empty_properties() -> None:
    message = incoming({})
    assert message.message_types == []
    assert (message.content_type, message.conversation_id, message.time_sent) == (None, None, None)
    assert not message.is_control_message
    assert incoming({names.TIME_SENT: "yesterday"}).time_sent is None


def test_every_recorded_row_is_a_message() -> None:
    seen = 0
    for name in ("json", "newtonsoft", "xml", "handwritten"):
        for row in rows(name):
            if row.get("headers") is None:
                continue
            try:
                headers = read_headers(row["headers"])
            except PoisonMessage:
                continue
            body = base64.b64decode(row["body_base64"] or "")
            message = IncomingMessage(UUID(row["id"]) if "id" in row else ROW_ID, headers, body)
            assert message.message_id == (headers.get(names.MESSAGE_ID) or str(message.row_id))
            assert message.reply_to == (headers.get(names.REPLY_TO_ADDRESS) or None)
            assert isinstance(message.intent, Intent)
            assert isinstance(message.time_sent, datetime | None)
            seen += 1
    assert seen > 300


# Left out on purpose: the trace header of core 10 and the instance id that metrics add.
NOT_OURS = {names.START_NEW_TRACE, names.METRIC_INSTANCE_ID}
ADDED_LATER = {names.DELIVER_AT, names.FORWARD_DESTINATION, names.PROCESSING_STARTED, names.FAILED_QUEUE, names.DELAYED_RETRIES}


def recorded_sends() -> list[dict[str, str | None]]:
    """The headers of every recorded row as its sender wrote them, without copies, retries and control messages."""
    found = []
    for row in rows("json"):
        headers = read_headers(row.get("headers"))
        fresh = names.VERSION in headers and names.MESSAGE_ID in headers and names.CONTENT_TYPE in headers
        if fresh and not ADDED_LATER & set(headers) and names.ORIGINATING_SAGA_ID not in headers:
            found.append({name: value for name, value in headers.items() if name not in NOT_OURS})
    return found


def test_headers_are_those_of_the_recorded_rows_in_their_order() -> None:
    recorded = recorded_sends()
    assert {headers[names.MESSAGE_INTENT] for headers in recorded} == {"Send", "Publish", "Reply"}
    for theirs in recorded:
        own = {name: value for name, value in theirs.items() if not name.startswith(("NServiceBus.", "$"))}
        related_to, correlation = theirs.get(names.RELATED_TO), theirs[names.CORRELATION_ID]
        cause = {
            names.MESSAGE_ID: related_to,
            names.CORRELATION_ID: correlation,
            names.CONVERSATION_ID: theirs[names.CONVERSATION_ID],
        }
        lifetime = theirs.get(names.TIME_TO_BE_RECEIVED)
        ours = outgoing_headers(
            message_id=theirs[names.MESSAGE_ID] or "",
            now=parse_time(theirs[names.TIME_SENT] or ""),
            shared=shared_headers(
                endpoint=theirs[names.ORIGINATING_ENDPOINT] or "",
                machine=theirs[names.ORIGINATING_MACHINE] or "",
                host_id=HOST_ID,
                reply_to=theirs[names.REPLY_TO_ADDRESS],
                content_type=theirs[names.CONTENT_TYPE],
                enclosed_types=theirs[names.ENCLOSED_MESSAGE_TYPES],
            ),
            intent=Intent.read(theirs[names.MESSAGE_INTENT]),
            incoming=incoming(cause) if related_to else None,
            time_to_be_received=parse_timespan(lifetime) if lifetime else None,
            conversation_id=theirs[names.CONVERSATION_ID],
            custom=own,
        )
        assert list(ours.items()) == list((theirs | {names.VERSION: VERSION}).items())


def test_first_message_starts_a_conversation() -> None:
    headers = sent()
    assert headers == {
        names.MESSAGE_ID: "m",
        names.MESSAGE_INTENT: "Send",
        names.CONVERSATION_ID: "m",
        names.CORRELATION_ID: "m",
        names.ORIGINATING_MACHINE: "host-1",
        names.ORIGINATING_ENDPOINT: "Web",
        names.ORIGINATING_HOST_ID: "dee2068dfe8d92ad5f3c0b96e35b9d78",
        names.VERSION: VERSION,
        names.TIME_SENT: "2026-11-20 12:14:22:071189 Z",
    }
    assert sent(conversation_id="c")[names.CONVERSATION_ID] == "c"
    assert names.ORIGINATING_ENDPOINT not in sent(endpoint=None)


def test_message_in_a_handler_belongs_to_the_one_handled() -> None:
    handled = incoming({names.MESSAGE_ID: "a", names.CORRELATION_ID: "b", names.CONVERSATION_ID: "c"})
    headers = sent(incoming=handled, conversation_id="other")
    assert (headers[names.RELATED_TO], headers[names.CORRELATION_ID], headers[names.CONVERSATION_ID]) == ("a", "b", "c")
    bare = sent(incoming=incoming({}), conversation_id="other")
    row_id = str(ROW_ID)
    assert (bare[names.RELATED_TO], bare[names.CORRELATION_ID], bare[names.CONVERSATION_ID]) == (row_id, row_id, "other")
    assert sent(incoming=incoming({}, correlation_id="column"))[names.CORRELATION_ID] == "column"


def test_custom_headers_come_first_and_win() -> None:
    headers = sent(custom={"Tenant": "north", names.CORRELATION_ID: "mine", names.MESSAGE_ID: "not this", "none": None})
    assert list(headers)[:4] == ["Tenant", names.CORRELATION_ID, "none", names.MESSAGE_ID]
    assert (headers[names.CORRELATION_ID], headers[names.MESSAGE_ID], headers["none"]) == ("mine", "m", None)


def test_control_message_has_no_intent_and_no_type() -> None:
    headers = sent(intent=Intent.UNDEFINED, custom={names.CONTROL_MESSAGE: "True"})
    assert names.MESSAGE_INTENT not in headers
    assert names.ENCLOSED_MESSAGE_TYPES not in headers
    assert incoming(headers).is_control_message


def test_bad_times_are_refused() -> None:
    with pytest.raises(WireFormatError, match="has no time zone"):
        sent(now=datetime(2026, 1, 1))  # noqa: DTZ001
    with pytest.raises(WireFormatError, match=r"longer than \.NET can hold"):
        sent(time_to_be_received=timedelta.max)


def test_outgoing_message_takes_its_columns_from_the_headers() -> None:
    message = OutgoingMessage(QueueAddress("Sales"), sent(reply_to="Web@[dbo]@[nsb]"), b"{}", timedelta(seconds=20))
    assert (message.message_id, *columns_of(message.headers)) == ("m", "m", "Web@[dbo]@[nsb]")
    copy = OutgoingMessage(QueueAddress("error"), {}, b"")
    assert (copy.message_id, *columns_of(copy.headers)) == (None, None, None)


def test_new_ids_are_guids_and_differ() -> None:
    ids = {new_message_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(str(UUID(text)) == text for text in ids)
    assert {(UUID(text).version, UUID(text).variant) for text in ids} == {(4, RFC_4122)}


def test_version_makes_core_5_match_replies() -> None:
    major, minor, patch = map(int, VERSION.split("."))
    assert (major, minor, patch) >= (5, 0, 0)
