"""The other databases of a project in the receive transaction: two-phase commit, the database of the queues decides (design 6.5).

Phase one: the transaction is recorded in the log, within itself; then each other database that was written to prepares its branch.
The commit of the receive is the decision. Phase two: the branches are committed. Who dies in between leaves branches, which whoever
looks next ends as the log says (operations/in_doubt.py). An object serves one thread.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence

from django.db import connections

from sqlqueue_app.databases.two_phase import CAN_PREPARE, BranchId
from sqlqueue_app.messages.errors import DatabaseError
from sqlqueue_app.tables.branches import commit_prepared, end_in_doubt, prepared_branches, rollback_prepared
from sqlqueue_app.tables.joined_alias import JoinedAlias
from sqlqueue_app.tables.refused_alias import RefusedAlias
from sqlqueue_app.tables.transaction_log import TransactionLog
from sqlqueue_app.tables.watched_connection import Hooks

logger = logging.getLogger("sqlqueue.receive")


class NoOtherAliases:
    """For endpoints whose receive transaction is one of one database."""

    def begin_message(self) -> None:
        """The message may begin to work."""

    def end_message(self) -> None:
        """The message is done but for the commit."""

    def undo_message(self) -> None:
        """Undo the work of the message."""

    def check_usable(self) -> None:
        """DoomedTransaction if a commit would not commit."""

    def prepare(self) -> bool:
        """Phase one; whether `commit` will have anything to do. What it raises has left nothing prepared."""
        return False

    def commit(self) -> Hooks:
        """Phase two, after the decision: the `on_commit` hooks of the other databases. Never raises."""
        return []

    def ask_log(self) -> None:
        """In place of `commit`, where the commit of the receive has raised an error: do as it has turned out. Never raises."""

    def abandon(self) -> None:
        """Roll back what is not prepared. Never raises."""


class OtherAliases(NoOtherAliases):
    """The other databases: those that can prepare a transaction join, the rest are there to be read."""

    def __init__(self, aliases: Sequence[str], log: TransactionLog, queue: str) -> None:
        self._log = log
        self._queue = queue
        can = {alias: connections[alias].vendor in CAN_PREPARE for alias in aliases}
        before_use = self._end_left if log.has_one_writer else None
        self._joined = [JoinedAlias(alias, before_use=before_use) for alias, joins in can.items() if joins]
        self._refused = [RefusedAlias(alias) for alias, joins in can.items() if not joins]
        self._hooks: Hooks = []
        self._prepared: list[tuple[str, BranchId]] = []

    def begin_message(self) -> None:
        for each in self._joined:
            each.begin_message()
        for other in self._refused:
            other.begin_message()

    def end_message(self) -> None:
        for each in self._joined:
            self._hooks += each.end_message()
        for other in self._refused:
            other.end_message()

    def _end_left(self, alias: str) -> None:
        """End the branches that the dead have left on an alias, before the work of a message may have to wait for their locks.

        Nobody else could, where there is one writer: this message is, and whoever wants to ask the log waits for it.
        """
        for branch in prepared_branches(alias, self._log.coordinator()):
            end_in_doubt(branch, committed=self._log.knows(branch.id.transaction))

    def undo_message(self) -> None:
        for each in self._joined:
            each.undo_message()

    def check_usable(self) -> None:
        for each in self._joined:
            each.check_usable()

    def prepare(self) -> bool:
        self.end_message()
        begun = [each for each in self._joined if each.begun]
        try:
            writers = [each for each in begun if each.has_written()]
            for each in begun:
                if each not in writers:
                    self._hooks += each.commit_plainly()
            if writers:
                self._prepare(writers)
        except BaseException:
            self._roll_back_prepared()
            self.abandon()
            raise
        return bool(self._prepared or self._hooks)

    def _prepare(self, writers: Sequence[JoinedAlias]) -> None:
        coordinator, transaction = self._log.coordinator(), uuid.uuid4()
        self._log.record(transaction, self._queue, [each.alias for each in writers])
        for number, each in enumerate(writers):
            branch = BranchId(coordinator, transaction, number)
            self._hooks += each.prepare(branch)
            self._prepared.append((each.alias, branch))

    def commit(self) -> Hooks:
        hooks, self._hooks = self._hooks, []
        prepared, self._prepared = self._prepared, []
        for alias, branch in prepared:
            try:
                commit_prepared(alias, branch)
            except DatabaseError as error:
                self._in_doubt(branch, error, "the message is handled, this is committed as soon as a worker reaches the database")
        return hooks

    def ask_log(self) -> None:
        self.abandon()
        # Those of which nothing is known yet are left to who looks later: the next message must neither commit nor undo them.
        prepared, self._prepared = self._prepared, []
        if not prepared:
            return
        try:
            committed = self._log.is_committed(prepared[0][1].transaction)
        except DatabaseError as error:
            for _, branch in prepared:
                self._in_doubt(branch, error, "whether its transaction was committed is asked again")
            return
        if committed is None:
            return
        self._prepared = prepared
        if committed:
            self.commit()
        else:
            self._roll_back_prepared()

    def _roll_back_prepared(self) -> None:
        prepared, self._prepared = self._prepared, []
        for alias, branch in prepared:
            try:
                rollback_prepared(alias, branch)
            except DatabaseError as error:
                self._in_doubt(branch, error, "it is rolled back as soon as a worker reaches the database")

    def abandon(self) -> None:
        self._hooks = []
        for each in self._joined:
            each.abandon()
        for other in self._refused:
            other.end_message()

    def _in_doubt(self, branch: BranchId, error: DatabaseError, then: str) -> None:
        text = "the branch %s is left prepared: %s; %s"
        logger.warning(text, branch, error, then, extra={"event": "branch_in_doubt", "queue": self._queue})


NO_OTHERS = NoOtherAliases()
