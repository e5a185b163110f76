"""The kinds of bulk operations on the messages of a queue: move all of them to another queue, delete all of them.

What arrives after the operation was asked for is left alone, so that it comes to an end while others send.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Final

from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from sqlqueue_app.conf import Settings
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.errors import QueueNotFound
from sqlqueue_app.operations.bulk.batches import Batch, OperationRefused, fitting
from sqlqueue_app.operations.bulk.outcome import Outcome, Reason
from sqlqueue_app.operations.single_message import moved_row
from sqlqueue_app.tables.chosen_rows import remove_rows, take_rows
from sqlqueue_app.tables.queue import QueueTable, queue_table


@dataclass(frozen=True, slots=True)
class QueueScope:
    """The messages of a queue up to the RowVersion `until`, and where they are moved to; `name` is the queue's for people."""

    name: str
    queue: QueueAddress
    until: int
    target: QueueAddress | None = None

    def to_json(self) -> dict[str, object]:
        """As it is kept in an operation's row."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: object) -> QueueScope:
        """What `to_json` gave. OperationRefused for anything else."""
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
        """For people, in the current language."""
        if self.target is None:
            return _("all messages of %(queue)s") % {"queue": self.name}
        return _("all messages of %(queue)s, to %(target)s") % {"queue": self.name, "target": self.target.table}


def queue_scope(table: QueueTable, name: str, target: QueueTable | None = None) -> QueueScope:
    """What is in the queue now. ValueError if it is moved to itself; DatabaseErrors."""
    if target is not None and target.qualified == table.qualified:
        raise ValueError(_("“%(queue)s” is the queue that the messages are in: name another one.") % {"queue": name})
    newest = table.peek_back(1, body_limit=0)
    return QueueScope(name, table.address, newest[0].row_version if newest else 0, None if target is None else target.address)


@dataclass(frozen=True, slots=True)
class QueueOperation:
    """A kind of operation on the messages of a queue; its scope is a QueueScope. Immutable.

    `permission` is the codename without which a user may not. With `moves` the scope has a target; else the messages are deleted.
    """

    name: str
    label: str | Promise
    permission: str
    moves: bool

    def check(self, settings: Settings) -> None:
        """Nothing: any queue may be worked on."""

    def scope(self, asked: object) -> QueueScope:
        """What was asked for, if it is the messages of a queue."""
        if not isinstance(asked, QueueScope) or (asked.target is not None) is not self.moves:
            raise _unreadable()
        return asked

    def total(self, settings: Settings, scope: object) -> int:
        """How many messages the queue has now; an estimate of a long one."""
        return queue_table(settings.database, self._read(scope).queue).depth().waiting

    def batch(self, settings: Settings, scope: object, cursor: str, limit: int, now: datetime) -> Batch:
        """Work on the next messages behind the cursor, at most `limit`, in the transactions that the caller has begun."""
        chosen = self._read(scope)
        table = queue_table(settings.database, chosen.queue)
        numbers, is_last = self._next(table, chosen, cursor, limit)
        outcome = Outcome()
        if numbers:
            outcome.done = _work(settings, table, chosen, numbers)
            if outcome.done < len(numbers):
                outcome.skip(Reason.IN_HANDS, count=len(numbers) - outcome.done)
        return Batch(outcome, str(numbers[-1]) if numbers else cursor, is_last)

    def over_first(self, settings: Settings, scope: object, cursor: str) -> str:
        """The cursor behind the next message, which cannot be worked on."""
        chosen = self._read(scope)
        numbers, _is_last = self._next(queue_table(settings.database, chosen.queue), chosen, cursor, 1)
        return str(numbers[0]) if numbers else cursor

    def _next(self, table: QueueTable, scope: QueueScope, cursor: str, limit: int) -> tuple[list[int], bool]:
        """The numbers of the next rows, and whether there are no more; few where large bodies would be in memory."""
        after = int(cursor or 0)
        try:
            if self.moves:
                rows = [row for row in table.peek(limit + 1, after=after, body_limit=0) if row.row_version <= scope.until]
                chosen = [row.row_version for row in fitting(rows, limit, lambda row: row.body_length or 0)]
                return chosen, len(chosen) == len(rows)
            numbers = [number for number in table.row_versions(limit + 1, after=after) if number <= scope.until]
        except QueueNotFound:
            # Without its cause, which would make it an error of the database to whoever reads causes.
            raise _gone(scope.name) from None
        return numbers[:limit], len(numbers) <= limit

    def _read(self, scope: object) -> QueueScope:
        return self.scope(QueueScope.from_json(scope))


def _work(settings: Settings, table: QueueTable, scope: QueueScope, row_versions: Sequence[int]) -> int:
    """Move or delete the rows; how many of them were there, and in nobody's hands."""
    if scope.target is None:
        return len(remove_rows(table, row_versions))
    target = queue_table(settings.database, scope.target)
    if not target.exists():
        raise _gone(scope.target.table)
    taken = take_rows(table, row_versions)
    target.send(map(moved_row, taken))
    return len(taken)


def _gone(queue: str) -> OperationRefused:
    return OperationRefused(_("The queue %(queue)s does not exist any more.") % {"queue": queue})


def _unreadable() -> OperationRefused:
    return OperationRefused(_("The scope of this operation cannot be read: cancel it, and ask for another one."))


QUEUE_KINDS: Final = (
    QueueOperation("move_queue", gettext_lazy("Move"), "move_message", moves=True),
    QueueOperation("purge_queue", gettext_lazy("Purge"), "purge_queue", moves=False),
)
