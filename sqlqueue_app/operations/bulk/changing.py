"""Archiving, bringing back, marking as complete: the status alone changes. Deleting: the rows go, the history stays."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

from sqlqueue_app.conf import Settings
from sqlqueue_app.models import FailureStatus
from sqlqueue_app.operations.bulk.failure_rows import lock, older_rows, rows_are_gone, set_status
from sqlqueue_app.operations.bulk.outcome import Outcome, Reason
from sqlqueue_app.operations.bulk.retrying import remove
from sqlqueue_app.operations.retry_targets import RetryTargets

ARCHIVABLE: Final = (FailureStatus.UNRESOLVED,)
UNARCHIVABLE: Final = (FailureStatus.ARCHIVED,)
COMPLETABLE: Final = (FailureStatus.RETRY_ISSUED,)
DELETABLE: Final = (FailureStatus.UNRESOLVED, FailureStatus.ARCHIVED)


def change_status(ids: Sequence[UUID], before: Sequence[FailureStatus], after: FailureStatus, now: datetime) -> Outcome:
    """Give the messages that have one of the statuses another one; the rest is skipped."""
    outcome = Outcome()
    locked = [failure.pk for failure in lock(ids, before, outcome)]
    outcome.done = set_status(locked, after, now) if locked else 0
    return outcome


def delete_batch(settings: Settings, ids: Sequence[UUID], now: datetime) -> Outcome:
    """Delete the messages from their error queues for good, with the rows of earlier attempts.

    A message whose row is gone, or that somebody else is at work on, is skipped. One of which no row is known is only noted.
    """
    outcome = Outcome()
    failures = lock(ids, DELETABLE, outcome)
    targets = RetryTargets(settings)
    older = older_rows(failures)
    rows = [(each.queue, each.row_version) for each in failures]
    removed = set(remove(targets, [*rows, *(row for rows in older.values() for row in rows)]))
    deleted = [each.pk for each in failures if each.row_version is None or (each.queue, each.row_version) in removed]
    if len(failures) > len(deleted):
        outcome.skip(Reason.NOT_THERE, count=len(failures) - len(deleted))
    if deleted:
        outcome.done = set_status(deleted, FailureStatus.DELETED, now, row_version=None)
    rows_are_gone(removed)
    return outcome
