"""Counting every queue every 10 seconds, by one live worker for all, into the table of queue samples."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from functools import partial
from typing import Final

from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Now

from sqlqueue_app.conf import Settings
from sqlqueue_app.instances import is_dead, managed_alias
from sqlqueue_app.messages.errors import TransientError
from sqlqueue_app.models import Instance, QueueSample
from sqlqueue_app.operations.claims import claim
from sqlqueue_app.operations.delayed_status import DelayedStatus, read_delayed
from sqlqueue_app.operations.known_queues import KnownQueue, QueueKind, known_queues
from sqlqueue_app.operations.queue_looks import QueueStatus, read_queues
from sqlqueue_app.operations.sample_storage import FINEST, complete_minute, keep_house, write_samples
from sqlqueue_app.scheduler import BackgroundJob
from sqlqueue_app.tables.clock import database_now
from sqlqueue_app.tables.connections import connection_of, database_errors, dialect_of_connection
from sqlqueue_app.tables.well_known import DELAYED_SUFFIX

# Twice in the time of a sample, so that none is missed where a look comes a little early and the next a little late.
LOOK_SECONDS: Final = FINEST.seconds / 2


class Sampling:
    """Takes samples of the queues of the settings. One object serves one thread at a time; others may compete with it.

    Main queues, satellites, error and audit queues, tables of delayed messages, and the callback queues of live instances.
    `now` is the clock of the managed tables' database unless another is handed in; `clock` measures seconds.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        now: Callable[[], datetime] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._alias = managed_alias()
        self._now = now or partial(database_now, self._alias)
        # Processes with the same queues count for each other; another project on this database has a claim of its own.
        names = "\n".join(sorted([*(queue.name for queue in self._queues([])), *settings.senders]))
        self._claim = f"queue samples {hashlib.sha256(names.encode()).hexdigest()[:16]}"
        self._looked_at: datetime | None = None
        self._clock = clock
        self._next_look: float | None = None
        self._kept_house: datetime | None = None

    def job(self) -> BackgroundJob:
        """`sample` as a background job."""
        return BackgroundJob("queue samples", LOOK_SECONDS, self._run)

    def _run(self) -> None:
        if self._next_look is not None and self._clock() < self._next_look:
            return
        try:
            self.sample()
        except TransientError:
            # The database is away, or (SQLite) written to by somebody who takes long: a gap in a chart.
            return

    def sample(self) -> int:
        """Count every queue unless this time's samples are taken; returns how many were written. Raises DatabaseError.

        A queue that cannot be counted is left out: its state is in the status. No row is taken, locked or waited for, and no long
        queue is counted to its end.
        """
        with database_errors(dialect_of_connection(connection_of(self._alias)), "write queue samples"):
            with self._one_look():
                now = self._now()
                begin = FINEST.begin_of(now)
                # The clock of the database gives whole seconds: a second too early is asked once more, too late would be a gap.
                self._next_look = self._clock() + FINEST.seconds - (now - begin).total_seconds() - 1.0
                if begin == self._looked_at:
                    return 0
                if not claim(self._alias, self._claim, begin):
                    self._looked_at = begin
                    return 0
                samples = list(self._count(begin, now))
                write_samples(self._alias, samples)
            self._looked_at = begin
            # Nothing is complete before the next minute is; who has not seen this one through tries again.
            minute = complete_minute(now)
            if minute != self._kept_house:
                keep_house(self._alias, now)
                self._kept_house = minute
        return len(samples)

    def _one_look(self) -> AbstractContextManager[object]:
        """One transaction for all statements of a look: an idle worker should cost a server few.

        None on SQLite, where a transaction of ours writes from its begin, and handlers would wait for the counting.
        """
        if connection_of(self._alias).vendor == "sqlite":
            return nullcontext()
        return transaction.atomic(using=self._alias)

    def _count(self, begin: datetime, now: datetime) -> Iterator[QueueSample]:
        found = read_queues(self._settings, self._queues(self._live_instances()), now=now)
        for sample in filter(None, (*map(_of_queue, found), *map(_of_delayed, read_delayed(self._settings)))):
            sample.taken_at, sample.seconds, sample.most_waiting = begin, FINEST.seconds, sample.waiting
            yield sample

    def _queues(self, live: list[Instance]) -> list[KnownQueue]:
        leased = {instance.callback_queue for instance in live}
        found = known_queues(self._settings, live)
        return [queue for queue in found if queue.kind is not QueueKind.CALLBACK or queue.address.table in leased]

    def _live_instances(self) -> list[Instance]:
        rows = Instance.objects.using(self._alias).filter(~Q(callback_queue=None), endpoint__in=list(self._settings.senders))
        return [row for row in rows.annotate(database_now=Now()) if not is_dead(row, row.database_now)]


def _of_queue(found: QueueStatus) -> QueueSample | None:
    depth = found.depth
    if depth is None:
        return None
    age = found.head_age.age if found.head_age is not None else None
    return QueueSample(
        queue=found.name,
        waiting=depth.waiting,
        expired=depth.expired,
        head_age_seconds=None if age is None else age.total_seconds(),
        exact=depth.exact,
        written=found.written,
    )


def _of_delayed(found: DelayedStatus) -> QueueSample | None:
    if found.waiting is None:
        return None
    name = found.endpoint + DELAYED_SUFFIX
    return QueueSample(queue=name, waiting=found.waiting, overdue=found.overdue or 0, exact=found.exact)
