"""Branches of two-phase commit left in doubt: the process died, or lost the database, between prepare and phase two.

The log in the database of the queues holds their outcome, so any worker can finish them, and several at once do no harm.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Final

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from sqlqueue_app.dialects.postgresql import CAN_PREPARE
from sqlqueue_app.messages.errors import DatabaseError
from sqlqueue_app.models import DistributedTransaction
from sqlqueue_app.receiving.background import BackgroundJob
from sqlqueue_app.receiving.endpoint import transaction_log
from sqlqueue_app.tables.connections import aliases_beside, database_errors, dialect_of_connection, errors_of_alias
from sqlqueue_app.tables.two_phase import PreparedBranch, end_in_doubt, prepared_branches

logger = logging.getLogger("sqlqueue.background")

# Branches keep their locks, and the next attempt at the message may wait for them.
EVERY_SECONDS: Final = 5.0
# For a database that handlers may never use.
CONNECT_SECONDS: Final = 5
# Finished transactions are deleted from the log in chunks, which keeps statements short.
_DELETE_BATCH: Final = 500
_MAX_TRANSACTIONS: Final = 20_000


@dataclass(frozen=True, slots=True)
class Resolved:
    """The result of one run: branches committed and rolled back, and branches of a transaction that is still open."""

    committed: int = 0
    rolled_back: int = 0
    open: int = 0


@dataclass(frozen=True, slots=True)
class PendingTransaction:
    """A transaction with unfinished branches.

    `queue` is set if it is in the log, so its branches are committed. Otherwise its message is being handled, or its branches
    will be rolled back. `prepared` are those in reachable databases, `unavailable` the databases of the others.
    """

    id: uuid.UUID
    since: datetime
    queue: str
    prepared: tuple[PreparedBranch, ...]
    unavailable: tuple[str, ...] = ()


class InDoubt:
    """Finishes branches in doubt. One object serves all threads of a process and keeps what it has logged; others may read."""

    def __init__(self, alias: str) -> None:
        """`alias` is that of the queues. Does not connect."""
        self._alias = alias
        self._log = transaction_log(alias)
        self._lock = threading.Lock()
        # The unavailable databases, and the level at which each was logged.
        self._unavailable: dict[str, int] = {}

    def jobs(self) -> list[BackgroundJob]:
        """`end_branches` as a background job; no job if no other database can have branches."""
        ending = BackgroundJob("branches in doubt", EVERY_SECONDS, self.end_branches, retries_silently=True)
        return [ending] if self._can_have_branches else []

    @cached_property
    def _others(self) -> list[str]:
        return [other for other in aliases_beside(self._alias) if connections[other].vendor in CAN_PREPARE]

    @property
    def _can_have_branches(self) -> bool:
        return bool(self._others) and self._log.is_here

    def end_branches(self) -> Resolved:
        """Finish branches in doubt, and forget finished transactions. Logs unavailable databases once, and retries them later.

        DatabaseError if the database of the queues cannot be read. Do not call it inside a transaction.
        """
        with errors_of_alias(self._alias, "read the log of distributed transactions"):
            rows = DistributedTransaction.objects.using(self._alias).order_by("decided_at")
            recorded = list(rows.values_list("id", "branches")[:_MAX_TRANSACTIONS])
        # Read after the log: a logged transaction without a branch now will never have one again.
        prepared = self._prepared_by_alias({alias for _, aliases in recorded for alias in aliases})
        done = self._resolve([branch for branches in prepared.values() for branch in branches])
        self._forget(recorded, prepared)
        return done

    def prepared(self) -> list[PreparedBranch]:
        """The prepared branches in reachable databases; some belong to messages in progress.

        Connects to no other database before a worker lets others join. DatabaseError if that of the queues cannot be read.
        """
        if not self._can_have_branches or not self._log.has_coordinator():
            return []
        return [branch for branches in self._prepared_by_alias().values() for branch in branches]

    def pending(self) -> list[PendingTransaction]:
        """The transactions with unfinished branches, oldest first, including messages in progress. Takes no locks.

        Waits for unavailable databases up to `CONNECT_SECONDS`. DatabaseError if the database of the queues cannot be read.
        """
        if not self._can_have_branches or not self._log.has_coordinator():
            return []
        rows = DistributedTransaction.objects.using(self._alias).order_by("decided_at", "pk")[:_MAX_TRANSACTIONS]
        recorded = {row.id: row for row in rows}
        prepared = self._prepared_by_alias({alias for row in recorded.values() for alias in row.branches})
        found: dict[uuid.UUID, PendingTransaction] = {}
        by_transaction: defaultdict[uuid.UUID, list[PreparedBranch]] = defaultdict(list)
        for branch in (each for branches in prepared.values() for each in branches):
            by_transaction[branch.id.transaction].append(branch)
        for unique, branches in by_transaction.items():
            since = min(each.prepared_at for each in branches)
            queue = recorded[unique].queue if unique in recorded else ""
            found[unique] = PendingTransaction(unique, since, queue, tuple(branches))
        for unique, row in recorded.items():
            if unavailable := tuple(alias for alias in row.branches if alias not in prepared):
                known = found.get(unique, PendingTransaction(unique, row.decided_at, row.queue, ()))
                found[unique] = replace(known, unavailable=unavailable)
        return sorted(found.values(), key=lambda each: each.since)

    def _prepared_by_alias(self, known: Collection[str] = ()) -> dict[str, list[PreparedBranch]]:
        if not self._can_have_branches:
            return {}
        return {alias: branches for alias in self._others if (branches := self._prepared(alias, known)) is not None}

    def _prepared(self, alias: str, known: Collection[str]) -> list[PreparedBranch] | None:
        try:
            with database_errors(dialect_of_connection(connections[alias]), f"connect to {alias!r}"):
                _connect_in_bounded_time(connections[alias])
            found = prepared_branches(alias, self._log.coordinator())
        except DatabaseError as error:
            # Few handlers use every database of the settings: warn only for one that the log names.
            self._log_unavailable(alias, logging.WARNING if alias in known else logging.INFO, error)
            connections[alias].close()
            return None
        with self._lock:
            self._unavailable.pop(alias, None)
        return found

    def _log_unavailable(self, alias: str, level: int, error: DatabaseError) -> None:
        """Log it once, and again when a transaction turns out to wait for it."""
        with self._lock:
            if self._unavailable.get(alias, logging.NOTSET) >= level:
                return
            self._unavailable[alias] = level
        text = "the database %r cannot be queried for branches in doubt: %s"
        logger.log(level, text, alias, error, extra={"event": "branches_not_seen"})

    def _resolve(self, branches: list[PreparedBranch]) -> Resolved:
        decided = {branch.id.transaction: self._log.is_committed(branch.id.transaction) for branch in branches}
        committed = rolled_back = still_open = 0
        for branch in branches:
            is_committed = decided[branch.id.transaction]
            if is_committed is None:
                still_open += 1
            elif end_in_doubt(branch, committed=is_committed):
                committed += is_committed
                rolled_back += not is_committed
        return Resolved(committed, rolled_back, still_open)

    def _forget(self, recorded: list[tuple[uuid.UUID, list[str]]], prepared: dict[str, list[PreparedBranch]]) -> None:
        waiting = {branch.id.transaction for branches in prepared.values() for branch in branches}
        ended = [id_ for id_, aliases in recorded if id_ not in waiting and all(alias in prepared for alias in aliases)]
        for first in range(0, len(ended), _DELETE_BATCH):
            DistributedTransaction.objects.using(self._alias).filter(id__in=ended[first : first + _DELETE_BATCH]).delete()


def _connect_in_bounded_time(connection: BaseDatabaseWrapper) -> None:
    """Connect with a short timeout, because a stopping worker waits for its jobs. Raises the driver's errors."""
    if connection.connection is not None:
        return
    given = connection.settings_dict
    connection.settings_dict = {**given, "OPTIONS": {"connect_timeout": CONNECT_SECONDS, **given["OPTIONS"]}}
    try:
        connection.ensure_connection()
    finally:
        connection.settings_dict = given
