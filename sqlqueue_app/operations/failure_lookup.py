"""Looking failures up for a person who acts now: the index brought up to date first, messages found by either of their ids."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime
from typing import Final
from uuid import UUID

from sqlqueue_app.conf import Settings
from sqlqueue_app.instances import managed_alias
from sqlqueue_app.messages.errors import ConnectionLost, DatabaseError
from sqlqueue_app.models import FailedAttempt, FailureGroup
from sqlqueue_app.operations.failure_index import catch_up
from sqlqueue_app.operations.failure_selection import MOST_IDS, FailureSelection
from sqlqueue_app.operations.looking import looking
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


def failures_of_rows(queue: str, row_versions: Collection[int]) -> dict[int, UUID]:
    """The unique ids of the failed messages whose rows these are, of any of their failures, by RowVersion. One statement.

    Rows that the index does not know are left out; so is every one where the index cannot be read.
    """
    alias = managed_alias()
    try:
        with looking(alias, "look up failed messages"):
            found = FailedAttempt.objects.using(alias).filter(queue=queue, row_version__in=row_versions)
            return {number: unique for number, unique in found.values_list("row_version", "failure_id") if number is not None}
    except ConnectionLost:
        raise
    except DatabaseError:
        return {}  # the tables of `migrate` are missing, which the overview says


def is_group(group: UUID) -> bool:
    """Whether there is a group with this id."""
    return FailureGroup.objects.using(managed_alias()).filter(pk=group).exists()
