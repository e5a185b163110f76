"""Arbitrary text as address or id: no receiver stops, no row is lost, and each is handled or moved with a reason."""

from __future__ import annotations

import random
from typing import Any

import pytest

from sqlqueue_app import handles
from tests.support.bench import Bench
from tests.support.raw_rows import has_correlation_columns, insert_row
from tests.support.sqlserver import lacks

ROWS = 150
ADDRESSES = ("NServiceBus.ReplyToAddress", "NServiceBus.SqlServer.CallbackQueue", "NServiceBus.SqlServer.ForwardDestination")
SUBSCRIBERS = ("NServiceBus.ReplyToAddress", "NServiceBus.SubscriberAddress", "NServiceBus.SubscriberEndpoint")
IDS = ("NServiceBus.MessageId", "NServiceBus.CorrelationId", "NServiceBus.ConversationId", "NServiceBus.FailedQ")
# Characters that are special somewhere, and parts of valid addresses.
PIECES = [
    *"ab@.[]\"'-;/\\ \n\t\x1f%{}",
    "é",
    "\U0001f69a",
    "Peer",
    "Sales",
    "dbo",
    "public",
    "]]",
    '""',
    "@[",
    "]@[",
    '"."',
    "x" * 130,
]
NO_TEXT = ["\0", "\ud83d"]


def wild(chance: random.Random) -> str | None:
    """Random text, half of it from pieces of addresses; seldom None, or text that no database can store."""
    kind = chance.random()
    if kind < 0.05:
        return None
    if kind < 0.15:
        return chance.choice(["", " ", "Peer", "Peer@HOST", "Peer@[dbo]@[nsb]", '"public"."Peer"', "Peer@[]@[]", "@", '"', '"".""'])
    text = "".join(chance.choices(PIECES, k=chance.randint(1, 6)))
    return text + chance.choice(NO_TEXT) if kind > 0.9 else text


def headers_of(chance: random.Random, number: int) -> dict[str, str | None]:
    subscribes = number % 5 == 0
    headers: dict[str, str | None] = {
        name: wild(chance) for name in (*(SUBSCRIBERS if subscribes else ADDRESSES), *IDS) if chance.random() < 0.4
    }
    headers["Number"] = str(number)
    if subscribes:
        return headers | {
            "NServiceBus.ControlMessage": "True",
            "NServiceBus.MessageIntent": chance.choice(["Subscribe", "Unsubscribe"]),
            "SubscriptionMessageType": wild(chance) or "Test.Event, Test",
        }
    return headers | {"NServiceBus.EnclosedMessageTypes": chance.choice(["Test.Ask", "Test.Check"])}


@pytest.mark.parametrize(("legacy", "seed"), [(False, 1), (True, 2)])
def test_no_text_stops_a_receiver_or_loses_a_row(bench: Bench, legacy: bool, seed: int) -> None:
    bench.configure(LEGACY_ADDRESSES=legacy, AUDIT_QUEUE="audit", MAX_CONCURRENCY=1, RATE_LIMIT_AFTER=None)
    bench.install_queues("Peer", "HOST")
    handles("Test.Ask")(lambda message, context: context.reply("Test.Answer", {}) and None)
    handles("Test.Check")(lambda message, context: context.reply(7) and None)
    chance = random.Random(seed)
    columns: dict[str, Any] = {}
    for number in range(ROWS):
        if has_correlation_columns(bench.database.connection):
            texts = [text if (text := wild(chance)) is None or not set(text) & set(NO_TEXT) else "" for _ in range(2)]
            if bench.database.vendor == "sqlserver":
                # varchar(255), in a code page or in UTF-8: some characters take several bytes
                texts = [text and text.encode()[:255].decode(errors="ignore") for text in texts]
            columns = {"CorrelationId": texts[0], "ReplyToAddress": texts[1], "Recoverable": True}
        headers = headers_of(chance, number)
        if bench.database.vendor == "sqlserver" and lacks("NUL in a text"):
            headers = {name: value and value.replace("\0", "") for name, value in headers.items()}
        row_id = f"00000000-0000-0000-0000-{number:012}"
        insert_row(bench.database.connection, "Sales", row_id, headers, b"{}", columns, escaped=True)
    bench.run()

    assert bench.rows("Sales") == []
    audited, failed, went_on = bench.headers("audit"), bench.headers("error"), bench.headers("Peer")
    there = [row["Number"] for row in (*audited, *failed, *went_on) if "Number" in row]
    assert sorted(there, key=int) == [str(number) for number in range(ROWS)]
    assert all(row["NServiceBus.ExceptionInfo.Message"] and row["NServiceBus.FailedQ"] is not None for row in failed)
    assert audited
    assert failed
