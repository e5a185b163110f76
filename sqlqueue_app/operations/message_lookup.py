"""Where a message is that was sent: failed, waiting in a queue that it may have gone to, or in an audit queue once handled."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from uuid import UUID

from sqlqueue_app.conf import Settings
from sqlqueue_app.instances import managed_alias
from sqlqueue_app.messages.errors import ConnectionLost, DatabaseError
from sqlqueue_app.models import FailedMessage
from sqlqueue_app.operations.browse import SEARCHED_ROWS, summary_of
from sqlqueue_app.operations.known_queues import QueueKind, address_book_of, known_queues
from sqlqueue_app.operations.looking import looking
from sqlqueue_app.sending.routing import Routes
from sqlqueue_app.tables.chosen_rows import find_ids
from sqlqueue_app.tables.queue import EXACT_COUNT_LIMIT, QueueTable, queue_table

# Each is a statement or two.
_QUEUES_AT_MOST = 4

_Look = Callable[[QueueTable, str], int | None]


@dataclass(frozen=True, slots=True)
class FoundMessage:
    """The place of a message: a failed one by its unique id, else a row of the `KnownQueue` of this name."""

    failure: UUID | None = None
    queue: str = ""
    row_version: int = 0


def find_sent_message(settings: Settings, message_id: str, message_type: str, sent_by: str) -> FoundMessage | None:
    """A message by its id: among the failed ones, in the queue that its type is routed to, else in those of endpoints, last
    among the copies of handled messages.

    By the id of its row, on SQL Server and SQLite among the first 10,000 of a queue; else by the headers of the first 2,000, in
    audit queues of the last 2,000. None if it is nowhere: handled or deleted. Raises ConnectionLost; a queue that cannot be read
    is left out.
    """
    alias = managed_alias()
    with looking(alias, "look for a message"):
        failure = FailedMessage.objects.using(alias).filter(message_id=message_id).order_by("-failed_at").first()
    if failure is not None:
        return FoundMessage(failure=failure.pk)
    book = address_book_of(settings)
    looks: list[tuple[str, QueueTable, _Look]] = [
        (name, queue_table(settings.database, book.of_queue(name)), _row_version)
        for name in _queues(settings, message_type, sent_by)
    ]
    audits = [queue for queue in known_queues(settings) if queue.kind is QueueKind.AUDIT][:_QUEUES_AT_MOST]
    looks += [(queue.name, queue_table(settings.database, queue.address), _newest) for queue in audits]
    for name, table, look in looks:
        try:
            with looking(settings.database, f"look for a message in {table.qualified}"):
                found = look(table, message_id)
        except ConnectionLost:
            raise
        except DatabaseError:
            continue
        if found is not None:
            return FoundMessage(queue=name, row_version=found)
    return None


def _row_version(table: QueueTable, message_id: str) -> int | None:
    """By the id of the row, which is that of the message where it can be; else by the headers of the first rows."""
    try:
        wanted = UUID(message_id)
        found = find_ids(table, [wanted], limit=EXACT_COUNT_LIMIT).get(wanted)
    except ValueError:
        found = None
    if found is not None:
        return found
    rows = (summary_of(row) for row in table.peek(SEARCHED_ROWS, body_limit=0))
    return next((row.row_version for row in rows if row.message_id == message_id), None)


def _newest(table: QueueTable, message_id: str) -> int | None:
    """By the headers of the last rows."""
    rows = (summary_of(row) for row in table.peek_back(SEARCHED_ROWS, body_limit=0))
    return next((row.row_version for row in rows if row.message_id == message_id), None)


def _queues(settings: Settings, message_type: str, sent_by: str) -> Iterable[str]:
    routed = Routes(settings.routes).find(message_type)
    if routed is not None:
        return (routed,)
    return list(dict.fromkeys([*([sent_by] if sent_by in settings.senders else ()), *settings.endpoints]))[:_QUEUES_AT_MOST]
