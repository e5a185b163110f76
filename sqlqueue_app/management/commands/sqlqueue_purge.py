"""`manage.py sqlqueue_purge QUEUE`: delete all or the expired messages of a queue."""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import CommandParser

from sqlqueue_app.browsing.messages import purge_expired, purge_queue
from sqlqueue_app.conf import get_settings
from sqlqueue_app.management.command_line import SqlQueueCommand, add_format_argument, add_queue_argument, named_table
from sqlqueue_app.messages.errors import counted
from sqlqueue_app.tables.queue import QueueTable


class Command(SqlQueueCommand):
    """Asks for confirmation, then deletes."""

    help = (
        "Delete every message of a queue, or only the expired ones. This cannot be undone. "
        "On a terminal the name of the queue must be typed first; elsewhere --yes is needed."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        add_queue_argument(parser)
        parser.add_argument("--expired", action="store_true", help="delete only messages whose time to be received has passed")
        parser.add_argument("--yes", action="store_true", help="do not ask")
        add_format_argument(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        table = named_table(get_settings(), options["queue"])
        what = "expired messages" if options["expired"] else "messages"
        if not options["yes"]:
            self._confirm(table, what)
        deleted = purge_expired(table, progress=self._progress) if options["expired"] else purge_queue(table)
        self.end_progress()
        if options["format"] == "json":
            self.write_json(
                {"queue": table.address.table, "table": table.qualified, "expired_only": options["expired"], "deleted": deleted}
            )
            return
        self.stdout.write(f"deleted {deleted} {what[:-1] if deleted == 1 else what} from {table.qualified}")

    def _confirm(self, table: QueueTable, what: str) -> None:
        name = table.address.table
        if not sys.stdin.isatty():
            raise self.usage_error(f"nothing was deleted from {name!r}: there is no terminal to confirm on; add --yes")
        self.stderr.write(f"All {what} of {table.qualified} in database {table.alias!r} will be deleted permanently.")
        self.stderr.write(f"Type the name of the queue ({name}) to continue: ", ending="")
        self.stderr.flush()
        if sys.stdin.readline().rstrip("\n") != name:
            raise self.usage_error("nothing was deleted: that was not the name of the queue")

    def _progress(self, deleted: int) -> None:
        self.show_progress(f"{counted(deleted, 'expired message')} deleted")
