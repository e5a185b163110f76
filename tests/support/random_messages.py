"""Malformed messages, such as those seen in audit and error queues and worse; reproducible by seed."""

from __future__ import annotations

import json
import random
import uuid
from datetime import UTC, datetime, timedelta

from sqlqueue_app.messages.headers import write_headers
from sqlqueue_app.messages.times import format_time
from tests.support.spark_reference import Row

TAKEN_AT = datetime(2026, 11, 22, 12, 0, 0, 250_000, tzinfo=UTC)

UNREADABLE = (
    "{",
    "null",
    '"text"',
    '[{"NServiceBus.MessageId":"in an array"}]',
    '{"NServiceBus.MessageId":"cut',
    '{"NServiceBus.MessageId":"a"} and more',
    '\ufeff{"NServiceBus.MessageId":"byte order mark"}',
    '{"NServiceBus.MessageId":"a\nraw line"}',
    "{'NServiceBus.MessageId':'single'}",
    "<headers/>",
    " ",
)
NOTHING = (None, "", "{}", "[]", " [ ] ", " { }\n")
TYPES = (
    "Shop.PlaceOrder, Shop, Version=1.0.0.0, Culture=neutral, PublicKeyToken=null",
    "Shop.OrderPlaced;Shop.IEvent, Shop",
    "Shop.Messages+Nested, Shop",
    "Shop.Envelope`1[[Shop.Order, Shop, Version=1.0.0.0]], Core",
    "Shop.Pair`2[[Shop.A, Shop],[Shop.B`1[[System.Int32[,], mscorlib]], Shop]], Core;Shop.Base",
    "Shop.IOrder__impl, Proxies;Shop.IOrder, Shop",
    " Shop.Spaced , Shop",
    ";Shop.Second",
    "",
    "é.Überfall, Шоп",
)
TIMES = (
    "2026-11-22 11:59:59:999999 Z",
    "2026/11/22T11.30.00,000001+1",
    "9999-12-31 23:59:59:999999 Z",
    "0001-01-01 00:00:00:000000 Z",
    "0000-01-01 00:00:00:000000 Z",
    "2026-02-30 00:00:00:000000 Z",
    "2026-11-22 24:00:00:000000 Z",
    "2026-11-22 11:59:60:000000 Z",
    "2026-11-22 11:30:00:12345  Z",
    "-026-11-22 11:30:00:123456 Z",
    "+026-11-22 11:30:00:123456 Z",
    "2026-11-22T11:30:00Z",
    "٢٠٢٦-11-22 11:30:00:123456 Z",
    "2026-11-22 11:30:00:123456\U0001f40c😀",
    "soon",
    "",
)


def random_rows(seed: int, count: int, *, failed: bool = False) -> list[Row]:
    """Rows of an audit queue or, if `failed`, of an error queue."""
    chance = random.Random(seed)
    return [_row(chance, number, failed=failed) for number in range(1, count + 1)]


def _row(chance: random.Random, number: int, *, failed: bool) -> Row:
    native_id = str(uuid.UUID(int=chance.getrandbits(128)))
    body = chance.choice([None, b"", b"{}", bytes(chance.randrange(2_000)), b"\xff\x00"])
    expires = chance.choice([None, None, TAKEN_AT, TAKEN_AT - timedelta(days=3), TAKEN_AT + timedelta(seconds=1)])
    return Row(number, native_id, _text(chance, failed=failed), body, expires)


def _text(chance: random.Random, *, failed: bool) -> str | None:
    kind = chance.randrange(20)
    if kind == 0:
        return chance.choice(UNREADABLE)
    if kind == 1:
        return chance.choice(NOTHING)
    headers = {**_headers(chance), **(_failure(chance) if failed else {})}
    text = write_headers(headers)
    if kind == 2:
        return json.dumps(headers, ensure_ascii=False, indent=chance.choice([None, 1]))
    if kind == 3:  # the same name twice
        return f'{text[:-1]},"NServiceBus.ProcessingEndpoint":"Twice"}}'
    if kind == 4:  # a value that is not a string
        return f'{text[:-1]},"NServiceBus.Retries":{chance.choice(["7", "null", "true"])},"Other":{{}}}}'
    if kind == 5:
        return write_headers({**headers, "Huge": "x" * chance.choice([10_000, 100_000])})
    return text


def _headers(chance: random.Random) -> dict[str, str | None]:
    started = TAKEN_AT - timedelta(seconds=chance.choice([60, 3_600, 90_000]) * chance.random())
    whole: dict[str, str | None] = {
        "NServiceBus.MessageId": chance.choice([str(uuid.UUID(int=chance.getrandbits(128))), "same", ""]),
        "NServiceBus.ConversationId": str(uuid.UUID(int=chance.randrange(50))),
        "NServiceBus.CorrelationId": None,
        "NServiceBus.RelatedTo": chance.choice(["", "r-1"]),
        "NServiceBus.MessageIntent": chance.choice(["Send", "Publish", "Reply"]),
        "NServiceBus.EnclosedMessageTypes": chance.choice(TYPES),
        "NServiceBus.OriginatingEndpoint": chance.choice(["Web", "Sales", "sales", 'Quoted "Web" \\ 1']),
        "NServiceBus.OriginatingMachine": "mill",
        "NServiceBus.ProcessingEndpoint": chance.choice(["Sales", "Billing"]),
        "NServiceBus.ProcessingMachine": chance.choice(["m1", "m2"]),
        "NServiceBus.ReplyToAddress": chance.choice(["Web@[dbo]@[shop]", "Web"]),
        "$.diagnostics.hostid": chance.choice(["0a0b0c0d0e0f00010203040506070809", "no id"]),
        "$.diagnostics.hostdisplayname": chance.choice(["mill", "mühle\n2"]),
        "NServiceBus.TimeSent": format_time(started - timedelta(seconds=chance.lognormvariate(0, 3))),
        "NServiceBus.ProcessingStarted": format_time(started),
        "NServiceBus.ProcessingEnded": format_time(started + timedelta(microseconds=chance.choice([0, 1, -7, 1_050_000, 20_000]))),
        "NServiceBus.Retries": chance.choice(["3", "x", "-1", "1234567890", "0"]),
        "ServiceControl.Retry.UniqueMessageId": str(uuid.UUID(int=7)),
        "NServiceBus.DeliverAt": format_time(started - timedelta(seconds=chance.choice([-5, 0, 5]))),
    }
    always = {"NServiceBus.MessageId", "NServiceBus.EnclosedMessageTypes"}
    kept = {name: value for name, value in whole.items() if name in always or chance.random() < 0.8}
    for name in ("NServiceBus.TimeSent", "NServiceBus.ProcessingEnded", "NServiceBus.DeliverAt"):
        if name in kept and chance.random() < 0.1:
            kept[name] = chance.choice(TIMES)
    return kept


def _failure(chance: random.Random) -> dict[str, str | None]:
    failed_at = TAKEN_AT - timedelta(seconds=chance.choice([60, 86_400]) * chance.random())
    return {
        "NServiceBus.FailedQ": chance.choice(["Sales@[dbo]", "Billing", "Ware@house@x"]),
        "NServiceBus.TimeOfFailure": chance.choice([format_time(failed_at), *TIMES[:5]]),
        "NServiceBus.ExceptionInfo.ExceptionType": chance.choice(["shop.OutOfStock", "System.Exception"]),
        "NServiceBus.ExceptionInfo.Message": chance.choice(["none left", "at Shop.A.B()", ""]),
        "NServiceBus.ExceptionInfo.StackTrace": chance.choice(
            ["shop.OutOfStock: none left\n   at shop.handlers.place() in /app/handlers.py:line 42", "Traceback", ""]
        ),
    }
