"""Text of a message cannot forge a log line or control the terminal of the reader."""

from __future__ import annotations

import io
import json
import logging
from typing import Any

from django.core.management import call_command

from sqlqueue_app import handles
from sqlqueue_app.tables.rows import NewRow
from sqlqueue_app.worker.logs import configure_logging, remove_logging
from tests.support.bench import Bench

FORGED = "\n2026-01-01 00:00:00 INFO all is well \x1b[2J\x07\x9b2J\u202e"
NAMES = (
    *("MessageId", "CorrelationId", "ConversationId", "EnclosedMessageTypes", "ReplyToAddress", "MessageIntent", "ContentType"),
    *("TimeSent", "OriginatingEndpoint", "SqlServer.ForwardDestination", "FailedQ", "ControlMessage", "Retries"),
)


def fill(bench: Bench) -> None:
    """Send one message per header with the forged text, and one that is unreadable."""

    @handles("Test.Ask")
    def answer_request(message: Any, context: Any) -> None:
        if context.message_id.startswith("x"):
            raise ValueError(f"no such order: {context.message_id}")
        context.reply("Test.Answer", {})

    texts = ['{"a": "\x1b[2J\\n2026-01-01 all is well" broken']
    for number, name in enumerate(NAMES):
        all_headers = {"NServiceBus.EnclosedMessageTypes": "Test.Ask", "NServiceBus.MessageId": f"m{number}"}
        texts.append(json.dumps({**all_headers, f"NServiceBus.{name}": f"x{FORGED}"}))
    for number, text in enumerate(texts):
        bench.table("Sales").send([NewRow(f"00000000-0000-0000-0000-{number:012}", text, b"{}")])


def logged(bench: Bench, form: str) -> str:
    out = io.StringIO()
    handler = configure_logging(form, level=logging.DEBUG, stream=out)
    assert handler
    try:
        bench.run()
    finally:
        remove_logging(handler)
    return out.getvalue()


def test_text_lines_are_escaped(sqlite_bench: Bench) -> None:
    fill(sqlite_bench)
    text = logged(sqlite_bench, "text")
    assert "all is well" in text
    assert [line for line in text.splitlines() if line.startswith("2026-01-01 00:00:00 ")] == []
    assert not set(text) & set("\x1b\x07\x9b\u202e")


def test_json_lines_are_escaped(sqlite_bench: Bench) -> None:
    fill(sqlite_bench)
    lines = logged(sqlite_bench, "json").split("\n")[:-1]
    read = [json.loads(line) for line in lines]
    assert any("all is well" in each["message"] for each in read)
    assert not set("".join(lines)) & set("\x1b\x07\x9b\u202e")


def test_command_output_is_escaped(sqlite_bench: Bench) -> None:
    fill(sqlite_bench)
    sqlite_bench.run()
    for command in (["sqlqueue_peek", "error", "--limit", "50"], ["sqlqueue_retry", "--all", "--dry-run"], ["sqlqueue_status"]):
        out = io.StringIO()
        call_command(*command, stdout=out)
        assert not set(out.getvalue()) & set("\x1b\x07\x9b\u202e"), command
