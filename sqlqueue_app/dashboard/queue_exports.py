"""The queues and their messages as rows of files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from sqlqueue_app.dashboard.overview import Overview
from sqlqueue_app.operations.browse import MessagePage
from sqlqueue_app.operations.status import Status

EXPORTED_COLUMNS: Final = (
    "queue", "kind", "table", "endpoints", "state", "messages", "exact", "expiring", "expired", "head_age_seconds", "threads",
    "in_per_second", "out_per_second",
)  # fmt: skip
MESSAGE_COLUMNS: Final = ("row_version", "message_id", "types", "intent", "time_sent", "expires", "size", "flags", "failure")


def exported_queues(status: Status, overview: Overview) -> Iterator[tuple[Any, ...]]:
    """A row for each queue, in the order of the page."""
    shown = {row.name: row for row in (*overview.queues, *overview.others, *overview.callbacks)}
    for each in status.queues:
        row, depth = shown[each.name], each.depth
        age = each.head_age.age if each.head_age is not None else None
        yield (
            each.name,
            each.queue.kind.value,
            each.table,
            ", ".join(each.queue.endpoints),
            row.state.word,
            None if depth is None else depth.waiting,
            None if depth is None else depth.exact,
            None if depth is None else depth.expiring,
            None if depth is None else depth.expired,
            None if age is None else age.total_seconds(),
            row.threads,
            row.rates[0] if row.rates else None,
            row.rates[1] if row.rates else None,
        )


def exported_messages(found: MessagePage) -> Iterator[tuple[Any, ...]]:
    """A row for each message of a page; bodies are not part of it."""
    for each in found.messages:
        yield (
            each.row_version,
            each.message_id,
            list(each.types),
            each.intent,
            each.time_sent,
            each.expires,
            each.size,
            sorted(flag.value for flag in each.flags),
            each.unreadable or each.failure,
        )
