"""The heartbeat of an instance: says that the process lives and how many threads it has, and follows what its row asks for.

The row's `concurrency` is how many messages are handled at once, at most; its `paused` says whether to receive at all. Who changes
them in whatever way changes the running process at its next heartbeat.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from django.db import transaction

from sqlqueue_app.instances import HEARTBEAT_SECONDS, InstanceLease
from sqlqueue_app.messages.errors import LockTimeout
from sqlqueue_app.receiving.receiver import Receiver
from sqlqueue_app.scheduler import BackgroundJob
from sqlqueue_app.tables.connections import connection_of, database_errors, dialect_of_connection

logger = logging.getLogger("sqlqueue.worker")


class Heartbeat:
    """The heartbeats of one instance. `receivers` are those of its endpoint; `following` are those whose number is the
    endpoint's, the main queue's first: callback queues and satellites that were set apart keep their own.
    `unpaused` are those that go on during a pause: the callback queue's, whose replies somebody waits for.
    `on_lost` is called at each beat once another process has taken over.
    """

    def __init__(
        self,
        lease: InstanceLease,
        receivers: Sequence[Receiver],
        following: Sequence[Receiver],
        unpaused: Sequence[Receiver] = (),
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self._lease = lease
        self._receivers = receivers
        self._following = following
        self._pausing = [receiver for receiver in receivers if receiver not in unpaused]
        self._told_paused = False
        self._told = following[0].maximum
        self._on_lost = on_lost

    def job(self) -> BackgroundJob:
        """The beat as a background job."""
        return BackgroundJob(f"heartbeat of {self._lease.endpoint}", HEARTBEAT_SECONDS, self.beat)

    def beat(self) -> None:
        """Renew the row, then do what it asks. Raises DatabaseError; a lock that was not granted is left to the next beat."""
        busy = {receiver.queue: receiver.busy_threads for receiver in self._receivers}
        threads = {receiver.queue: receiver.live_threads for receiver in self._receivers}
        try:
            with database_errors(dialect_of_connection(connection_of(self._lease.alias)), "write the heartbeat"):
                # An idle worker should cost a server few transactions.
                with transaction.atomic(using=self._lease.alias):
                    alive = self._lease.heartbeat(threads, busy)
                    asked = self._lease.asked() if alive else None
                if asked is not None:
                    self._follow_pause(asked.paused)
                    self._follow_concurrency(asked.concurrency)
        except LockTimeout:
            # SQLite, and a handler that takes long.
            return
        if not alive:
            logger.error(
                "the instance of %s was taken over: this process was silent for too long",
                self._lease.endpoint,
                extra={"event": "lease_lost", "endpoint": self._lease.endpoint},
            )
            self._on_lost()

    def _follow_pause(self, wanted: bool) -> None:
        for receiver in self._pausing:
            (receiver.pause if wanted else receiver.resume)()
        if wanted is not self._told_paused:
            self._lease.tell_paused(wanted)
            self._told_paused = wanted

    def _follow_concurrency(self, wanted: int) -> None:
        now = self._following[0].maximum
        if now != self._told:
            # The program itself has changed it: the row follows.
            self._lease.tell_concurrency(now)
            self._told = now
            return
        if wanted == self._told:
            return
        if wanted < 1:
            logger.error(
                "the concurrency of %s cannot be %s: expected at least 1; to receive nothing, stop the worker; it stays %s",
                self._lease.endpoint,
                wanted,
                self._told,
                extra={"event": "concurrency_refused", "endpoint": self._lease.endpoint},
            )
            self._lease.tell_concurrency(self._told)
            return
        for receiver in self._following:
            receiver.change_concurrency(wanted)
        self._told = wanted
