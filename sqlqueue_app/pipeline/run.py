"""A run of the pipeline from its start to its end; what `run_sqlqueue_pipeline` does."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Final

from sqlqueue_app.conf import Settings
from sqlqueue_app.messages.errors import QueueNotFound, SqlQueueError
from sqlqueue_app.models import PipelineRun, RunState
from sqlqueue_app.operations.failure_lookup import read_all_failures
from sqlqueue_app.pipeline.compacting import compact, retire_old
from sqlqueue_app.pipeline.copying import ErrorQueue
from sqlqueue_app.pipeline.errors import BatchLost, PipelineError
from sqlqueue_app.pipeline.fates import Fates
from sqlqueue_app.pipeline.lake import check_local_lake, open_lake, open_storage
from sqlqueue_app.pipeline.manifest import Manifest, Step, no_step
from sqlqueue_app.pipeline.options import PipelineOptions, PipelineQueue, audit_queues, check_aliases, error_queues
from sqlqueue_app.pipeline.peeking import PeekedQueue
from sqlqueue_app.pipeline.reading import reader_of
from sqlqueue_app.pipeline.runs import Heartbeats, begin_run, end_run
from sqlqueue_app.pipeline.switching import delete_copied
from sqlqueue_app.pipeline.taking import AuditQueue
from sqlqueue_app.pipeline.tools import Tools
from sqlqueue_app.receiving.stopping import StopSignal
from sqlqueue_app.spark.failures import spark_errors
from sqlqueue_app.spark.session import spark_running
from sqlqueue_app.tables.clock import database_now

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("sqlqueue.pipeline")

# How often in a row a batch may be lost to somebody else before the run gives up.
_LOST_AT_MOST: Final = 10
Progress = Callable[["Done"], None]


@dataclass(slots=True)
class Done:
    """What a run has done so far."""

    batches: int = 0
    messages: int = 0
    failures: int = 0
    unreadable: int = 0
    bytes: int = 0
    finished: int = 0
    """Batches of a run before this one, which had been committed and were not published."""
    fates: int = 0
    """Copies of failed messages of which something has become."""
    compacted: int = 0
    retired: int = 0
    """How many files there are fewer."""
    state: str = str(RunState.RUNNING)
    problems: list[str] = field(default_factory=list)
    """Queues that cannot be read, or not up to their end."""


def run_pipeline(
    settings: Settings,
    options: PipelineOptions,
    stop: StopSignal,
    *,
    progress: Progress = lambda _: None,
    step: Step = no_step,
) -> Done:
    """Take what is in the audit queues (with `peek_only`: copy it), copy what is new in the error queues; once, or `continuous`.

    Ends between two batches when `stop` is set. `progress` is called after each batch, `step` at each step of one. Raises
    PipelineError and ConfigurationError, in words; what was not committed then is in the queues still.
    """
    alias = check_aliases(settings)
    check_local_lake(options.lake)
    run = begin_run(alias, master=options.master, lake=options.lake, options=options.shown())
    done = Done()
    try:
        with Heartbeats(alias, run), _session(options) as session, spark_errors("run the pipeline"):
            _Run(settings, options, stop, alias, run, session, done, progress, step).work()
    except BaseException as error:
        end_run(alias, run, RunState.FAILED, str(error) or type(error).__name__)
        raise
    done.state = str(RunState.STOPPED if stop.is_set() else RunState.ENDED)
    end_run(alias, run, RunState(done.state))
    return done


@contextmanager
def _session(options: PipelineOptions) -> Iterator[SparkSession]:
    """Spark, which takes SIGINT for itself when it starts: it is given back."""
    in_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT) if in_main else None
    with spark_running(options.master, options.spark) as session:
        if before is not None:
            signal.signal(signal.SIGINT, before)
        yield session


class _Run:
    def __init__(
        self,
        settings: Settings,
        options: PipelineOptions,
        stop: StopSignal,
        alias: str,
        run: PipelineRun,
        session: SparkSession,
        done: Done,
        progress: Progress,
        step: Step,
    ) -> None:
        self._settings = settings
        self._options = options
        self._stop = stop
        self._done = done
        self._progress = progress
        storage = open_storage(options.lake, session)
        manifest = Manifest(alias, open_lake(storage), storage, run, step)
        self._tools = Tools(session, alias, storage, manifest, run, reader_of(session, alias), step)
        self._fates = Fates(self._tools)
        self._peeked: dict[str, PeekedQueue] = {}
        self._lost = 0
        self._tidied_on: date | None = None

    def work(self) -> None:
        """Rounds until there is nothing left, or until the stop."""
        self._done.finished = self._tools.manifest.recover()
        while not self._stop.is_set():
            self._round()
            self._tidy_up()
            if not self._options.continuous or self._stop.wait(self._options.every_seconds):
                return

    def _round(self) -> None:
        self._done.problems.clear()
        for queue in audit_queues(self._settings):
            self._each(queue, self._take_all)
        read_all_failures(self._settings)
        for queue in error_queues(self._settings):
            self._each(queue, self._copy)
        if not self._stop.is_set():
            self._done.fates += self._fates.learn()

    def _tidy_up(self) -> None:
        """Once a day in a run that goes on, else at its end."""
        today = database_now(self._tools.alias).date()
        if self._stop.is_set() or today == self._tidied_on:
            return
        self._tidied_on = today
        try:
            if self._options.keep_days is not None:
                self._done.retired += retire_old(self._tools, self._options.keep_days)
            if self._options.compact:
                self._done.compacted += compact(self._tools)
        except BatchLost as error:
            logger.warning("%s", error, extra={"event": "pipeline_batch_lost"})

    def _each(self, queue: PipelineQueue, work: Callable[[PipelineQueue], None]) -> None:
        """One queue; that its table is missing is told, and keeps nobody from the others."""
        if self._stop.is_set():
            return
        try:
            work(queue)
        except QueueNotFound as error:
            self._done.problems.append(str(error))
            logger.warning("%s", error, extra={"event": "pipeline_queue_missing", "queue": queue.name})

    def _take_all(self, queue: PipelineQueue) -> None:
        audit = self._audit_queue(queue)
        while not self._stop.is_set():
            try:
                taken = audit.take(self._options.batch_size)
            except BatchLost as error:
                self._lose(error, queue)
                continue
            self._lost = 0
            if taken is None:
                break
            self._done.batches += 1
            self._done.messages += taken.rows - taken.unreadable
            self._done.unreadable += taken.unreadable
            self._done.bytes += taken.bytes
            self._progress(self._done)
            logger.info(
                "%s %s messages of %s into the lake",
                "copied" if self._options.peek_only else "took",
                taken.rows,
                queue.name,
                extra={"event": "pipeline_batch", "queue": queue.name},
            )
            if not taken.was_full:
                break
        if isinstance(audit, PeekedQueue) and audit.left is not None:
            self._done.problems.append(audit.left)
            logger.warning("%s", audit.left, extra={"event": "pipeline_unsettled", "queue": queue.name})

    def _audit_queue(self, queue: PipelineQueue) -> AuditQueue | PeekedQueue:
        if not self._options.peek_only:
            delete_copied(self._tools, queue.table, queue.name, self._options.batch_size, self._stop)
            return AuditQueue(self._tools, queue.table, queue.name)
        if queue.name not in self._peeked:
            self._peeked[queue.name] = PeekedQueue(self._tools, queue.table, queue.name, self._stop)
        return self._peeked[queue.name]

    def _lose(self, error: SqlQueueError, queue: PipelineQueue) -> None:
        self._lost += 1
        logger.warning("%s", error, extra={"event": "pipeline_batch_lost", "queue": queue.name})
        if self._lost >= _LOST_AT_MOST:
            raise PipelineError(
                f"{self._lost} batches in a row were lost to somebody who takes from {queue.table.qualified}: nothing may receive "
                "from a queue that the pipeline takes from, so stop that receiver"
            ) from error

    def _copy(self, queue: PipelineQueue) -> None:
        errors = ErrorQueue(self._tools, queue.table, queue.name)
        while not self._stop.is_set():
            copied = errors.copy(self._options.batch_size)
            if copied is None:
                return
            self._done.batches += 1
            self._done.failures += copied.rows - copied.unreadable
            self._done.unreadable += copied.unreadable
            self._done.bytes += copied.bytes
            self._progress(self._done)
            logger.info(
                "copied %s messages of %s into the lake",
                copied.rows,
                queue.name,
                extra={"event": "pipeline_copied", "queue": queue.name},
            )
