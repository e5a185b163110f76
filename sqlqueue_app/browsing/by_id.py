"""Find one message by its id in all tables, cancel it, report its state.

Cancelling takes two statements: a query that finds the row, without locks, and a DELETE of this row that skips locked ones. A
RowVersion is never used twice, so the second statement deletes what the first has found, or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final
from uuid import UUID

from django.db import router, transaction
from django.db.models import Q
from django.utils import timezone

from sqlqueue_app.browsing.analytics import known_lake
from sqlqueue_app.browsing.conversations import (
    LAKE_SECONDS,
    ConversationMessage,
    MessageOutcome,
    ScannedRow,
    failures_where,
    message_of_failure,
    messages_of_lake,
    messages_of_rows,
    scanned_rows,
    tables_to_search,
)
from sqlqueue_app.browsing.lookup import MessageState, MessageStatus, RevokeResult
from sqlqueue_app.conf import Settings, get_settings
from sqlqueue_app.lake.data_files import LakeEngineMissing, LakeError
from sqlqueue_app.lake.search import SearchQuery, search
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.envelope import guid_of
from sqlqueue_app.messages.errors import ConfigurationError, TaskRevoked, WireFormatError
from sqlqueue_app.models import HandledMessage, TaskResult, managed_alias
from sqlqueue_app.models.failures import fitting
from sqlqueue_app.sending.sender import current_handling
from sqlqueue_app.status.delayed import known_delayed_tables
from sqlqueue_app.status.instances import read_callback_queues
from sqlqueue_app.status.queues import KnownQueue, QueueKind, address_book_of, known_queues, table_key, table_of_argument
from sqlqueue_app.tables import delayed as delayed_tables, row_selection
from sqlqueue_app.tables.connections import Table, guarded_read, missing_table, optional_read
from sqlqueue_app.tables.delayed import DelayedTable
from sqlqueue_app.tables.listing import TABLES_PER_STATEMENT, TableScan, find_rows, sees_locked_rows
from sqlqueue_app.tables.managed import key_of
from sqlqueue_app.tables.queue import queue_table

# Copies of a message in one table, such as several retries of a failure in an error queue.
_MAX_COPIES: Final = 100
# A message moves at most a few times between two statements: due, received, failed, delayed again.
_MAX_ROUNDS: Final = 5
_MAX_FROM_LAKE: Final = 10
# Replies are awaited by one process, which knows when they are late.
_NOT_SEARCHED: Final = frozenset({QueueKind.CALLBACK})
_NOT_WAITING: Final = _NOT_SEARCHED | {QueueKind.ERROR, QueueKind.AUDIT}

_REVOKED: Final = f"{TaskRevoked.__module__}.{TaskRevoked.__qualname__}"

_Tables = Sequence[tuple[KnownQueue, bool]]


@dataclass(frozen=True, slots=True)
class _Found:
    """The rows of a message. `is_complete`: all rows were read at one moment, locked ones included, so there are no others."""

    rows: list[ScannedRow]
    is_complete: bool


def cancel(wanted: str | UUID, queue: str | None, limit: int) -> RevokeResult:
    """Delete the rows of a message that waits: see `revoke()`."""
    message_id = _checked_id(wanted, queue, limit)
    settings = get_settings()
    if _is_handled_here(message_id):
        return RevokeResult.IN_PROGRESS
    tables = _tables(settings, queue, _NOT_WAITING)
    if not tables:
        return RevokeResult.NOT_FOUND
    held: set[tuple[str, bool, int, str]] = set()
    cancelled = False
    for _ in range(_MAX_ROUNDS):
        found = _find(settings, tables, message_id, limit)
        waiting = {(row.queue.name, row.is_delayed, row.row_version, row.native_id): row for row in _waiting(found.rows)}
        # It was locked during the attempt to delete it: if it had been gone, no reader would see it now.
        if held & waiting.keys():
            return RevokeResult.IN_PROGRESS
        held = {key for key, row in waiting.items() if not _remove(settings, row, message_id)}
        cancelled = cancelled or len(held) < len(waiting)
        if not held:
            break
    else:
        return RevokeResult.UNKNOWN
    if cancelled:
        return RevokeResult.CANCELLED
    # A handler sees neither the other messages of its batch, which its transaction has deleted, nor those that it will send.
    is_certain = found.is_complete and current_handling() is None
    return RevokeResult.NOT_FOUND if is_certain else RevokeResult.UNKNOWN


# Every database can count this many rows.
_MAX_LIMIT: Final = 2**31 - 1


def _checked_id(wanted: object, queue: object, limit: object) -> str:
    message_id = str(wanted) if isinstance(wanted, UUID) else wanted
    if not isinstance(message_id, str):
        raise WireFormatError(f"message_id is {type(wanted).__name__} ({wanted!r:.200}); expected str or UUID: convert it first")
    if not message_id:
        raise WireFormatError("message_id is empty; expected the id of a message: pass what send() has returned")
    if queue is not None and (not isinstance(queue, str) or not queue.strip()):
        raise ConfigurationError(f"queue is {queue!r:.200}; expected the name of a queue, or None for all queues")
    if type(limit) is not int or not 1 <= limit <= _MAX_LIMIT:
        raise ConfigurationError(
            f"limit is {limit!r:.200}; expected the number of rows to read in each table, from 1 to {_MAX_LIMIT:,}"
        )
    return message_id


def _is_handled_here(message_id: str) -> bool:
    """Whether the calling thread handles this message: its own transaction has deleted the row."""
    handled = current_handling()
    return handled is not None and message_id in (handled.incoming.message_id, handled.incoming.headers.get(names.TASK_RESULT))


def _tables(settings: Settings, queue: str | None, without: frozenset[QueueKind]) -> _Tables:
    """The tables to search: the one of this name, else all, including those of the settings that this connection may not read."""
    delayed = [KnownQueue(each.name, each.address, QueueKind.OTHER, (each.endpoint,)) for each in known_delayed_tables(settings)]
    if queue is None:
        found = tables_to_search(settings, read_callback_queues())
        listed = {table_key(each.address) for each, _ in found}
        of_settings = [*((each, False) for each in known_queues(settings)), *((each, True) for each in delayed)]
        hidden = [(each, is_delayed) for each, is_delayed in of_settings if table_key(each.address) not in listed]
        there = [each for each in hidden if each[0].kind not in without and Table(settings.database, each[0].address).exists()]
        return [*(each for each in found if each[1] or each[0].kind not in without), *there]
    for each in delayed:
        if each.name == queue:
            table = DelayedTable(settings.database, each.address)
            if not table.exists():
                raise missing_table(table, f"table {table.qualified} does not exist: run sqlqueue_install or migrate")
            return [(each, True)]
    known = known_queues(settings)
    address = table_of_argument(settings, queue, [*known, *delayed]).address
    other = KnownQueue(queue, address, QueueKind.OTHER, ())
    return [(next((each for each in known if each.name == queue), other), False)]


def _find(settings: Settings, tables: _Tables, message_id: str, limit: int) -> _Found:
    """The rows of this message: one statement for each hundred tables, on PostgreSQL and SQLite as of one moment."""
    alias = settings.database
    addresses = [each.address for each, _ in tables]
    wanted = guid_of(message_id)
    scans = [TableScan(each.address, limit, is_delayed, from_end=not is_delayed) for each, is_delayed in tables]
    texts = names.message_id_texts(message_id)
    if settings.task_backends:
        texts += names.header_texts(names.TASK_RESULT, message_id)
    with guarded_read(alias, f"look for a message in {len(tables)} tables"):
        with_locked = sees_locked_rows(alias, addresses)
        result = find_rows(alias, scans, *texts, limit=_MAX_COPIES, row_id=wanted, with_locked=with_locked)
    rows = scanned_rows(tables, result)

    def fits(row: ScannedRow) -> bool:
        named = row.headers.get(names.MESSAGE_ID)
        if message_id in (named, row.headers.get(names.TASK_RESULT)):
            return True
        # A GUID has several spellings.
        return wanted is not None and guid_of(named or row.native_id) == wanted

    is_one_moment = len(tables) <= TABLES_PER_STATEMENT
    return _Found([row for row in rows if fits(row)], with_locked and is_one_moment and not result.longer)


def _waiting(rows: Iterable[ScannedRow]) -> list[ScannedRow]:
    """The rows that wait to be received: a table that the settings do not name may be another system's error or audit queue."""
    return [row for row in rows if _message_of(row).outcome.is_in_queue]


def _message_of(row: ScannedRow) -> ConversationMessage:
    (message,) = messages_of_rows({}, [row])
    return message


def _remove(settings: Settings, row: ScannedRow, message_id: str) -> bool:
    """Delete the row; if it belongs to a Django task, the task has failed. Returns False if the row is gone or locked."""
    if not settings.task_backends:
        return _delete(settings, row)
    with transaction.atomic(using=settings.database):
        return _delete(settings, row) and _end_task(row.headers.get(names.TASK_RESULT) or message_id)


def _delete(settings: Settings, row: ScannedRow) -> bool:
    alias, address = settings.database, row.queue.address
    if row.is_delayed:
        return bool(delayed_tables.remove_rows(DelayedTable(alias, address), [str(row.row_version or row.native_id)]))
    return bool(row_selection.remove_rows(queue_table(alias, address), [row.row_version]))


def _end_task(message_id: str) -> bool:
    """Store the end of the task with this id, if there is one. Returns True."""
    alias = managed_alias()
    task = TaskResult.objects.using(alias).filter(pk=fitting("message_id", message_id), finished_at__isnull=True).first()
    if task is not None:
        text = f"revoke() cancelled the message {message_id} of this task"
        task.errors = [*task.errors, {"exception_class_path": _REVOKED, "traceback": text}]
        task.status, task.finished_at = "FAILED", timezone.now()
        task.save(using=alias, update_fields=["errors", "status", "finished_at"])
    return True


# An outcome and its state have the same name.
_STATE_OF: Final = {each: MessageState[each.name] for each in MessageOutcome}
# If there are several copies, the first in this order is reported.
_ORDER: Final = tuple(
    MessageState[name]
    for name in ("IN_PROGRESS", "WAITING", "DELAYED", "FAILED", "HANDLED", "RETRIED", "ARCHIVED", "GONE", "UNKNOWN")
)
_CERTAIN: Final = _ORDER[: _ORDER.index(MessageState.HANDLED) + 1]


def status_of(wanted: str | UUID, queue: str | None, limit: int) -> MessageStatus:
    """Where a message is: see `message_status()`."""
    message_id = _checked_id(wanted, queue, limit)
    settings = get_settings()
    if _is_handled_here(message_id):
        return MessageStatus(message_id, MessageState.IN_PROGRESS)
    tables = _tables(settings, queue, _NOT_SEARCHED)
    rows = _find(settings, tables, message_id, limit).rows if tables else []
    of_rows = [_status_of_row(settings, message_id, row) for row in rows]
    sources: tuple[Callable[[Settings, str], list[MessageStatus]], ...] = (_failed, _remembered, _of_task, _in_lake)
    found = of_rows
    for source in sources:
        best = min(found, key=lambda each: _ORDER.index(each.state), default=None)
        # A row of an error queue does not name its failure, the index does.
        if best is not None and best.state in _CERTAIN and (best.state is not MessageState.FAILED or best.failure is not None):
            return best
        found = [*source(settings, message_id), *found]
    return min(found, key=lambda each: _ORDER.index(each.state), default=MessageStatus(message_id, MessageState.UNKNOWN))


def _status_of_row(settings: Settings, message_id: str, row: ScannedRow) -> MessageStatus:
    message = _message_of(row)
    state = _STATE_OF[message.outcome]
    if state is MessageState.WAITING:
        table = queue_table(settings.database, row.queue.address)
        with guarded_read(settings.database, f"look for locked rows in {table.qualified}"):
            if row.row_version not in row_selection.free_rows(table, [row.row_version]):
                state = MessageState.IN_PROGRESS
    return MessageStatus(message_id, state, row.queue.name, row.due)


def _status(message_id: str, message: ConversationMessage) -> MessageStatus:
    return MessageStatus(message_id, _STATE_OF[message.outcome], message.queue, failure=message.failure)


def _failed(_settings: Settings, message_id: str) -> list[MessageStatus]:
    failures = failures_where(Q(message_id=fitting("message_id", message_id)))
    return [_status(message_id, message_of_failure(each, {})) for each in failures.values()]


def _remembered(settings: Settings, message_id: str) -> list[MessageStatus]:
    """The queues that have remembered the id, for DEDUPLICATE_FOR."""
    book = address_book_of(settings)
    queues = chain.from_iterable(
        each.receiving_queue_names() for each in settings.endpoints.values() if each.deduplicate_for_seconds
    )
    keys = {key_of(book.canonical(book.of_queue(name)), message_id): name for name in queues}
    alias = router.db_for_read(HandledMessage)
    with optional_read(alias, "look for a handled message"):
        found = HandledMessage.objects.using(alias).filter(pk__in=list(keys)).values_list("pk", flat=True) if keys else []
        return [MessageStatus(message_id, MessageState.HANDLED, keys[key]) for key in found]
    return []


_STATE_OF_TASK: Final = {"SUCCESSFUL": MessageState.HANDLED, "FAILED": MessageState.FAILED}


def _of_task(settings: Settings, message_id: str) -> list[MessageStatus]:
    """The outcome of a Django task, whose result has the id of its message."""
    if not settings.task_backends:
        return []
    with optional_read(managed_alias(), "read the result of a task"):
        results = TaskResult.objects.using(managed_alias()).filter(pk=fitting("message_id", message_id))
        return [MessageStatus(message_id, _state_of_task(each)) for each in results if each.status in _STATE_OF_TASK]
    return []


def _state_of_task(result: TaskResult) -> MessageState:
    is_revoked = bool(result.errors) and result.errors[-1]["exception_class_path"] == _REVOKED
    return MessageState.GONE if is_revoked else _STATE_OF_TASK[result.status]


def _in_lake(settings: Settings, message_id: str) -> list[MessageStatus]:
    lake = known_lake(settings)
    if not lake.lake or lake.problem or not lake.files:
        return []
    query = SearchQuery(message_id=message_id, size=_MAX_FROM_LAKE, headers=True)
    try:
        read = messages_of_lake(search(lake.lake, lake.files, query, seconds=LAKE_SECONDS).messages)
    except (LakeError, LakeEngineMissing):
        return []
    return [_status(message_id, each) for each in (*read.handled, *read.failed.values())]
