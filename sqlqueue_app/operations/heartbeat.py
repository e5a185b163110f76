"""The heartbeat of an instance: says that the process lives and how many threads it has, and follows what its row asks for.

The row's `concurrency` is how many messages are handled at once, at most; its `paused` says whether to receive at all. Who changes
them, with `set_concurrency`, `pause` and `resume` or in any other way, changes the running worker at its next heartbeat.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

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
                alive = self._lease.heartbeat(threads, busy)
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
            self._on_lost()

    def _follow(self) -> None:
        asked = self._lease.asked()
        if asked is not None:
            self._follow_pause(asked.paused)
            self._follow_concurrency(asked.concurrency)

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


def pause(endpoint: str, *, host: str | None = None, pid: int | None = None) -> int:
    """Ask the running processes of an endpoint to receive nothing more until `resume`; returns how many were asked.

    They follow at their next heartbeat, so within 10 seconds: messages that are being handled are finished, then main queue and
    satellites are left alone. Callback queues are not: somebody waits for their replies. Background work goes on, schedules among
    it. A process that is started later receives. `host` and `pid` choose among the processes; ConfigurationError if there is none.
    """
    return _ask(endpoint, host, pid, paused=True)


def resume(endpoint: str, *, host: str | None = None, pid: int | None = None) -> int:
    """Ask the processes of an endpoint to receive again; as `pause`."""
    return _ask(endpoint, host, pid, paused=False)


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
    return _ask(endpoint, host, pid, concurrency=maximum)


def _ask(endpoint: str, host: str | None, pid: int | None, **fields: object) -> int:
    asked = _instances(endpoint, host, pid).update(**fields)
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
