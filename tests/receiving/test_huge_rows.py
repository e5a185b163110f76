"""Very large or deep rows: a clear reason in the error queue, no crash, and no disproportionate size."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from sqlqueue_app.messages.envelope import IncomingMessage
from sqlqueue_app.messages.errors import MessageBodyError, PoisonMessage
from sqlqueue_app.messages.headers import read_headers
from sqlqueue_app.messages.serializers import deserialize, type_names_in
from sqlqueue_app.receiving.handlers import HandlerTable, registry
from tests.support import shapes
from tests.support.bench import Bench

MILLION = 1_000_000
DEEP = "[" * 100_000
BOMB = "<!DOCTYPE a [<!ENTITY a 'aaaaaaaaaa'>" + "".join(f"<!ENTITY a{n} '{f'&a{n - 1 if n else str()};' * 10}'>" for n in range(9))
TYPES = "NServiceBus.EnclosedMessageTypes"


@pytest.fixture(autouse=True)
def registered(handler_registry: None) -> None:
    shapes.register_handlers()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (DEEP, "nested too deeply"),
        (DEEP + "]" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        ("x" * 10 * MILLION, "are not JSON"),
        (f'{{"{"x" * MILLION}":"1","{"x" * MILLION}":"2"}}', "occurs twice"),
        (f'{{"{"x" * MILLION}":[1]}}', "is an array; expected text or null"),
    ],
    ids=["arrays", "closed arrays", "objects", "10 MB", "a long name twice", "a long name of an array"],
)
def test_unreadable_headers_are_moved_unchanged(sqlite_bench: Bench, text: str, reason: str) -> None:
    with pytest.raises(PoisonMessage, match=reason) as refused:
        read_headers(text)
    assert len(str(refused.value)) < 500
    sqlite_bench.put(text, b"{}")
    sqlite_bench.run()
    assert [row.headers for row in sqlite_bench.rows("error")] == [text]


@pytest.mark.parametrize(
    ("body", "content_type", "reason"),
    [
        (DEEP, "json", "nested too deeply"),
        ('{"by_number":' + '{"a":' * 100_000, "json", "nested too deeply"),
        (f'{{"order_id":{"9" * MILLION}}}', "json", "a number that cannot be read"),
        (f'{{"order_id":{"9" * MILLION}.0}}', "json", "order_id: expected a whole number"),
        ('{"order_id":1e999999999}', "json", "order_id: expected a whole number, got the number 1E"),
        ('{"ratio":1e999999999}', "json", "ratio: expected a number that fits a float"),
        ('{"amount":1e99999999999999999999}', "json", "a number that cannot be read|amount: expected a decimal number"),
        (f'{{"by_number":{{"{"1" * MILLION}":1}}}}', "json", "expected a whole number as key"),
        (f"{BOMB}]><a>&a8;</a>", "xml", "document type"),
        ("<a>" * 10_000 + "</a>" * 10_000, "xml", "nested too deeply"),
        (f"<Order><OrderId>{'9' * MILLION}</OrderId></Order>", "xml", "order_id: expected a whole number"),
        ("<Order><OrderId>1e999999999</OrderId></Order>", "xml", "order_id: expected a whole number"),
        (f"<Order><At>{'9' * MILLION}</At></Order>", "xml", "at: expected a date and time"),
    ],
    ids=range(13),
)
def test_unreadable_body_is_moved_with_a_short_reason(sqlite_bench: Bench, body: str, content_type: str, reason: str) -> None:
    kind = {"json": "application/json", "xml": "text/xml"}[content_type]
    with pytest.raises(MessageBodyError, match=reason):
        deserialize(body.encode(), kind, shapes.Order)
    sqlite_bench.put(json.dumps({TYPES: "Shape.Order", "NServiceBus.ContentType": kind}), body.encode())
    sqlite_bench.run()
    (headers,) = sqlite_bench.headers("error")
    assert headers["NServiceBus.ExceptionInfo.ExceptionType"].startswith("sqlqueue_app.messages.errors.MessageBodyError")
    assert len(json.dumps(headers)) < 400_000
    assert sqlite_bench.rows("error")[0].body == body.encode()


@pytest.mark.parametrize(
    "name", ["5", "[]", "{}", "null", '"\\u0000\\ud800"', '""', '",,;"', json.dumps("x" * 100_000)], ids=range(8)
)
def test_invalid_type_in_body_has_no_handler(sqlite_bench: Bench, name: str) -> None:
    body = f'{{"$type": {name}}}'.encode()
    assert isinstance(type_names_in(body, None), list)
    sqlite_bench.put("{}", body)
    sqlite_bench.run()
    (headers,) = sqlite_bench.headers("error")
    assert "no handler for message" in headers["NServiceBus.ExceptionInfo.Message"]


@pytest.mark.parametrize("more", ["", ";Shape.Dict"])
def test_huge_type_name_is_not_repeated(sqlite_bench: Bench, more: str) -> None:
    sent = {TYPES: "x" * MILLION + more, "NServiceBus.ReplyToAddress": "y" * MILLION, "Mine": "z" * MILLION}
    sqlite_bench.put(json.dumps(sent), b'{"a": 1}' if not more else b"[]")
    sqlite_bench.run()
    (row,) = sqlite_bench.rows("error")
    headers: dict[str, Any] = json.loads(row.headers or "")
    assert {name: headers[name] for name in sent} == sent
    # The name appears once more as the message type of the failure.
    assert len(row.headers or "") < 4.3 * MILLION
    assert len(headers["NServiceBus.ExceptionInfo.StackTrace"]) < 150_000


@pytest.mark.parametrize(("size", "remembered"), [(100, True), (MILLION, False)])
def test_only_texts_of_usual_length_are_cached(size: int, remembered: bool) -> None:
    table = HandlerTable(registry.all(), body_names="as_is")
    message = IncomingMessage(uuid.uuid4(), {TYPES: f"Shape.Dict;{'x' * size}"}, b"{}")
    table.calls(message)
    assert (len(table._plans) == 1) == remembered
