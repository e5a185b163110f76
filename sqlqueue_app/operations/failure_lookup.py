"""Looking failures up for a person who acts now: the index brought up to date first, messages found by either of their ids."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final
from uuid import UUID

from sqlqueue_app.conf import Settings
from sqlqueue_app.instances import managed_alias
from sqlqueue_app.models import FailureGroup
from sqlqueue_app.operations.failure_index import catch_up
from sqlqueue_app.operations.failure_selection import MOST_IDS, FailureSelection
from sqlqueue_app.tables.clock import database_now

_AT_ONCE: Final = 10_000


def read_all_failures(settings: Settings, *, now: Callable[[], datetime] | None = None) -> tuple[str, ...]:
    """Bring the index up to date with all that is in the error queues now; returns the problems of queues that cannot be read.

    May take minutes for a long queue that nobody has looked at. Raises DatabaseError if the clock cannot be read.
    """
    while True:
        state = catch_up(settings, limit=_AT_ONCE, now=now() if now is not None else database_now(managed_alias()))
        if state.problems or not state.is_behind:
            return state.problems


def messages_called(text: str) -> list[UUID]:
    """The unique ids of the failed messages with this message id, or with this unique id. One statement."""
    found = FailureSelection(message_id=text.strip()).queryset().order_by("-failed_at")
    return list(found.values_list("pk", flat=True)[:MOST_IDS])


def is_group(group: UUID) -> bool:
    """Whether there is a group with this id."""
    return FailureGroup.objects.using(managed_alias()).filter(pk=group).exists()
