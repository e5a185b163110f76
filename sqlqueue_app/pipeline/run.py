"""A run of the pipeline from start to end: the work of the command `run_sqlqueue_pipeline`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Final

from django.db import connections

from sqlqueue_app.conf import PipelineSettings, Settings
from sqlqueue_app.conf.kinds import has_password
from sqlqueue_app.failures.queries import read_all_failures
from sqlqueue_app.lake.data_files import local_path
from sqlqueue_app.messages.errors import ConfigurationError, QueueNotFound, SqlQueueError, counted
from sqlqueue_app.models import PipelineRun, RunState, managed_alias
from sqlqueue_app.pipeline.compacting import compact, retire_old
from sqlqueue_app.pipeline.copying import ErrorQueueCopier, OutcomeTracker
from sqlqueue_app.pipeline.manifest import Commit, Heartbeats, Manifest, Step, begin_run, end_run, no_step
from sqlqueue_app.pipeline.storage import BatchLost, PipelineError, check_local_lake, open_lake, open_storage
from sqlqueue_app.pipeline.taking import AuditQueueCopier, AuditQueueTaker, BatchResult, delete_copied
from sqlqueue_app.pipeline.tools import Tools, reader_of
from sqlqueue_app.receiving.stopping import StopSignal
from sqlqueue_app.spark.java import java_home
from sqlqueue_app.spark.session import WarmSession, spark_errors
from sqlqueue_app.status.queues import QueueKind, address_book_of, known_queues, name_of_queue, pipeline_addresses, table_key
from sqlqueue_app.tables.connections import database_now
from sqlqueue_app.tables.queue import QueueTable, queue_table

logger = logging.getLogger("sqlqueue.pipeline")
# Batches lost in a row to another consumer before the run gives up.
_MAX_LOST_BATCHES: Final = 10
ProgressCallback = Callable[["PipelineProgress"], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOptions:
    """All options of a run. Durations are in seconds."""

    lake: str
    master: str = "local[*]"
    continuous: bool = False
    peek_only: bool = False
    keep_days: int | None = None
    compact: bool = False
    batch_size: int = 500_000
    every_seconds: float = 10.0
    spark: Mapping[str, str] = field(default_factory=dict, repr=False)

    def shown(self) -> dict[str, Any]:
        """The options stored with the run: no Spark settings, because they contain keys."""
        return {name: getattr(self, name) for name in ("continuous", "peek_only", "keep_days", "compact", "batch_size")}


_OF_SETTINGS: Final = ("lake", "master", "peek_only", "keep_days", "batch_size", "every_seconds", "spark")


def options_of(settings: Settings, **given: Any) -> PipelineOptions:
    """The options of the settings, overridden by arguments that are not None.

    A local lake becomes an absolute path. Raises ConfigurationError if no lake is configured or its URL contains a password.
    """
    configured = settings.pipeline or PipelineSettings()
    chosen: dict[str, Any] = {name: getattr(configured, name) for name in _OF_SETTINGS}
    chosen |= {name: value for name, value in given.items() if value is not None}
    if not chosen["lake"]:
        raise ConfigurationError(
            'no lake is configured: pass --lake PATH, or set SQLQUEUE["PIPELINE"]["LAKE"] to a folder or a URL'
        )
    if has_password(chosen["lake"]):
        raise ConfigurationError(
            "the URL of the lake contains a password, which would be stored with every run: pass the keys of the store to Spark, "
            'as spark.hadoop.fs.s3a.secret.key in SQLQUEUE["PIPELINE"]["SPARK"], or in the environment'
        )
    if (folder := local_path(chosen["lake"])) is not None:
        # Recorded with each run, for sites that run in another working directory.
        chosen["lake"] = str(folder.absolute())
    return PipelineOptions(**chosen)


@dataclass(frozen=True, slots=True)
class PipelineQueue:
    """A queue that the pipeline reads, by its name in the lake."""

    name: str
    table: QueueTable


def queues_of(settings: Settings, kind: QueueKind) -> list[PipelineQueue]:
    """The audit or error queues of the pipeline settings, else of all endpoints; each table once."""
    book = address_book_of(settings)
    found = pipeline_addresses(settings, kind, book)
    return [PipelineQueue(name_of_queue(book, each), queue_table(settings.database, each)) for each in found]


def _check_taken_queues(settings: Settings) -> None:
    """Raise ConfigurationError for an audit queue of the settings whose messages are needed: an endpoint's own, or failed ones."""
    needed = {table_key(each.address): str(each.kind) for each in known_queues(settings) if each.kind is not QueueKind.AUDIT}
    needed |= {table_key(each.table.address): str(QueueKind.ERROR) for each in queues_of(settings, QueueKind.ERROR)}
    for queue in queues_of(settings, QueueKind.AUDIT):
        if (kind := needed.get(table_key(queue.table.address))) is not None:
            raise ConfigurationError(
                f'SQLQUEUE["PIPELINE"]["AUDIT_QUEUES"] names {queue.name!r}, which is a queue of the kind {kind}: the pipeline '
                "would remove its messages; name audit queues only, or copy with PEEK_ONLY"
            )


def check_aliases(settings: Settings) -> str:
    """The alias of both queues and manifest. Raises ConfigurationError if they are in different databases."""
    managed = managed_alias()
    if managed != settings.database:
        raise ConfigurationError(
            f"the queues are in the database {settings.database!r} and the tables of the app in {managed!r}, but the pipeline "
            'writes both in one transaction: add "sqlqueue_app.routers.SqlQueueRouter" to DATABASE_ROUTERS, and migrate'
        )
    return managed


@dataclass(slots=True)
class PipelineProgress:
    """The counters of a run; the command prints them as JSON under these names."""

    batches: int = 0
    messages: int = 0
    failures: int = 0
    unreadable: int = 0
    bytes: int = 0
    finished: int = 0
    """Batches that an earlier run committed but did not publish."""
    fates: int = 0
    """Copies of failed messages whose outcome changed."""
    compacted: int = 0
    retired: int = 0
    """Files removed by compaction (`compacted`) and retention (`retired`)."""
    state: str = str(RunState.RUNNING)
    problems: list[str] = field(default_factory=list)
    """Queues that could not be read, or not to the end."""


def run_pipeline(
    settings: Settings,
    options: PipelineOptions,
    stop: StopSignal,
    *,
    progress: ProgressCallback = lambda _: None,
    step: Step = no_step,
    warm: WarmSession | None = None,
) -> PipelineProgress:
    """Take the rows of audit queues (with `peek_only`: copy them) and copy new rows of error queues, once or `continuous`.

    Ends between two batches when `stop` is set. `progress` is called after each batch, `step` at each step of one. Spark starts
    with the first batch; it ends with the run, unless it is the `warm` session of the caller. Raises PipelineError and
    ConfigurationError; whatever was not committed is still in the queues.
    """
    alias = check_aliases(settings)
    if not options.peek_only:
        _check_taken_queues(settings)
    check_local_lake(options.lake)
    java_home()
    run = begin_run(alias, master=options.master, lake=options.lake, options=options.shown())
    done = PipelineProgress()
    try:
        with Heartbeats(alias, run), _session(options, warm) as session, spark_errors("run the pipeline"):
            _Run(settings, options, stop, alias, run, session, done, progress, step).work()
    except BaseException as error:
        connections[alias].close()  # if it was lost, a new one records the reason
        end_run(alias, run, RunState.FAILED, str(error) or type(error).__name__)
        raise
    done.state = str(RunState.STOPPED if stop.is_set() else RunState.ENDED)
    end_run(alias, run, RunState(done.state))
    return done


def warm_session(options: PipelineOptions) -> WarmSession:
    """A session with the settings of the run, for several runs of one process. The caller stops it."""
    return WarmSession(options.master, options.spark)


@contextmanager
def _session(options: PipelineOptions, given: WarmSession | None) -> Iterator[WarmSession]:
    session = given or warm_session(options)
    try:
        yield session
    finally:
        if given is None:
            session.stop()


class _Run:
    def __init__(
        self,
        settings: Settings,
        options: PipelineOptions,
        stop: StopSignal,
        alias: str,
        run: PipelineRun,
        session: WarmSession,
        done: PipelineProgress,
        progress: ProgressCallback,
        step: Step,
    ) -> None:
        self._settings = settings
        self._options = options
        self._stop = stop
        self._done = done
        self._progress = progress
        self._session = session
        storage = open_storage(options.lake, session.get)
        manifest = Manifest(alias, open_lake(storage), storage, run, step)
        self._tools = Tools(session.get, alias, storage, manifest, run, reader_of(session.get, alias), step)
        self._outcomes = OutcomeTracker(self._tools)
        self._copiers: dict[str, AuditQueueCopier] = {}
        self._lost_batches = 0
        self._maintained_on: date | None = None

    def work(self) -> None:
        """Work in rounds: one, or until stopped."""
        self._done.finished = self._tools.manifest.recover()
        while not self._stop.is_set():
            self._round()
            self._maintain_lake()
            if not self._options.continuous or self._wait():
                return

    def _wait(self) -> bool:
        """Wait for the next round, and stop an idle session during the wait; returns whether to stop."""
        left = self._options.every_seconds
        until_idle = self._session.stop_if_idle()
        if until_idle is not None and until_idle < left:
            if self._stop.wait(until_idle):
                return True
            self._session.stop_if_idle()
            left -= until_idle
        return self._stop.wait(left)

    def _round(self) -> None:
        self._done.problems.clear()
        for queue in queues_of(self._settings, QueueKind.AUDIT):
            self._process(queue, self._take_all)
        read_all_failures(self._settings)
        for queue in queues_of(self._settings, QueueKind.ERROR):
            self._process(queue, self._copy)
        if not self._stop.is_set():
            self._done.fates += self._outcomes.update()

    def _maintain_lake(self) -> None:
        """Retention and compaction: once a day in a continuous run, else at the end."""
        today = database_now(self._tools.alias).date()
        if self._stop.is_set() or today == self._maintained_on:
            return
        self._maintained_on = today
        try:
            if self._options.keep_days is not None:
                self._done.retired += retire_old(self._tools, self._options.keep_days)
            if self._options.compact:
                self._done.compacted += compact(self._tools)
        except BatchLost as error:
            logger.warning("%s", error, extra={"event": "pipeline_batch_lost"})

    def _process(self, queue: PipelineQueue, work: Callable[[PipelineQueue], None]) -> None:
        """Process one queue; a missing table is reported and does not affect the other queues."""
        if self._stop.is_set():
            return
        try:
            work(queue)
        except QueueNotFound:
            text = f"{queue.table.qualified} does not exist: run sqlqueue_install or migrate, or correct the settings that name it"
            self._done.problems.append(text)
            logger.warning("%s", text, extra={"event": "pipeline_queue_missing", "queue": queue.name})

    def _take_all(self, queue: PipelineQueue) -> None:
        self._session.prepare(lambda count: queue.table.row_version_at(count - 1) is not None)
        audit = self._audit_queue(queue)
        while not self._stop.is_set():
            try:
                taken = audit.take(self._options.batch_size)
            except BatchLost as error:
                self._count_lost_batch(error, queue)
                continue
            self._lost_batches = 0
            if taken is None:
                break
            self._done.messages += taken.rows - taken.unreadable
            self._count(taken)
            logger.info(
                "%s %s of %s into the lake",
                "copied" if self._options.peek_only else "took",
                counted(taken.rows, "message"),
                queue.name,
                extra={"event": "pipeline_batch", "queue": queue.name},
            )
            if not taken.was_full:
                break
        if isinstance(audit, AuditQueueCopier) and audit.left is not None:
            self._done.problems.append(audit.left)
            logger.warning("%s", audit.left, extra={"event": "pipeline_unsettled", "queue": queue.name})

    def _audit_queue(self, queue: PipelineQueue) -> AuditQueueTaker | AuditQueueCopier:
        if not self._options.peek_only:
            delete_copied(self._tools, queue.table, queue.name, self._options.batch_size, self._stop)
            return AuditQueueTaker(self._tools, queue.table, queue.name)
        if queue.name not in self._copiers:
            self._copiers[queue.name] = AuditQueueCopier(self._tools, queue.table, queue.name, self._stop)
        return self._copiers[queue.name]

    def _count_lost_batch(self, error: SqlQueueError, queue: PipelineQueue) -> None:
        self._lost_batches += 1
        logger.warning("%s", error, extra={"event": "pipeline_batch_lost", "queue": queue.name})
        if self._lost_batches >= _MAX_LOST_BATCHES:
            raise PipelineError(
                f"{self._lost_batches} batches in a row were lost to a receiver of {queue.table.qualified}: only the "
                "pipeline may receive from that queue, so stop the other receiver"
            ) from error

    def _count(self, batch: BatchResult | Commit) -> None:
        self._done.batches += 1
        self._done.unreadable += batch.unreadable
        self._done.bytes += batch.bytes
        self._progress(self._done)

    def _copy(self, queue: PipelineQueue) -> None:
        errors = ErrorQueueCopier(self._tools, queue.table, queue.name)
        while not self._stop.is_set():
            copied = errors.copy(self._options.batch_size)
            if copied is None:
                return
            self._done.failures += copied.rows - copied.unreadable
            self._count(copied)
            logger.info(
                "copied %s of %s into the lake",
                counted(copied.rows, "message"),
                queue.name,
                extra={"event": "pipeline_copied", "queue": queue.name},
            )
