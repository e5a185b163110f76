"""One message: its headers, columns and body, and where it is when `send()` returns."""

from __future__ import annotations

import json
import platform
import re
import uuid
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from sqlqueue_app import send, send_many
from sqlqueue_app.messages.envelope import VERSION
from sqlqueue_app.messages.errors import MessageBodyError
from tests.sending.conftest import Desk
from tests.sending.types import AsIs, Pair, Pascal, PlaceOrder
from tests.support.golden import rows as golden_rows

WIRE_TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d:\d{6} Z")
GUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def recorded_command() -> dict[str, str]:
    """The headers of the first command that a real endpoint sent, without the trace header of core 10, which we do not write."""
    found = next(row for row in golden_rows("json") if row["table"] == "Sales")
    headers = json.loads(found["headers"])
    headers.pop("NServiceBus.OpenTelemetry.StartNewTrace")
    return headers


def test_object_is_sent_with_its_type_and_members(desk: Desk) -> None:
    placed = datetime(2026, 11, 20, 14, 0, tzinfo=UTC)

    message_id = send(PlaceOrder("42", Decimal("12.3400"), placed, ["a", "ü"]))

    (headers,) = desk.headers()
    assert headers["NServiceBus.MessageId"] == message_id
    # concrete type first, with its assembly, then the registered base
    assert headers["NServiceBus.EnclosedMessageTypes"] == "Sending.PlaceOrder, Shop.Messages;Sending.Command"
    body = desk.only_row().body
    assert body == '{"order_id":"42","total":12.3400,"placed_at":"2026-11-20T14:00:00Z","lines":["a","ü"]}'.encode()


def test_type_name_is_sent_with_a_dictionary(desk: Desk) -> None:
    send("Sending.SomethingElse", {"order_id": "42", "nested": {"Ünïcode": [1, 2.5, None, True]}})

    assert desk.headers()[0]["NServiceBus.EnclosedMessageTypes"] == "Sending.SomethingElse"
    assert desk.bodies() == [{"order_id": "42", "nested": {"Ünïcode": [1, 2.5, None, True]}}]


def test_registered_type_name_is_sent_with_assembly_and_bases(desk: Desk) -> None:
    send("Sending.PlaceOrder", {"order_id": "42"})

    assert desk.headers()[0]["NServiceBus.EnclosedMessageTypes"] == "Sending.PlaceOrder, Shop.Messages;Sending.Command"


def test_type_name_alone_has_an_empty_object_as_body(desk: Desk) -> None:
    send("Sending.Ping")

    assert desk.only_row().body == b"{}"


def test_headers_are_those_of_a_real_endpoint_in_its_order(desk: Desk) -> None:
    recorded = recorded_command()
    desk.configure(SEND_AS="Web")

    message_id = send(PlaceOrder("42"))

    (headers,) = desk.headers()
    assert list(headers) == list(recorded)
    same_shape = {
        "NServiceBus.MessageId": message_id,
        "NServiceBus.CorrelationId": message_id,
        "NServiceBus.ConversationId": message_id,
        "NServiceBus.MessageIntent": "Send",
        "NServiceBus.OriginatingEndpoint": "Web",
        "NServiceBus.OriginatingMachine": platform.node(),
        "NServiceBus.ContentType": "application/json",
        "NServiceBus.Version": VERSION,
    }
    assert {name: headers[name] for name in same_shape} == same_shape
    assert GUID.fullmatch(message_id)
    assert re.fullmatch(r"[0-9a-f]{32}", headers["$.diagnostics.originating.hostid"])


def test_time_sent_is_now_in_wire_format(desk: Desk) -> None:
    before = datetime.now(UTC)
    send(PlaceOrder("42"))
    after = datetime.now(UTC)

    text = desk.headers()[0]["NServiceBus.TimeSent"]
    assert WIRE_TIME.fullmatch(text)
    sent = datetime.strptime(text, "%Y-%m-%d %H:%M:%S:%f Z").replace(tzinfo=UTC)
    assert before <= sent <= after


def test_headers_are_ascii_with_escaped_slashes(desk: Desk) -> None:
    send(PlaceOrder("42"), headers={"Grüße ☃": "a/b 🚀"})

    text = desk.only_row().headers
    assert text is not None
    assert text.isascii()
    assert "a\\/b \\ud83d\\ude80" in text
    assert desk.headers()[0]["Grüße ☃"] == "a/b 🚀"


def test_process_without_endpoint_sends_no_endpoint_and_reply_headers(desk: Desk) -> None:
    send(PlaceOrder("42"))

    (headers,) = desk.headers()
    assert "NServiceBus.OriginatingEndpoint" not in headers
    assert "NServiceBus.ReplyToAddress" not in headers
    assert headers["NServiceBus.OriginatingMachine"] == platform.node()


REPLY_TO = {"sqlite": "Web.Shop", "postgresql": '"public"."Web.Shop"'}


def test_send_as_sets_endpoint_and_reply_to(desk: Desk) -> None:
    """The endpoint's name is literal: its dot does not separate a schema."""
    desk.configure(SEND_AS="Web.Shop")

    send(PlaceOrder("42"))

    (headers,) = desk.headers()
    assert headers["NServiceBus.OriginatingEndpoint"] == "Web.Shop"
    assert headers["NServiceBus.ReplyToAddress"].startswith(REPLY_TO.get(desk.database.vendor, "Web.Shop@["))


def test_reply_to_address_names_the_schema_of_the_sending_endpoint(postgresql_desk: Desk) -> None:
    postgresql_desk.configure(SEND_AS="Web", SCHEMA_FOR_QUEUE={"Web": "web shop"})

    send(PlaceOrder("42"))

    assert postgresql_desk.headers()[0]["NServiceBus.ReplyToAddress"] == '"web shop"."Web"'


def test_columns_repeat_the_headers_for_old_readers(desk: Desk) -> None:
    """Id, correlation and reply-to, if the table has such columns (docs/internals/wire.md#rows-for-every-version)."""
    desk.configure(SEND_AS="Web")

    message_id = send(PlaceOrder("42"))

    row = desk.only_row()
    if desk.database.vendor == "postgresql":
        # the id is the primary key there, so that a message can be sent twice
        assert row.id != uuid.UUID(message_id)
        return
    assert row.id == uuid.UUID(message_id)
    assert row.correlation_id == message_id
    assert row.reply_to_address == desk.headers()[0]["NServiceBus.ReplyToAddress"]


def test_sqlite_table_gets_all_columns(sqlite_desk: Desk) -> None:
    sqlite_desk.configure(SEND_AS="Web")
    message_id = send(PlaceOrder("42"), time_to_be_received=timedelta(days=1))

    with sqlite_desk.database.connection.cursor() as cursor:
        columns = "Id, CorrelationId, ReplyToAddress, Recoverable, typeof(Expires), typeof(Body), RowVersion"
        cursor.execute(f'SELECT {columns} FROM "Sales"')
        assert cursor.fetchall() == [(message_id.replace("-", ""), message_id, "Web", 1, "text", "blob", 1)]


def test_given_message_id_is_kept(desk: Desk) -> None:
    assert send(PlaceOrder("42"), message_id="order-42") == "order-42"

    (headers,) = desk.headers()
    assert headers["NServiceBus.MessageId"] == "order-42"
    assert headers["NServiceBus.CorrelationId"] == headers["NServiceBus.ConversationId"] == "order-42"
    assert isinstance(desk.only_row().id, uuid.UUID)


def test_same_message_may_be_sent_twice(desk: Desk) -> None:
    same = str(uuid.uuid4())

    send(PlaceOrder("42"), message_id=same)
    send(PlaceOrder("42"), message_id=same)

    assert [headers["NServiceBus.MessageId"] for headers in desk.headers()] == [same, same]


def test_given_headers_come_first_and_win(desk: Desk) -> None:
    send(PlaceOrder("42"), headers={"Tenant": "a", "NServiceBus.CorrelationId": "mine", "Nothing": None})

    (headers,) = desk.headers()
    assert list(headers)[:3] == ["Tenant", "NServiceBus.CorrelationId", "Nothing"]
    assert (headers["NServiceBus.CorrelationId"], headers["Nothing"]) == ("mine", None)
    assert headers["NServiceBus.ConversationId"] == headers["NServiceBus.MessageId"]
    if desk.database.vendor == "sqlite":
        assert desk.only_row().correlation_id == "mine"


def test_message_id_header_is_the_message_id(desk: Desk) -> None:
    assert send(PlaceOrder("42"), headers={"NServiceBus.MessageId": "mine"}) == "mine"
    assert desk.headers()[0]["NServiceBus.MessageId"] == "mine"


def test_database_counts_the_time_to_be_received(desk: Desk) -> None:
    send(PlaceOrder("42"), time_to_be_received=timedelta(days=1, seconds=2, milliseconds=5))
    send(PlaceOrder("43"), time_to_be_received=timedelta(seconds=-1))
    send(PlaceOrder("44"))

    first, second, third = desk.rows()
    assert desk.headers()[0]["NServiceBus.TimeToBeReceived"] == "1.00:00:02.0050000"
    assert first.expires is not None
    assert timedelta(0) < datetime.now(UTC) + timedelta(days=1, seconds=2, milliseconds=5) - first.expires < timedelta(minutes=5)
    assert [row.expired for row in (first, second, third)] == [False, True, False]
    assert third.expires is None
    assert "NServiceBus.TimeToBeReceived" not in desk.headers()[2]


def test_long_time_to_be_received_is_limited_to_the_wire_maximum(desk: Desk) -> None:
    send(PlaceOrder("42"), time_to_be_received=timedelta(days=3650))

    expires = desk.only_row().expires
    assert expires is not None
    assert timedelta(days=24) < expires - datetime.now(UTC) < timedelta(days=25)
    assert desk.headers()[0]["NServiceBus.TimeToBeReceived"] == "3650.00:00:00"


@pytest.mark.parametrize(
    ("setting", "message", "member"),
    [
        ("as_is", PlaceOrder("42"), "order_id"),
        ("pascal_case", PlaceOrder("42"), "OrderId"),
        ("pascal", PlaceOrder("42"), "OrderId"),
        ("pascal", AsIs("42"), "order_id"),
        ("as_is", Pascal("42"), "OrderId"),
    ],
)
def test_spelling_of_members_follows_the_type_then_the_setting(
    sqlite_desk: Desk, setting: str, message: object, member: str
) -> None:
    sqlite_desk.configure(BODY_NAMES=setting)

    send(message)

    assert next(iter(sqlite_desk.bodies()[0])) == member


def test_keys_of_a_dictionary_keep_their_spelling(sqlite_desk: Desk) -> None:
    sqlite_desk.configure(BODY_NAMES="pascal")

    send("Sending.PlaceOrder", {"order_id": "42"})

    assert sqlite_desk.bodies() == [{"order_id": "42"}]


def test_named_tuple_is_a_message(sqlite_desk: Desk) -> None:
    send(Pair("a", 1))

    assert sqlite_desk.bodies() == [{"name": "a", "value": 1}]


@pytest.mark.parametrize("text", ["", "ü", "日本語", "🚀\u2028\u0000", "\\ \" ' ; -- \n"])
def test_any_text_is_stored_unchanged(desk: Desk, text: str) -> None:
    send("Sending.Text", {"text": text}, headers={"Header": text})

    assert desk.bodies() == [{"text": text}]
    assert desk.headers()[0]["Header"] == text


@pytest.mark.parametrize("megabytes", [5, 64])
def test_large_body_is_sent(desk: Desk, megabytes: int) -> None:
    """64 MiB is a realistic size; the limits of a packet and of one statement are smaller."""
    desk.configure(MAX_BODY_SIZE=None)
    text = "x" * (megabytes * 1024 * 1024)

    send("Sending.Large", {"text": text})

    body: Any = desk.only_row().body
    assert len(body) == len(text) + len('{"text":""}')


def test_send_outside_a_transaction_is_visible_at_once(desk: Desk) -> None:
    send(PlaceOrder("42"))

    desk.database.connection.close()
    assert len(desk.rows()) == 1


def test_declared_keys_of_a_typed_dict_are_members_and_others_are_data(sqlite_desk: Desk) -> None:
    price = {"unit_price": Decimal("1.50"), "not_declared": 1}
    body = {"order_id": "42", "lines": [price], "by_name": {"a_b": price}, "any_data": {"c_d": 1}}
    send("Sending.Keys", body, to="Sales")
    send_many("Sending.Keys", [body], to="Sales")

    written = {"UnitPrice": 1.5, "not_declared": 1}
    wanted = {"OrderId": "42", "Lines": [written], "ByName": {"a_b": written}, "AnyData": {"c_d": 1}}
    assert sqlite_desk.bodies() == [wanted, wanted]
    with pytest.raises(MessageBodyError, match="two members would both be written as 'OrderId'"):
        send("Sending.Keys", {"order_id": "42", "OrderId": "43"}, to="Sales")
