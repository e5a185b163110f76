"""Retries that nobody has acknowledged yet: where each message is, as far as the database tells."""

from __future__ import annotations

import enum
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from sqlqueue_app.conf import Settings
from sqlqueue_app.messages.errors import AddressError, DatabaseError, QueueNotFound
from sqlqueue_app.models import FailedMessage
from sqlqueue_app.operations.known_queues import address_book_of
from sqlqueue_app.operations.looking import looking
from sqlqueue_app.tables.chosen_rows import find_ids
from sqlqueue_app.tables.queue import queue_table

# So many queues are looked into for a page, and so many rows of one that has no index of ids.
QUEUES_AT_MOST: Final = 5
ROWS_AT_MOST: Final = 10_000


class Whereabouts(enum.StrEnum):
    """Where a message is that was sent again."""

    WAITING = "waiting"
    NOT_FOUND = "not found"
    TAKEN = "taken"
    NO_QUEUE = "no queue"
    UNREADABLE = "unreadable"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Found:
    """Where a message is; `row_version` is its number in the queue, `detail` is what the database said."""

    where: Whereabouts
    row_version: int | None = None
    detail: str = ""


def find_retries(settings: Settings, messages: Iterable[FailedMessage]) -> Mapping[uuid.UUID, Found]:
    """Where each of the messages is; two statements at most for each of five queues. Raises no error of a database."""
    by_queue: defaultdict[str, list[FailedMessage]] = defaultdict(list)
    for message in messages:
        by_queue[message.retried_to].append(message)
    found: dict[uuid.UUID, Found] = {}
    for number, (queue, members) in enumerate(by_queue.items()):
        looked = _look(settings, queue, members) if number < QUEUES_AT_MOST else {}
        found |= {each.pk: looked.get(each.pk, Found(Whereabouts.UNKNOWN)) for each in members}
    return found


def _look(settings: Settings, queue: str, messages: list[FailedMessage]) -> dict[uuid.UUID, Found]:
    ids = {each.pk: row_id for each in messages if (row_id := _row_id(each)) is not None}
    if not queue or not ids:
        return {}
    try:
        table = queue_table(settings.database, address_book_of(settings).parse(queue))
        with looking(table.alias, f"look for messages in {table.qualified}"):
            there = find_ids(table, set(ids.values()), limit=ROWS_AT_MOST)
            missing = len(there) < len(set(ids.values()))
            # Only PostgreSQL has an index of ids.
            is_whole = table.dialect.name == "postgresql" or (missing and len(table.row_versions(ROWS_AT_MOST + 1)) <= ROWS_AT_MOST)
    except QueueNotFound:
        return dict.fromkeys(ids, Found(Whereabouts.NO_QUEUE))
    except (AddressError, DatabaseError) as error:
        return dict.fromkeys(ids, Found(Whereabouts.UNREADABLE, detail=str(error)))
    elsewhere = Found(Whereabouts.TAKEN if is_whole else Whereabouts.NOT_FOUND)
    return {unique: Found(Whereabouts.WAITING, there[row_id]) if row_id in there else elsewhere for unique, row_id in ids.items()}


def _row_id(message: FailedMessage) -> uuid.UUID | None:
    try:
        return uuid.UUID(message.retry_row_id)
    except ValueError:
        return None
