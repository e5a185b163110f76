"""The kinds of bulk operations: the processing of a batch of failed messages or of the messages of a queue.

Archive, unarchive and complete change only the status. Delete removes the rows and keeps the history. Operations on a queue leave
messages alone that arrive after the request, so that they end while others still send.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from django.utils.functional import Promise
from django.utils.translation import gettext as _, gettext_lazy

from sqlqueue_app.browsing.messages import moved_rows
from sqlqueue_app.conf import Settings
from sqlqueue_app.failures.operation_batches import (
    BatchOutcome,
    OperationRefused,
    ProcessedBatch,
    Reason,
    forget_rows,
    lock_failures,
    next_messages,
    older_rows,
    set_status,
    within_memory,
)
from sqlqueue_app.failures.retrying import REDIRECTABLE, RETRIABLE, RetryBatch, RetryTargets, redirect_batch, remove
from sqlqueue_app.failures.selection import FailureSelection
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.errors import ConfigurationError, QueueNotFound, SqlQueueError
from sqlqueue_app.models import FailureStatus, Operation
from sqlqueue_app.status.queues import table_key
from sqlqueue_app.tables.queue import QueueTable, queue_table
from sqlqueue_app.tables.row_selection import remove_rows, take_rows

ARCHIVABLE: Final = (FailureStatus.UNRESOLVED,)
UNARCHIVABLE: Final = (FailureStatus.ARCHIVED,)
COMPLETABLE: Final = (FailureStatus.RETRY_ISSUED,)
DELETABLE: Final = (FailureStatus.UNRESOLVED, FailureStatus.ARCHIVED)


def change_status(ids: Sequence[UUID], before: Sequence[FailureStatus], after: FailureStatus, now: datetime) -> BatchOutcome:
    """Set the status of the messages that have one of the statuses `before`; skip the others."""
    outcome = BatchOutcome()
    outcome.changed = [failure.pk for failure in lock_failures(ids, before, outcome)]
    outcome.done = set_status(outcome.changed, after, now) if outcome.changed else 0
    return outcome


def delete_batch(settings: Settings, ids: Sequence[UUID], now: datetime) -> BatchOutcome:
    """Delete messages permanently from their error queues, with the rows of earlier attempts.

    A message whose row is gone or locked is skipped. A message without a known row is only marked as deleted.
    """
    outcome = BatchOutcome()
    failures = lock_failures(ids, DELETABLE, outcome)
    targets = RetryTargets(settings)
    older = older_rows(failures)
    rows = [(each.queue, each.row_version) for each in failures]
    removed = set(remove(targets, [*rows, *(row for rows in older.values() for row in rows)]))
    deleted = [each.pk for each in failures if each.row_version is None or (each.queue, each.row_version) in removed]
    if len(failures) > len(deleted):
        outcome.skip(Reason.NOT_THERE, count=len(failures) - len(deleted))
    if deleted:
        outcome.changed = deleted
        outcome.done = set_status(deleted, FailureStatus.DELETED, now, row_version=None)
    forget_rows(removed)
    return outcome


@dataclass(frozen=True, slots=True)
class QueueScope:
    """The messages of a queue up to RowVersion `until`, and the queue to move them to; `name` is the name for people."""

    name: str
    queue: QueueAddress
    until: int
    target: QueueAddress | None = None

    def to_json(self) -> dict[str, object]:
        """The scope as a JSON value for the row of the operation."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: object) -> QueueScope:
        """The inverse of `to_json`. Raises OperationRefused for anything else."""
        try:
            if not isinstance(value, Mapping):
                raise TypeError
            target = value["target"]
            return cls(
                str(value["name"]),
                QueueAddress(**value["queue"]),
                int(value["until"]),
                None if target is None else QueueAddress(**target),
            )
        except (TypeError, ValueError, KeyError) as error:
            raise _unreadable() from error

    def in_words(self) -> str:
        if self.target is None:
            return _("all messages of %(queue)s") % {"queue": self.name}
        return _("all messages of %(queue)s, to %(target)s") % {"queue": self.name, "target": self.target.table}


def queue_scope(table: QueueTable, name: str, target: QueueTable | None = None) -> QueueScope:
    """The current messages of the queue. Raises ValueError if source and target are the same queue, and DatabaseErrors."""
    if target is not None and table_key(target.address) == table_key(table.address):
        raise ValueError(_("The messages are already in “%(queue)s”: choose another queue.") % {"queue": name})
    newest = table.peek_back(1)
    return QueueScope(name, table.address, newest[0].row_version if newest else 0, None if target is None else target.address)


@dataclass(frozen=True, slots=True)
class QueueOperation:
    """Moves the messages of a queue to the target of its scope if it `moves`, otherwise deletes them. Immutable."""

    name: str
    label: str | Promise
    permission: str
    moves: bool

    def check(self, settings: Settings) -> None:
        """Every queue is allowed."""

    def scope(self, wanted: Scope) -> QueueScope:
        """The requested scope. Raises OperationRefused if it is not a QueueScope of this kind."""
        if not isinstance(wanted, QueueScope) or (wanted.target is not None) is not self.moves:
            raise _unreadable()
        return wanted

    def total(self, settings: Settings, scope: object) -> int:
        """The current number of messages; an estimate for a long queue."""
        return queue_table(settings.database, self.read(scope).queue).depth().waiting

    def batch(self, settings: Settings, scope: object, cursor: str, limit: int, now: datetime) -> ProcessedBatch:
        chosen = self.read(scope)
        table = queue_table(settings.database, chosen.queue)
        numbers, is_last = self._next(table, chosen, cursor, limit)
        outcome = BatchOutcome()
        if numbers:
            outcome.done = _work(settings, table, chosen, numbers)
            if outcome.done < len(numbers):
                outcome.skip(Reason.IN_HANDS, count=len(numbers) - outcome.done)
        return ProcessedBatch(outcome, str(numbers[-1]) if numbers else cursor, is_last)

    def skip_first(self, settings: Settings, scope: object, cursor: str) -> str:
        chosen = self.read(scope)
        numbers, _is_last = self._next(queue_table(settings.database, chosen.queue), chosen, cursor, 1)
        return str(numbers[0]) if numbers else cursor

    def _next(self, table: QueueTable, scope: QueueScope, cursor: str, limit: int) -> tuple[list[int], bool]:
        """The RowVersions of the next rows, fewer if their bodies are large, and whether no rows follow."""
        after = int(cursor or 0)
        try:
            if self.moves:
                rows = [row for row in table.peek(limit + 1, after=after, body_limit=0) if row.row_version <= scope.until]
                chosen = [row.row_version for row in within_memory(rows, limit, lambda row: row.body_length or 0)]
                return chosen, len(chosen) == len(rows)
            numbers = [number for number in table.row_versions(limit + 1, after=after) if number <= scope.until]
        except QueueNotFound:
            # Without its cause: a caller that inspects causes would take it for a database error.
            raise _gone(scope.name) from None
        return numbers[:limit], len(numbers) <= limit

    def read(self, scope: object) -> QueueScope:
        """The scope of the row of an operation. Raises OperationRefused if it cannot be read."""
        return self.scope(QueueScope.from_json(scope))


def _work(settings: Settings, table: QueueTable, scope: QueueScope, row_versions: Sequence[int]) -> int:
    """Move or delete the rows; returns how many were there and not locked."""
    if scope.target is None:
        return len(remove_rows(table, row_versions))
    target = queue_table(settings.database, scope.target)
    if not target.exists():
        raise _gone(scope.target.table)
    taken = take_rows(table, row_versions)
    target.send(moved_rows(settings, scope.target, taken))
    return len(taken)


def _gone(queue: str) -> OperationRefused:
    return OperationRefused(_("The queue %(queue)s no longer exists.") % {"queue": queue})


def _unreadable() -> OperationRefused:
    return OperationRefused(_("The scope of this operation cannot be read: cancel it, and start another one."))


QUEUE_KINDS: Final = (
    QueueOperation("move_queue", gettext_lazy("Move"), "move_message", moves=True),
    QueueOperation("purge_queue", gettext_lazy("Purge"), "purge_queue", moves=False),
)


@dataclass(frozen=True, slots=True)
class FailureKind:
    """An operation on failed messages; its scope is a FailureSelection. Immutable.

    `statuses` are the statuses that a message may have, `takes` is set if messages leave their error queue. `work` runs in the
    transactions of the batch, with the ids of its messages.
    """

    name: str
    label: str | Promise
    permission: str
    statuses: tuple[FailureStatus, ...]
    work: Callable[[Settings, Sequence[UUID], datetime], BatchOutcome]
    takes: bool = False

    def check(self, settings: Settings) -> None:
        """Raise OperationRefused if another system owns the error queues."""
        if self.takes and (reason := error_queue_refusal(settings)):
            raise OperationRefused(reason)

    def scope(self, wanted: Scope) -> FailureSelection:
        """The selection, limited to `statuses` unless it names statuses. Raises OperationRefused if it has problems."""
        if not isinstance(wanted, FailureSelection):
            raise _unreadable()
        if wanted.problems:
            raise OperationRefused(" ".join(wanted.problems))
        return wanted.or_statuses(*self.statuses)

    def read(self, scope: object) -> FailureSelection:
        """The selection of the row of an operation. Raises OperationRefused if it cannot be read."""
        return self.scope(FailureSelection.from_json(scope))

    def total(self, settings: Settings, scope: object) -> int:
        """The current number of messages in the scope."""
        return self.read(scope).queryset().count()

    def batch(self, settings: Settings, scope: object, cursor: str, limit: int, now: datetime) -> ProcessedBatch:
        """Process at most `limit` messages behind the cursor, in the caller's transactions."""
        chosen = next_messages(self.read(scope), cursor, limit)
        outcome = self.work(settings, chosen.ids, now) if chosen.ids else BatchOutcome()
        return ProcessedBatch(outcome, str(chosen.ids[-1]) if chosen.ids else cursor, chosen.is_last)

    def skip_first(self, settings: Settings, scope: object, cursor: str) -> str:
        """The cursor behind the next message, which cannot be processed."""
        chosen = next_messages(self.read(scope), cursor, 1)
        return str(chosen.ids[0]) if chosen.ids else cursor


Scope = FailureSelection | QueueScope
OperationKind = FailureKind | QueueOperation


def error_queue_refusal(settings: Settings) -> str:
    """The reason why these settings forbid taking messages out of error queues; empty if they allow it."""
    if settings.error_queue_owner == "sqlqueue":
        return ""
    return _("The error queue belongs to ServiceControl (ERROR_QUEUE_OWNER): retry and delete messages there.")


def _status(before: Sequence[FailureStatus], after: FailureStatus) -> Callable[[Settings, Sequence[UUID], datetime], BatchOutcome]:
    return lambda _settings, ids, now: change_status(ids, before, after, now)


def _retry(settings: Settings, ids: Sequence[UUID], now: datetime) -> BatchOutcome:
    return RetryBatch(settings, now).run(ids)


_FAILURE_KINDS: Final = (
    FailureKind("retry", gettext_lazy("Retry"), "retry", RETRIABLE, _retry, takes=True),
    FailureKind("archive", gettext_lazy("Archive"), "archive", ARCHIVABLE, _status(ARCHIVABLE, FailureStatus.ARCHIVED)),
    FailureKind("unarchive", gettext_lazy("Unarchive"), "archive", UNARCHIVABLE, _status(UNARCHIVABLE, FailureStatus.UNRESOLVED)),
    FailureKind("complete", gettext_lazy("Mark as resolved"), "retry", COMPLETABLE, _status(COMPLETABLE, FailureStatus.RESOLVED)),
    FailureKind("redirect", gettext_lazy("Apply redirects"), "retry", REDIRECTABLE, redirect_batch),
    FailureKind("delete", gettext_lazy("Delete"), "delete_message", DELETABLE, delete_batch, takes=True),
)
FAILURE_KINDS: Final[Mapping[str, FailureKind]] = {kind.name: kind for kind in _FAILURE_KINDS}
KINDS: Final[Mapping[str, OperationKind]] = {**FAILURE_KINDS, **{kind.name: kind for kind in QUEUE_KINDS}}


def kind_of(name: str) -> OperationKind:
    """The kind with this name. ConfigurationError lists the known names."""
    kind = KINDS.get(name)
    if kind is None:
        raise ConfigurationError(f"unknown kind of operation {name!r}: expected one of {', '.join(KINDS)}")
    return kind


def label_of_kind(name: str) -> str:
    """The word for a kind; its name if this version does not know it."""
    return str(KINDS[name].label) if name in KINDS else name


def words_of(operation: Operation) -> str:
    """What it works on, in the current language; as stored, in English, if this version cannot read its scope."""
    try:
        return kind_of(operation.kind).read(operation.scope).in_words()
    except SqlQueueError:
        return operation.description
