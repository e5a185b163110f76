"""`manage.py sqlqueue_status`: the state of all queues and instances."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from sqlqueue_app.conf import get_settings
from sqlqueue_app.management.command_line import SqlQueueCommand, add_format_argument
from sqlqueue_app.management.output import status_document, status_lines
from sqlqueue_app.status.overview import read_status


class Command(SqlQueueCommand):
    """Prints the result of `read_status`."""

    help = (
        "Show every queue (messages, how many carry an expiry, how many of these are expired, age of the first message by its "
        "headers) and every instance (heartbeat, threads, callback queue). Takes and locks nothing. Counts are exact up to 10,000 "
        "messages, estimates beyond are marked ≈."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        add_format_argument(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        status = read_status(get_settings())
        if options["format"] == "json":
            self.write_json(status_document(status))
            return
        for line in status_lines(status):
            self.stdout.write(line)
