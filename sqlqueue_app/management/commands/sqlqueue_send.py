"""`manage.py sqlqueue_send QUEUE --type T --body JSON`: send messages to a queue."""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError
from pathlib import Path
from typing import Any

from django.core.management.base import CommandParser

from sqlqueue_app.browsing.messages import send_copies
from sqlqueue_app.conf import get_settings
from sqlqueue_app.management.command_line import (
    ListAction,
    SqlQueueCommand,
    add_format_argument,
    add_queue_argument,
    named_table,
    seconds,
    whole_number,
)
from sqlqueue_app.messages.errors import WireFormatError
from sqlqueue_app.messages.headers import MESSAGE_ID
from sqlqueue_app.messages.serializers import deserialize
from sqlqueue_app.policies.priorities import PRIORITIES

_MAX_LISTED = 10
# The ids of one transaction are kept until it is committed: these occupy 1 GB.
_MAX_COUNT = 10_000_000


def header(text: str) -> tuple[str, str]:
    """An argument type: `NAME=VALUE`, split at the first equals sign."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ArgumentTypeError(f"expected NAME=VALUE, got {text!r}")
    return name, value


class Command(SqlQueueCommand):
    """Parses arguments; `send_copies` sends."""

    help = (
        "Send a message to a queue, once or many times, in one transaction: all or none. The message is sent as SEND_AS of the "
        "settings, and to the named queue: routes do not apply."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        add_queue_argument(parser)
        parser.add_argument(
            "--type", required=True, metavar="T", help="the full name of the message type, such as Sales.PlaceOrder"
        )
        body = parser.add_mutually_exclusive_group(required=True)
        body.add_argument("--body", metavar="JSON", help="the body, a JSON object")
        body.add_argument("--file", metavar="F", help="a file with the body, a JSON object; - is the standard input")
        parser.add_argument(
            "--header",
            type=header,
            action=ListAction,
            continues=lambda text: "=" in text,
            default=[],
            metavar="NAME=VALUE",
            help="a header of your own; it overrides the default of the same name; may be repeated",
        )
        parser.add_argument("--ttbr", type=seconds, metavar="S", help="time to be received in seconds: then the message expires")
        parser.add_argument(
            "--delay",
            type=seconds,
            metavar="S",
            help="deliver it this many seconds later; it waits in the delayed table of SEND_AS, or of the first endpoint if that "
            "is not set; not with --ttbr",
        )
        parser.add_argument(
            "--priority",
            choices=PRIORITIES,
            help="send it to the queue of this priority; QUEUE is the main queue of an endpoint with PRIORITIES",
        )
        parser.add_argument(
            "--count",
            type=whole_number(1, _MAX_COUNT),
            default=1,
            metavar="N",
            help=f"how many copies, at most {_MAX_COUNT} (default: %(default)s)",
        )
        add_format_argument(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        body = self._body(options["body"], options["file"])
        table = named_table(get_settings(), options["queue"])
        count, headers = options["count"], dict(options["header"])
        if count > 1 and MESSAGE_ID in headers:
            raise self.usage_error(f"--header {MESSAGE_ID} is for a single message: with --count each copy has its own id")
        try:
            ids = send_copies(
                table,
                options["type"],
                body,
                headers=headers,
                time_to_be_received=options["ttbr"],
                delay=options["delay"],
                priority=options["priority"],
                count=count,
                progress=lambda done: self.write_progress(done, count, "messages written") if count > _MAX_LISTED else None,
            )
        except WireFormatError as error:
            raise self.usage_error(str(error)) from error
        self.committed = "the message is sent" if count == 1 else f"the {count:,} messages are sent"
        if options["format"] == "json":
            self.write_json({"queue": table.address.table, "table": table.qualified, "sent": len(ids), "message_ids": ids})
        elif count > _MAX_LISTED:
            level = f" with priority {options['priority']}" if options["priority"] else ""
            self.stdout.write(f"sent {len(ids)} messages to {table.qualified}{level}")
        else:
            for message_id in ids:
                self.stdout.write(message_id)

    def _body(self, text: str | None, file: str | None) -> dict[str, object]:
        raw = text.encode("utf-8", "surrogateescape") if text is not None else self._read(file or "-")
        try:
            found: dict[str, object] = deserialize(raw, None)
        except WireFormatError as error:
            raise self.usage_error(str(error)) from error
        return found

    def _read(self, file: str) -> bytes:
        try:
            return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        except OSError as error:
            raise self.usage_error(f"the file {file!r} cannot be read: {error.strerror or error}") from error
