"""`manage.py sqlqueue_purge_callbacks`: drop callback queues of dead instances."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError, CommandParser

from sqlqueue_app.conf import get_settings
from sqlqueue_app.management.command_line import SqlQueueCommand, add_format_argument, columns, duration_text, one_line, seconds
from sqlqueue_app.messages.errors import DatabaseError, counted
from sqlqueue_app.status.instances import GoneCallbackQueue, gone_callback_queues, remove_callback_queue

_NUMBERS = frozenset({3, 4})


class Command(SqlQueueCommand):
    """Lists and asks for confirmation, then drops."""

    help = (
        "List the callback queues of instances that are gone, with the time since their last heartbeat and the number of messages, "
        "and drop their tables. Never those of live instances. On a terminal it asks first; elsewhere --yes is needed."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        help_of_age = "only those without a heartbeat for at least this many seconds (default: every dead instance)"
        parser.add_argument("--older-than", type=seconds, default=timedelta(), metavar="S", help=help_of_age)
        parser.add_argument("--yes", action="store_true", help="do not ask")
        parser.add_argument("--dry-run", action="store_true", help="list, and remove nothing")
        add_format_argument(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        self._refused = 0
        as_json = options["format"] == "json"
        found = gone_callback_queues(get_settings(), options["older_than"])
        if not as_json:
            self._list(found)
        removes = bool(found) and not options["dry_run"]
        if removes and not options["yes"]:
            self._confirm(len(found))
        removed = {gone.name: removes and self._remove(gone) for gone in found}
        if as_json:
            self.write_json({"callback_queues": [_document(gone, removed[gone.name]) for gone in found]})
        elif removes:
            self.stdout.write(f"removed {sum(removed.values())} of {len(found)}")
        if self._refused:
            raise CommandError(f"{counted(self._refused, 'queue')} could not be dropped", returncode=1)

    def _remove(self, gone: GoneCallbackQueue) -> bool:
        try:
            if remove_callback_queue(gone):
                return True
            self.stderr.write(f"{gone.name} stays: a process has since leased it")
        except DatabaseError as error:
            self._refused += 1
            self.stderr.write(one_line(f"{gone.name} stays: {error}"))
        return False

    def _list(self, found: list[GoneCallbackQueue]) -> None:
        if not found:
            self.stdout.write("no callback queue of an instance that is gone")
            return
        rows = [("QUEUE", "ENDPOINT", "INSTANCE", "SILENT", "MESSAGES")]
        rows += [(each.name, each.endpoint, each.instance, duration_text(each.silent), _messages(each)) for each in found]
        self.stdout.write("\n".join(columns(rows, right=_NUMBERS)))

    def _confirm(self, number: int) -> None:
        if not sys.stdin.isatty():
            raise self.usage_error("nothing was removed: there is no terminal to confirm on; add --yes")
        self.stderr.write("These tables will be dropped, with every message in them.")
        self.stderr.write(f"Type the number of queues ({number}) to continue: ", ending="")
        self.stderr.flush()
        if sys.stdin.readline().strip() != str(number):
            raise self.usage_error("nothing was removed: that was not the number of queues")


def _messages(gone: GoneCallbackQueue) -> str:
    return "no table" if gone.depth is None else f"{'' if gone.depth.exact else '≈'}{gone.depth.waiting:,}"


def _document(gone: GoneCallbackQueue, removed: bool) -> dict[str, Any]:
    return {
        "queue": gone.name,
        "table": gone.table.qualified,
        "endpoint": gone.endpoint,
        "instance": gone.instance,
        "silent_seconds": round(gone.silent.total_seconds(), 3),
        "messages": None if gone.depth is None else gone.depth.waiting,
        "messages_exact": None if gone.depth is None else gone.depth.exact,
        "removed": removed,
    }
