"""Redirects for retries that wait already: a message that lies in a queue whose retries are redirected moves to where they go.

One that was received from there is not ours to send again: it may have been handled, and would be handled twice.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from sqlqueue_app.conf import Settings
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.errors import AddressError
from sqlqueue_app.messages.failure_groups import guid_of
from sqlqueue_app.models import FailedMessage, FailureStatus
from sqlqueue_app.operations.bulk.failure_rows import lock, write_columns
from sqlqueue_app.operations.bulk.outcome import Outcome, Reason
from sqlqueue_app.operations.pending_retries import ROWS_AT_MOST
from sqlqueue_app.operations.redirects import count_use
from sqlqueue_app.operations.retry_targets import RetryTargets, Target
from sqlqueue_app.operations.single_message import moved_row
from sqlqueue_app.sending.dispatcher import Dispatcher
from sqlqueue_app.tables.chosen_rows import TakenRow, find_ids, take_rows
from sqlqueue_app.tables.queue import queue_table

REDIRECTABLE: Final = (FailureStatus.RETRY_ISSUED,)
_WRITTEN: Final = ("retried_to", "retry_row_id")


def redirect_batch(settings: Settings, ids: Sequence[uuid.UUID]) -> Outcome:
    """Move the messages of these pending retries, each once, in the caller's transactions on the managed tables and on the queues.

    Those that are not in the queue any more, or not among its first 10,000 rows where it has no index of ids, stay as they are.
    """
    outcome = Outcome()
    targets = RetryTargets(settings)
    by_queue: defaultdict[str, list[FailedMessage]] = defaultdict(list)
    for failure in lock(ids, REDIRECTABLE, outcome):
        by_queue[failure.retried_to].append(failure)
    for queue, failures in by_queue.items():
        target = targets.of(queue)
        if not isinstance(target, Target):
            outcome.skip(*target, count=len(failures))
        elif target.redirect is None:
            outcome.skip(Reason.NO_REDIRECT, queue, count=len(failures))
        else:
            moved = _move(settings, targets, queue, failures, target)
            count_use(target.redirect, moved)
            outcome.done += moved
            if moved < len(failures):
                outcome.skip(Reason.RECEIVED, count=len(failures) - moved)
    return outcome


def _move(settings: Settings, targets: RetryTargets, queue: str, failures: Sequence[FailedMessage], target: Target) -> int:
    taken = _take(settings, targets, queue, failures)
    rows: list[tuple[QueueAddress, TakenRow]] = [(target.address, row) for _failure, row in taken]
    dispatcher = Dispatcher(settings.database, targets.book, announces=settings.announces)
    row_ids = dispatcher.dispatch_rows(((address, moved_row(row)) for address, row in rows), begun=True)
    for (failure, _row), row_id in zip(taken, row_ids, strict=True):
        failure.retried_to, failure.retry_row_id = target.text, row_id
    write_columns([failure for failure, _row in taken], _WRITTEN)
    return len(taken)


def _take(
    settings: Settings, targets: RetryTargets, queue: str, failures: Sequence[FailedMessage]
) -> list[tuple[FailedMessage, TakenRow]]:
    """Delete the rows of those that wait there still, and that nobody holds."""
    wanted = {row_id: each for each in failures if (row_id := guid_of(each.retry_row_id)) is not None}
    try:
        table = queue_table(settings.database, targets.book.parse(queue))
    except AddressError:
        return []
    if not wanted or not table.exists():
        return []
    numbers = find_ids(table, set(wanted), limit=ROWS_AT_MOST)
    return [(wanted[row.id], row) for row in take_rows(table, numbers.values()) if row.id in wanted]
