"""The life of a worker, as run by `run_sqlqueue_worker`: tables, leases, receivers, background jobs, signals."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import partial
from typing import IO, Final, Literal, cast

from django.conf import settings as django_settings
from django.db import connections
from django.utils import timezone

from sqlqueue_app.browsing import orphaned_bodies
from sqlqueue_app.browsing.orphaned_bodies import orphaned_bodies_of
from sqlqueue_app.conf import ConcurrencyModel, Settings, TaskBackend, instance_name
from sqlqueue_app.conf.crontab import cron_times
from sqlqueue_app.failures.index import FailureIndexing
from sqlqueue_app.failures.operations import bulk_operations_job
from sqlqueue_app.installation import planned_tables
from sqlqueue_app.messages.errors import CannotConnect, ConfigurationError, TransientError, WorkerFailed, counted
from sqlqueue_app.models import TaskResult, managed_alias
from sqlqueue_app.monitoring.check_results import CheckRunner, ProcessChecks, connections_needed, custom_check_jobs
from sqlqueue_app.monitoring.notifying import Notifications
from sqlqueue_app.policies.polling import BackOff
from sqlqueue_app.policies.recoverability import TransactionMode
from sqlqueue_app.receiving.background import BackgroundJob, Worker
from sqlqueue_app.receiving.delayed import DelayedMover, due_messages_of
from sqlqueue_app.receiving.endpoint import ReceivingEndpoint, ReceivingQueue, endpoints_of
from sqlqueue_app.receiving.in_flight import InFlightRegistry
from sqlqueue_app.receiving.instances import Heartbeat, InstanceLease, claim, forget_gone, register_instance
from sqlqueue_app.receiving.receiver import OUTAGE_CAP_SECONDS, OUTAGE_FIRST_SECONDS, Receiver
from sqlqueue_app.receiving.reply_listeners import WorkerReplyListeners
from sqlqueue_app.receiving.stopping import PartOfStop, StopSignal
from sqlqueue_app.receiving.waiting import EmptyQueues, listening
from sqlqueue_app.status.in_doubt import InDoubt
from sqlqueue_app.status.instances import drop_old_callback_queues
from sqlqueue_app.status.retention import delete_in_chunks
from sqlqueue_app.status.samples import Measuring, Sampling
from sqlqueue_app.status.schedules import Schedules
from sqlqueue_app.status.subscriptions import subscribe_to_events
from sqlqueue_app.tables.connections import connection_of, dialect_of_connection
from sqlqueue_app.tables.installation import install_tables
from sqlqueue_app.tables.listing import current_catalog
from sqlqueue_app.worker.affinity import AdaptiveAffinity
from sqlqueue_app.worker.replacement import ProcessLimits
from sqlqueue_app.worker.service_control import service_control_jobs

logger = logging.getLogger("sqlqueue.worker")
background_logger = logging.getLogger("sqlqueue.background")


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of a worker; None keeps the value of the settings."""

    endpoints: list[str] | None = None
    max_concurrency: int | None = None
    model: ConcurrencyModel | None = None
    batch_size: int | Literal["auto"] | None = None
    until_empty: bool = False
    install: bool = False
    purges: bool = True
    """Whether PURGE_ON_STARTUP applies: not to a process that replaces another, whose messages must not be lost."""
    limits: ProcessLimits | None = None
    """The limits at which a supervisor replaces the process; None without a supervisor."""


def run_worker(
    settings: Settings,
    options: RunOptions,
    stop: StopSignal,
    *,
    in_flight: InFlightRegistry | None = None,
    affinity: AdaptiveAffinity | None = None,
) -> int:
    """Receive until the stop signal is set, or until nothing is left, and return the number of received messages.

    `in_flight` records the rows in progress for the supervisor, if there is one; `affinity` keeps the process on one processor.
    Waits for a database that is unavailable at the start. Raises ConfigurationError for wrong settings, QueueNotFound for missing
    tables, CannotConnect for a wrong database, user or password; WorkerFailed, after an orderly end, if a thread died.
    """
    endpoints = endpoints_of(
        settings, options.endpoints, max_concurrency=options.max_concurrency, model=options.model, batch_size=options.batch_size
    )
    leases: list[tuple[ReceivingEndpoint, InstanceLease]] = []
    measuring = Measuring((each.name, instance_name(each.config), each.measures) for each in endpoints)
    try:
        queues = _when_reachable(lambda: _prepare(settings, endpoints, options, leases), settings.database, stop)
        if queues is None:
            return 0
        everything = [queue.name for owned in queues.values() for queue in owned]
        mover = DelayedMover(due_messages_of(settings), stop)
        empty = EmptyQueues(everything, anything_due=mover.anything_due) if options.until_empty else None
        if empty is not None:
            mover.report_to(empty)
        parts = {each.name: PartOfStop(stop) for each in endpoints}
        own = {name: [queue for queue in owned if not queue.shares_threads] for name, owned in queues.items()}
        receivers = {each.name: _receivers(each, own[each.name], stop, parts[each.name], empty, in_flight) for each in endpoints}
        listeners = WorkerReplyListeners([(each, receivers[each.name], own[each.name], parts[each.name]) for each in endpoints])
        jobs = [_heartbeat(each, lease, receivers[each.name], own[each.name], listeners) for each, lease in leases]
        for each in endpoints:
            jobs += [*each.purge_jobs(queues[each.name]), *each.watching_jobs(), *service_control_jobs(each)]
        notifications = Notifications(settings, stop)
        jobs += [*_jobs_of_process(endpoints, measuring, affinity), notifications.job(), *_limit_jobs(options.limits, receivers)]
        jobs += _jobs_for_all(settings, endpoints, ProcessChecks(settings.database, _connections_needed(endpoints, own)), stop)
        # The leases' threads must end before the connections of this thread close.
        connections.close_all()
        worker = Worker([receiver for owned in receivers.values() for receiver in owned], jobs, stop)
        announcements = listening(settings.database, [each.wake_up for each in worker.receivers], stop, also=mover.wake_ups)
        with announcements, listeners, mover.running(), notifications.running():
            worker.run(on_started=lambda: _log_started(endpoints, everything, in_flight))
    finally:
        measuring.write_at_exit()
        for _, lease in leases:
            lease.release_at_exit(logger)
        connections.close_all()
    return _ended(sum(each.received for each in worker.receivers), stop)


def _ended(received: int, stop: StopSignal) -> int:
    logger.info("stopped, %s received", counted(received, "message"), extra={"event": "worker_stopped"})
    if stop.has_failed:
        raise WorkerFailed("a thread of the worker died of an unexpected error, logged as thread_died: start the worker again")
    return received


def _jobs_of_process(
    endpoints: list[ReceivingEndpoint], measuring: Measuring, affinity: AdaptiveAffinity | None
) -> list[BackgroundJob]:
    """The background jobs that look at what this process does."""
    jobs = [BackgroundJob("activity", ACTIVITY_SECONDS, Activity(endpoints).report, uses_database=False), measuring.job()]
    if affinity is not None:
        jobs.append(affinity.job(lambda: sum(each.measures.all_handled + each.measures.all_failures for each in endpoints)))
    return jobs


def _limit_jobs(limits: ProcessLimits | None, receivers: Mapping[str, list[Receiver]]) -> list[BackgroundJob]:
    everyone = [receiver for owned in receivers.values() for receiver in owned]
    return [] if limits is None else limits.jobs(lambda: sum(each.received for each in everyone))


def _jobs_for_all(
    settings: Settings, endpoints: list[ReceivingEndpoint], own: ProcessChecks, stop: StopSignal
) -> list[BackgroundJob]:
    """The background jobs that belong to no single endpoint; those that must run once are run by one worker for all."""
    handled_by = {name: each.name for each in reversed(endpoints) for name in each.handlers.message_types}
    recurring = Schedules(settings, endpoints[0].name, handled_by=handled_by).job()
    old = BackgroundJob("old callback queues", 600.0, partial(drop_old_callback_queues, settings))
    expired = BackgroundJob("expired instances", 20.0, forget_gone)
    of_all = [Sampling(settings).job(), FailureIndexing(settings).job(), bulk_operations_job(settings, stop), old, expired]
    in_scope = any(each.mode is TransactionMode.TRANSACTION_SCOPE for each in endpoints)
    in_doubt = InDoubt(settings.database)
    of_all.append(CheckRunner(settings, own, in_doubt).job())
    if (orphans := orphaned_bodies_of(settings)) is not None:
        of_all.append(BackgroundJob("orphaned bodies", orphaned_bodies.EVERY_SECONDS, orphans.run))
    ending = in_doubt.jobs() if in_scope else []
    return [*ending, *of_all, recurring, *custom_check_jobs(), *task_result_jobs(settings), *pipeline_jobs(settings, stop)]


def _connections_needed(endpoints: list[ReceivingEndpoint], queues: dict[str, list[ReceivingQueue]]) -> int:
    has_second = {each.name: each.mode is TransactionMode.RECEIVE_ONLY or each.type_limits is not None for each in endpoints}
    return connections_needed((queue.maximum, has_second[each.name]) for each in endpoints for queue in queues[each.name])


def _receivers(
    endpoint: ReceivingEndpoint,
    queues: list[ReceivingQueue],
    stop: StopSignal,
    part: StopSignal,
    empty: EmptyQueues | None,
    in_flight: InFlightRegistry | None,
) -> list[Receiver]:
    """The receivers of the endpoint's queues; that of the callback queue can be stopped separately."""
    stops = [part if queue.is_callback_queue else stop for queue in queues]
    return [endpoint.receiver(each, its, empty=empty, in_flight=in_flight) for each, its in zip(queues, stops, strict=True)]


def _prepare(
    settings: Settings,
    endpoints: list[ReceivingEndpoint],
    options: RunOptions,
    leases: list[tuple[ReceivingEndpoint, InstanceLease]],
) -> dict[str, list[ReceivingQueue]]:
    """Install if requested, lease, check tables, purge and subscribe if configured. Returns the queues of each endpoint."""
    # An earlier attempt may have got halfway before the database became unavailable.
    while leases:
        leases.pop()[1].release_at_exit(logger)
    connection = connection_of(settings.database)
    if options.install:
        planned = planned_tables(settings, dialect_of_connection(connection).name, current_catalog(connection))
        install_tables(settings.database, planned, layout=settings.table_layout)
    queues: dict[str, list[ReceivingQueue]] = {}
    for each in endpoints:
        each.check_tables(each.receiving_queues(None))
        with each.registering():
            lease = _lease(each)
        leases.append((each, lease))
        queues[each.name] = each.receiving_queues(lease.callback_queue)
        if options.purges:
            each.purge_on_startup(queues[each.name])
        subscribe_to_events(each)
    return queues


def _lease(endpoint: ReceivingEndpoint) -> InstanceLease:
    """Register this process, with a callback queue if CALLBACKS is True; without one it still receives."""
    if endpoint.config.callbacks is True:
        try:
            return endpoint.lease(concurrency=endpoint.concurrency)
        except ConfigurationError as error:
            logger.warning("%s; until then request() fails in this process", error, extra={"event": "no_callback_queue"})
    return register_instance(endpoint.config, alias=managed_alias(), concurrency=endpoint.concurrency)


def _when_reachable(
    prepare: Callable[[], dict[str, list[ReceivingQueue]]], alias: str, stop: StopSignal
) -> dict[str, list[ReceivingQueue]] | None:
    """Prepare as soon as the database is available; None if the stop comes first."""
    outage = BackOff(OUTAGE_FIRST_SECONDS, OUTAGE_CAP_SECONDS)
    while not stop.is_set():
        try:
            return prepare()
        except CannotConnect:
            raise
        except TransientError as error:
            # Unavailable, or (SQLite) locked by a slow writer: both are temporary.
            wait = outage.next_wait()
            text = "database %r cannot be used yet, trying again in %g s: %s"
            why = " ".join(str(error).split())
            logger.warning(text, alias, wait, why, extra={"event": "database_away"})
            connections.close_all()
            stop.wait(wait)
    return None


def _heartbeat(
    endpoint: ReceivingEndpoint,
    lease: InstanceLease,
    receivers: list[Receiver],
    queues: list[ReceivingQueue],
    listeners: WorkerReplyListeners,
) -> BackgroundJob:
    following = [receiver for receiver, queue in zip(receivers, queues, strict=True) if queue.follows_endpoint]
    callbacks = [receiver for receiver, queue in zip(receivers, queues, strict=True) if queue.is_callback_queue]

    def lost() -> None:
        listeners.lost(lease.endpoint)
        lease.register_again(endpoint.config, following[0].maximum)

    return Heartbeat(lease, receivers, following, callbacks, lost).job()


def _log_started(endpoints: list[ReceivingEndpoint], queues: list[str], in_flight: InFlightRegistry | None) -> None:
    for endpoint in endpoints:
        if endpoint.handlers.has_hard_limits and in_flight is None:
            logger.warning(
                "the hard time limits of endpoint %s have no effect: they need a supervisor, which --processes 0 does without",
                endpoint.name,
                extra={"event": "hard_limits_off", "endpoint": endpoint.name},
            )
        types = endpoint.handlers.message_types
        if not types:
            logger.warning(
                "endpoint %s has no handler: every message will go to the error queue; "
                "write handlers into handlers.py of an installed app, or name their modules in HANDLERS",
                endpoint.name,
                extra={"event": "no_handlers", "endpoint": endpoint.name},
            )
    logger.info(
        "receiving for %s from %s", ", ".join(each.name for each in endpoints), ", ".join(queues), extra={"event": "worker_started"}
    )


PIPELINE_POLL_SECONDS: Final = 10.0
_CLAIM: Final = "pipeline starts"
_READER_SECONDS: Final = 10.0


def pipeline_jobs(settings: Settings, stop: StopSignal) -> list[BackgroundJob]:
    """The job that starts the pipeline; none if the settings define no schedule."""
    if settings.pipeline is None or settings.pipeline.cron is None:
        return []
    schedule = PipelineSchedule(settings.pipeline.cron)
    stop.subscribe(schedule.end)
    return [BackgroundJob("pipeline", PIPELINE_POLL_SECONDS, schedule.poll)]


class PipelineSchedule:
    """Starts `run_sqlqueue_pipeline --on-request` as a process at a tick, unless another worker has, or the last run has not ended.

    The process keeps its Spark session for some time. During that time a tick only sends it a line; it answers each run with one.
    Missed ticks are not repeated: the next run takes whatever is there. Queries no database between ticks.
    """

    def __init__(
        self,
        cron: str,
        *,
        command: Sequence[str] | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        zone: tzinfo | None = None,
    ) -> None:
        self._times = cron_times(cron)
        self._command = command or [sys.executable, "-m", "django", "run_sqlqueue_pipeline", "--on-request", "--format", "json"]
        self._now = now
        self._zone = zone or timezone.get_default_timezone()
        self._done = now()
        self._child: _PipelineProcess | None = None

    def poll(self) -> bool:
        """Start a run if it is due. Returns whether one was started."""
        now = self._now()
        is_owed = self._notice_end()
        tick = self._times.latest(self._done, now, self._zone)
        if tick is None:
            return is_owed and self._start()
        won = claim(managed_alias(), _CLAIM, tick)
        self._done = tick
        if not won:
            self._end_idle()
            return is_owed and self._start()
        if self._child is None:
            return self._start()
        if self._child.is_busy():
            background_logger.warning(
                "the previous run of the pipeline has not ended: no new one is started", extra={"event": "pipeline_late"}
            )
            return False
        self._child.request()
        background_logger.info("the pipeline is running again in process %s", self._child.pid, extra={"event": "pipeline_started"})
        return True

    def end(self) -> None:
        """Ask a running process to finish its batch."""
        child = self._child
        if child is not None:
            if child.poll() is None:
                child.terminate()
            child.close_input()

    def _start(self) -> bool:
        self._child = _PipelineProcess(self._command)
        background_logger.info("the pipeline is started, process %s", self._child.pid, extra={"event": "pipeline_started"})
        return True

    def _end_idle(self) -> None:
        """End the process between two runs: one warm session is enough for all workers."""
        if self._child is not None and not self._child.is_busy():
            self._child.close_input()

    def _notice_end(self) -> bool:
        """Forget a process that has ended. Returns whether it ended in order before it read the last request."""
        child = self._child
        if child is None or (code := child.poll()) is None:
            return False
        child.close_input()
        self._child = None
        is_owed = child.is_owed()
        if code:
            text = "the pipeline ended with exit code %s; its output precedes this line"
            background_logger.error(text, code, extra={"event": "pipeline_failed"})
        return is_owed and not code


class _PipelineProcess(subprocess.Popen[bytes]):
    """A process that runs the pipeline at once and for each line of its standard input.

    Its input ends with this process in any case, and that ends the run.
    """

    def __init__(self, command: Sequence[str]) -> None:
        super().__init__(command, env=_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        self._requests = 0
        self._answers = 0
        self._reader = threading.Thread(target=self._read, name="sqlqueue-pipeline", daemon=True)
        self._reader.start()

    def request(self) -> None:
        """Request another run."""
        self._requests += 1
        # the next poll notices that it has ended
        with suppress(OSError):
            cast("IO[bytes]", self.stdin).write(b"\n")

    def is_busy(self) -> bool:
        """Whether a run has not ended; the first one needs no request."""
        return self.poll() is None and self._answers <= self._requests

    def is_owed(self) -> bool:
        """Whether the process has ended without the last requested run."""
        self._reader.join(_READER_SECONDS)
        return 0 < self._answers <= self._requests

    def close_input(self) -> None:
        """Let the process end after its run."""
        if self.stdin is not None:
            self.stdin.close()

    def _read(self) -> None:
        with cast("IO[bytes]", self.stdout) as output:
            while line := output.readline():
                self._answers += line.startswith(b"{")


def _environment() -> dict[str, str]:
    """The environment in which the child finds the settings and the code of this process."""
    path = os.pathsep.join(dict.fromkeys(entry or os.getcwd() for entry in sys.path))
    module = getattr(django_settings, "SETTINGS_MODULE", None)
    return {**os.environ, **({"DJANGO_SETTINGS_MODULE": module} if module else {}), "PYTHONPATH": path}


EVERY_SECONDS = 600.0


def purge_task_results(alias: str, backend: str, *, before: datetime) -> int:
    """Delete the results of a backend, by its alias in TASKS, finished before an instant, and return their number.

    Never deletes results of waiting or running tasks. Commits each batch; safe in several processes at once.
    """
    old = TaskResult.objects.using(alias).filter(backend=backend, finished_at__lt=before)
    return delete_in_chunks(old.order_by("finished_at"))


def task_result_jobs(settings: Settings) -> list[BackgroundJob]:
    """A background job for each backend of TASKS, except where KEEP_RESULTS is None."""
    return [
        BackgroundJob(f"old task results of {alias}", EVERY_SECONDS, partial(_purge, settings.database, backend))
        for alias, backend in settings.task_backends.items()
        if backend.options.keep_results_seconds is not None
    ]


def _purge(alias: str, backend: TaskBackend) -> None:
    keep = timedelta(seconds=backend.options.keep_results_seconds or 0)
    if purged := purge_task_results(alias, backend.alias, before=timezone.now() - keep):
        background_logger.info(
            "%s of %s deleted", counted(purged, "old task result"), backend.alias, extra={"event": "task_results_purged"}
        )


ACTIVITY_SECONDS: Final = 60.0


class Activity:
    """Logs how many messages each endpoint has handled in this process since the last line, even if none."""

    def __init__(self, endpoints: Sequence[ReceivingEndpoint], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._measures = {each.name: each.measures for each in endpoints}
        self._clock = clock
        self._since = clock()
        self._before = dict.fromkeys(self._measures, (0, 0))

    def report(self) -> None:
        """Log the line; call it every ACTIVITY_SECONDS. The first call, at the start, logs nothing."""
        if (seconds := self._clock() - self._since) < ACTIVITY_SECONDS / 2:
            return
        self._since += seconds
        parts = []
        for name, measures in self._measures.items():
            handled, failures = self._before[name]
            self._before[name] = now = measures.all_handled, measures.all_failures
            parts.append(f"{name} {counted(now[0] - handled, 'message')}, {counted(now[1] - failures, 'failed attempt')}")
        logger.info("handled in the last %.0f s: %s", seconds, "; ".join(parts), extra={"event": "worker_activity"})
