"""Serializers through the public interface: how settings and content type choose the format, for sending and receiving."""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest

from sqlqueue_app import handles, message_type, send, send_many
from tests.support.bench import Bench, Calls


@message_type("Serialized.Base")
@dataclass
class Base:
    order_id: str


@message_type("Serialized.Priced", names="pascal_case")
@dataclass
class Priced(Base):
    total: Decimal


XML = "text/xml"
BODY = b"<Priced xmlns='http://tempuri.net/Serialized'><OrderId>1</OrderId><Total>9.90</Total></Priced>"


def written(bench: Bench, queue: str = "Sales") -> list[tuple[str, bytes]]:
    """Content type and body of each waiting message."""
    return [(json.loads(row.headers or "{}")["NServiceBus.ContentType"], row.body or b"") for row in bench.rows(queue)]


def put(bench: Bench, body: bytes, **headers: str | None) -> None:
    bench.put(json.dumps({f"NServiceBus.{name}": value for name, value in headers.items() if value is not None}), body)


def handler_of(calls: Calls, kind: Any = Priced) -> None:
    @handles(kind)
    def handler(message: Any, context: Any) -> None:
        calls.add(message)


@pytest.mark.parametrize("many", [False, True])
def test_setting_chooses_the_format_of_sent_bodies(bench: Bench, calls: Calls, many: bool) -> None:
    handler_of(calls)
    bench.configure(routes={"Serialized.*": "Sales"})
    bench.database.configure(SERIALIZER="xml")
    message = Priced("1", Decimal("9.90"))
    if many:
        send_many([message])
    else:
        send(message)

    ((content_type, body),) = written(bench)
    assert content_type == XML
    assert body.decode() == (
        '<?xml version="1.0"?><Priced xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" '
        'xmlns:xsd="http://www.w3.org/2001/XMLSchema" xmlns:baseType="Serialized.Base" xmlns="http://tempuri.net/Serialized">'
        "<OrderId>1</OrderId><Total>9.90</Total></Priced>"
    )
    bench.run()
    assert calls.seen == [message]


def test_header_chooses_the_format_of_one_message(bench: Bench, calls: Calls) -> None:
    handler_of(calls)
    bench.configure(routes={"Serialized.*": "Sales"})
    send(Priced("1", Decimal(2)), headers={"NServiceBus.ContentType": XML})
    send(Priced("2", Decimal(2)))

    assert [(kind, body[:1]) for kind, body in written(bench)] == [(XML, b"<"), ("application/json", b"{")]
    bench.run()
    assert [message.order_id for message in calls.seen] == ["1", "2"]


@pytest.mark.parametrize(
    ("serializer", "content_type", "body"),
    [
        ("json", "text/xml; charset=utf-8", BODY),
        ("json", "Application/XML", BODY),
        ("xml", None, BODY),
        ("xml", "application/octet-stream", BODY),
        ("xml", "application/json", b'{"OrderId": "1", "Total": 9.90}'),
        ("json", "application/octet-stream", b'{"orderId": "1", "total": "9.90"}'),
    ],
)
def test_content_type_chooses_how_a_body_is_read(
    bench: Bench, calls: Calls, serializer: str, content_type: str | None, body: bytes
) -> None:
    handler_of(calls)
    bench.database.configure(SERIALIZER=serializer)
    put(bench, body, EnclosedMessageTypes="Serialized.Priced", ContentType=content_type)
    bench.run()

    assert calls.seen == [Priced("1", Decimal("9.90"))]


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        (XML, BODY),
        (XML, b"<Serialized.Priced><OrderId>1</OrderId><Total>9.90</Total></Serialized.Priced>"),
        (XML, BODY.replace(b"<Priced ", b"<Derived xmlns:baseType='Serialized.Priced' ").replace(b"/Priced", b"/Derived")),
        (None, b'{"$type": "Serialized.Priced, Shop.Messages", "OrderId": "1", "Total": 9.90}'),
    ],
)
def test_type_is_read_from_the_body_if_headers_have_none(bench: Bench, calls: Calls, content_type: str | None, body: bytes) -> None:
    handler_of(calls)
    put(bench, body, ContentType=content_type)
    bench.run()

    assert calls.seen == [Priced("1", Decimal("9.90"))]


@pytest.mark.parametrize("enclosed", [";", "Serialized.IPriced__impl, Dynamic"])
@pytest.mark.parametrize(("content_type", "body"), [("text/json", '{"$type": "TYPE, Shop.Messages"}'), (XML, "<TYPE></TYPE>")])
def test_type_is_read_from_each_body_if_the_header_names_none(
    bench: Bench, calls: Calls, enclosed: str, content_type: str, body: str
) -> None:
    headers = json.dumps({"NServiceBus.EnclosedMessageTypes": enclosed, "NServiceBus.ContentType": content_type})
    names = ["Serialized.One", "Serialized.Two"]
    for number, name in enumerate(names):
        handles(name)(lambda message, context, name=name: calls.add(name))
        bench.put(headers, body.replace("TYPE", name).encode(), row_id=f"00000000-0000-0000-0000-{number:012}")
    bench.run()

    assert sorted(calls.seen) == names


def test_misfitting_body_is_in_error_queue_with_the_position(bench: Bench, calls: Calls) -> None:
    handler_of(calls)
    body = BODY.replace(b"9.90", b"much")
    put(bench, body, EnclosedMessageTypes="Serialized.Priced", ContentType=XML)
    bench.run()

    (row,) = bench.rows("error")
    headers = json.loads(row.headers or "{}")
    assert (calls.seen, row.body) == ([], body)
    assert "total: expected a decimal number, got 'much'" in headers["NServiceBus.ExceptionInfo.Message"]
