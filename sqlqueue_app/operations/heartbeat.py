"""The heartbeat of an instance: says that the process lives and how many threads it has, and follows what its row asks for.

The row's `concurrency` is how many messages are handled at once, at most. Who changes the number there, with `set_concurrency` or
in any other way, changes the running worker at its next heartbeat.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from django.db.models import QuerySet

from sqlqueue_app.instances import HEARTBEAT_SECONDS, InstanceLease, managed_alias
from sqlqueue_app.messages.errors import ConfigurationError, LockTimeout
from sqlqueue_app.models import Instance
from sqlqueue_app.receiving.receiver import Receiver
from sqlqueue_app.scheduler import BackgroundJob
from sqlqueue_app.tables.connections import connection_of, database_errors, dialect_of_connection

logger = logging.getLogger("sqlqueue.worker")


class Heartbeat:
    """The heartbeats of one instance. `receivers` are those of its endpoint; `following` are those whose number is the
    endpoint's, the main queue's first: callback queues and satellites that were set apart keep their own.
    """

    def __init__(self, lease: InstanceLease, receivers: Sequence[Receiver], following: Sequence[Receiver]) -> None:
        self._lease = lease
        self._receivers = receivers
        self._following = following
        self._told = following[0].maximum

    def job(self) -> BackgroundJob:
        """The beat as a background job."""
        return BackgroundJob(f"heartbeat of {self._lease.endpoint}", HEARTBEAT_SECONDS, self.beat)

    def beat(self) -> None:
        """Renew the row, then take over its number. Raises DatabaseError; a lock that was not granted is left to the next beat."""
        threads = {receiver.queue: receiver.live_threads for receiver in self._receivers}
        try:
            with database_errors(dialect_of_connection(connection_of(self._lease.alias)), "write the heartbeat"):
                alive = self._lease.heartbeat(threads)
                if alive:
                    self._follow()
        except LockTimeout:
            # SQLite, and a handler that takes long.
            return
        if not alive:
            logger.error(
                "the instance of %s was taken over: this process was silent for too long",
                self._lease.endpoint,
                extra={"event": "lease_lost", "endpoint": self._lease.endpoint},
            )

    def _follow(self) -> None:
        now = self._following[0].maximum
        if now != self._told:
            # The program itself has changed it: the row follows.
            self._lease.tell_concurrency(now)
            self._told = now
            return
        wanted = self._lease.concurrency()
        if wanted is None or wanted == self._told:
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


def set_concurrency(endpoint: str, maximum: int, *, host: str | None = None, pid: int | None = None) -> int:
    """Ask the running processes of an endpoint to handle at most `maximum` messages at once, each; returns how many were asked.

    They follow at their next heartbeat, so within 10 seconds; a restart goes back to the settings. `host` and `pid` choose among
    the processes. ConfigurationError for a number below 1, and if there is no such process.
    """
    if isinstance(maximum, bool) or maximum < 1:
        raise ConfigurationError(
            f"the concurrency of {endpoint!r} cannot be {maximum!r}: expected an integer of at least 1; "
            "to receive nothing, stop the worker"
        )
    asked = _instances(endpoint, host, pid).update(concurrency=maximum)
    if not asked:
        which = "".join(f", {name} {value!r}" for name, value in (("host", host), ("process", pid)) if value is not None)
        raise ConfigurationError(f"no process of endpoint {endpoint!r}{which} is registered: see sqlqueue_status")
    return asked


def _instances(endpoint: str, host: str | None, pid: int | None) -> QuerySet[Instance]:
    chosen = Instance.objects.using(managed_alias()).filter(endpoint=endpoint)
    if host is not None:
        chosen = chosen.filter(host=host)
    if pid is not None:
        chosen = chosen.filter(pid=pid)
    return chosen
