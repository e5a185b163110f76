"""`manage.py sqlqueue_subscriptions`: list and remove subscriptions."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from sqlqueue_app.conf import get_settings
from sqlqueue_app.management.command_line import ListAction, SqlQueueCommand, add_format_argument, columns
from sqlqueue_app.messages.errors import counted
from sqlqueue_app.status.subscriptions import SubscriptionState, read_subscriptions, remove_subscriptions


class Command(SqlQueueCommand):
    """Parses arguments; `status.subscriptions` reads and removes."""

    help = (
        "Show who has subscribed to which events, and whether the queue exists and the endpoint, if the settings have it, still "
        "handles the event. With --remove or --remove-unhandled: end subscriptions, and show those that ended."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--endpoint", metavar="ENDPOINT", help="only the subscriptions of this endpoint")
        what = parser.add_mutually_exclusive_group()
        what.add_argument(
            "--remove", action=ListAction, metavar="TYPE", help="end the endpoint's subscription to this event; may be repeated"
        )
        what.add_argument(
            "--remove-unhandled",
            action="store_true",
            help="end the subscriptions to events that endpoints of the settings no longer handle",
        )
        add_format_argument(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        settings = get_settings()
        removed: list[str] = options["remove"] or []
        if removed and options["endpoint"] is None:
            raise self.usage_error("--remove needs --endpoint, the subscriber to remove")
        found = read_subscriptions(settings, options["endpoint"])
        if removed:
            missing = sorted(set(removed) - {each.subscription.topic for each in found})
            if missing:
                raise self.usage_error(f"endpoint {options['endpoint']!r} has not subscribed to {', '.join(map(repr, missing))}")
            found = [each for each in found if each.subscription.topic in removed]
        elif options["remove_unhandled"]:
            found = [each for each in found if each.handled is False]
        if removed or options["remove_unhandled"]:
            remove_subscriptions(settings, [each.subscription for each in found])
        if options["format"] == "json":
            self.write_json({"subscriptions": [_document(each) for each in found]})
            return
        self._print(found, removed=bool(removed or options["remove_unhandled"]))

    def _print(self, found: list[SubscriptionState], *, removed: bool) -> None:
        if removed:
            self.stdout.write(f"{counted(len(found), 'subscription')} removed")
        elif not found:
            self.stdout.write("No subscriptions.")
        for line in columns(_cells(each) for each in found):
            self.stdout.write(line)


def _document(each: SubscriptionState) -> dict[str, Any]:
    """One subscription; docs/reference/commands.md documents the keys, which do not change."""
    row = each.subscription
    return {
        "endpoint": row.endpoint,
        "topic": row.topic,
        "address": row.address,
        "queue_exists": each.queue_exists,
        "handled": each.handled,
    }


def _cells(each: SubscriptionState) -> tuple[str, str, str, str]:
    row = each.subscription
    notes = ["queue missing"] * (not each.queue_exists) + ["not handled"] * (each.handled is False)
    return row.endpoint, row.topic, row.address, ", ".join(notes)
