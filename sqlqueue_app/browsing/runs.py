"""The outcome of the last runs of a schedule, found by the ids of their messages with few statements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from django.db.models import Q

from sqlqueue_app.browsing.conversations import MessageOutcome, failures_where, message_of_failure, scanned_rows, tables_to_search
from sqlqueue_app.browsing.messages import queues_of_type
from sqlqueue_app.conf import Settings
from sqlqueue_app.messages.headers import MESSAGE_ID, SCHEDULE, header_texts
from sqlqueue_app.models import ScheduleTick
from sqlqueue_app.tables.connections import optional_read
from sqlqueue_app.tables.listing import TableScan, find_rows

# The newest rows of a queue, and the first due ones of a delayed table, in which retries wait.
_SEARCHED_ROWS: Final = 10_000
_MAX_FOUND: Final = 100


def outcomes_of_runs(
    settings: Settings, runs: Sequence[ScheduleTick], message_type: str, destination: str
) -> dict[str, MessageOutcome]:
    """The outcomes by message id of those that wait or have failed; the others were handled, have expired or were deleted.

    Searches the queues of the type and the delayed tables for the header of the schedule, and the index of failures. Skips tables
    that cannot be read; raises ConnectionLost.
    """
    if not runs:
        return {}
    failures = failures_where(Q(message_id__in=[each.message_id for each in runs])).values()
    found = {each.message_id: message_of_failure(each, {}).outcome for each in failures}
    with optional_read(settings.database, "look for the messages of a schedule"):
        names = queues_of_type(settings, message_type, runs[0].endpoint, destination)
        tables = [each for each in tables_to_search(settings, ()) if each[1] or each[0].name in names]
        scans = [TableScan(queue.address, _SEARCHED_ROWS, is_delayed, from_end=not is_delayed) for queue, is_delayed in tables]
        texts = header_texts(SCHEDULE, runs[0].schedule)
        rows = scanned_rows(tables, find_rows(settings.database, scans, *texts, limit=_MAX_FOUND)) if scans else ()
        for row in rows:
            found[row.headers.get(MESSAGE_ID) or ""] = MessageOutcome.DELAYED if row.is_delayed else MessageOutcome.WAITING
    return found
