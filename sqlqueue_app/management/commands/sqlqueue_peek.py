"""`manage.py sqlqueue_peek QUEUE`: show the first messages of a queue without taking them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.core.management.base import CommandParser

from sqlqueue_app.browsing.messages import MessageDetail, read_details
from sqlqueue_app.conf import get_settings
from sqlqueue_app.management.command_line import SqlQueueCommand, add_format_argument, add_queue_argument, named_table, whole_number
from sqlqueue_app.messages.errors import terminal_line, terminal_text

_LARGEST_LIMIT = 1_000


class Command(SqlQueueCommand):
    """Parses arguments; `read_details` reads."""

    help = (
        "Show the first messages of a queue with headers and decoded body. They stay where they are: nothing is taken or locked. "
        "Bodies are cut at 64 KiB."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        add_queue_argument(parser)
        parser.add_argument(
            "--limit",
            type=whole_number(1, _LARGEST_LIMIT),
            default=10,
            metavar="N",
            help=f"how many messages, at most {_LARGEST_LIMIT} (default: %(default)s)",
        )
        add_format_argument(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        table = named_table(get_settings(), options["queue"])
        details = read_details(table, limit=options["limit"])
        if options["format"] == "json":
            self.write_json(
                {"queue": table.address.table, "table": table.qualified, "messages": [_document(each) for each in details]}
            )
            return
        if not details:
            self.stdout.write(f"The queue {table.qualified} is empty.")
        for each in details:
            for line in _lines(each):
                self.stdout.write(line)


def _document(each: MessageDetail) -> dict[str, Any]:
    """One message; docs/reference/commands.md documents the keys, which do not change."""
    summary = each.summary
    return {
        "row_version": summary.row_version,
        "row_id": summary.row_id,
        "message_id": summary.message_id,
        "types": list(summary.types),
        "intent": summary.intent or None,
        "time_sent": summary.time_sent,
        "expires": summary.expires,
        "flags": sorted(flag.value for flag in summary.flags),
        "correlation_id": each.correlation_id,
        "reply_to_address": each.reply_to_address,
        "headers": each.headers,
        "headers_text": each.headers_text if each.headers is None else None,
        "headers_problem": summary.unreadable,
        "body": each.body.text,
        "body_kind": each.body.kind.value,
        "body_size": summary.size,
        "body_cut": each.body.is_cut,
    }


def _lines(each: MessageDetail) -> Iterator[str]:
    summary = each.summary
    flags = "".join(f" [{flag.value}]" for flag in sorted(summary.flags))
    yield f"#{summary.row_version} {terminal_line(summary.message_id)} {terminal_line(summary.message_type)}{flags}"
    if summary.expires is not None:
        yield f"  expires {summary.expires:%Y-%m-%d %H:%M:%S} UTC"
    if each.headers is None:
        yield f"  headers cannot be read: {terminal_line(summary.unreadable or '')}"
        yield from _indented(each.headers_text or "")
    else:
        for name, value in each.headers.items():
            first, *more = terminal_text(value if value is not None else "null").splitlines() or [""]
            yield f"  {terminal_line(name)}: {first}"
            yield from (f"    {line}" for line in more)
    size = "NULL" if summary.size is None else f"{summary.size:,} bytes"
    cut = f", the first {each.body.shown_bytes:,} shown" if each.body.is_cut else ""
    yield f"  body ({each.body.kind.value}, {size}{cut})"
    yield from _indented(each.body.text)
    yield ""


def _indented(text: str) -> Iterator[str]:
    return (f"    {line}" for line in terminal_text(text).splitlines())
