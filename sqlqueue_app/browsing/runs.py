"""The outcome of the last runs of a schedule, found by the ids of their messages with few statements."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final
from uuid import UUID

from django.db.models import Q

from sqlqueue_app.browsing.conversations import MessageOutcome, failures_where, message_of_failure, scanned_rows, tables_to_search
from sqlqueue_app.browsing.messages import queues_of_type
from sqlqueue_app.conf import Settings
from sqlqueue_app.messages import headers as names
from sqlqueue_app.models import ScheduleTick
from sqlqueue_app.status.queues import address_book_of
from sqlqueue_app.tables.connections import optional_read
from sqlqueue_app.tables.listing import TableScan, find_rows
from sqlqueue_app.tables.queue import EXACT_COUNT_LIMIT, queue_table
from sqlqueue_app.tables.row_selection import find_ids

# A delayed retry waits in a delayed table, whose rows have no ids: only the first due rows are read.
_DELAYED_ROWS: Final = 2_000


def outcomes_of_runs(
    settings: Settings, runs: Sequence[ScheduleTick], message_type: str, destination: str = ""
) -> dict[str, MessageOutcome]:
    """The outcomes by message id of those that wait or have failed; the others were handled, have expired or were deleted.

    Searches the queues of the type by row id, which is the message id, the delayed tables, and the index of failures. Skips
    tables that cannot be read; raises ConnectionLost.
    """
    ids = [each.message_id for each in runs]
    if not ids:
        return {}
    failures = failures_where(Q(message_id__in=ids)).values()
    found = {each.message_id: message_of_failure(each, {}).outcome for each in failures}
    return found | _delayed(settings, ids) | _waiting(settings, ids, message_type, destination, runs[0].endpoint)


def _waiting(
    settings: Settings, ids: Sequence[str], message_type: str, destination: str, sent_by: str
) -> dict[str, MessageOutcome]:
    book = address_book_of(settings)
    by_row: dict[UUID, str] = {}
    for text in ids:
        with suppress(ValueError):
            by_row[UUID(text)] = text
    found: dict[str, MessageOutcome] = {}
    for name in queues_of_type(settings, message_type, sent_by, destination):
        table = queue_table(settings.database, book.of_queue(name))
        with optional_read(settings.database, f"look for messages in {table.qualified}"):
            rows = find_ids(table, by_row, limit=EXACT_COUNT_LIMIT)
            found |= {by_row[row_id]: MessageOutcome.WAITING for row_id in rows}
    return found


def _delayed(settings: Settings, ids: Sequence[str]) -> dict[str, MessageOutcome]:
    with optional_read(settings.database, "look for delayed messages"):
        tables = [each for each in tables_to_search(settings, ()) if each[1]]
        scans = [TableScan(queue.address, _DELAYED_ROWS, is_delayed=True, from_end=False) for queue, _ in tables]
        if scans:
            rows = scanned_rows(tables, find_rows(settings.database, scans, *ids, limit=len(ids)))
            known = {row.headers.get(names.MESSAGE_ID): MessageOutcome.DELAYED for row in rows}
            return {each: known[each] for each in ids if each in known}
    return {}
