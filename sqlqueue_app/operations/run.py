"""Running a worker from start to end: tables, leases, receivers; what `run_sqlqueue_worker` does."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from django.db import connections

from sqlqueue_app.callbacks.home import WorkerHomes
from sqlqueue_app.conf import ConcurrencyModel, Settings, instance_name
from sqlqueue_app.endpoint import Endpoint, ReceivingQueue, endpoints_of
from sqlqueue_app.instances import InstanceLease, lease_instance, managed_alias
from sqlqueue_app.messages.errors import TransientError, WorkerFailed
from sqlqueue_app.operations.bulk.job import bulk_operations_job
from sqlqueue_app.operations.failure_index import FailureIndexing
from sqlqueue_app.operations.in_doubt import InDoubt
from sqlqueue_app.operations.installation_plan import planned_tables
from sqlqueue_app.operations.measuring import Measuring
from sqlqueue_app.operations.notifications.job import Notifications
from sqlqueue_app.operations.pipeline_schedule import pipeline_jobs
from sqlqueue_app.operations.sampling import Sampling
from sqlqueue_app.operations.schedules import Schedules
from sqlqueue_app.operations.service_control import service_control_jobs
from sqlqueue_app.operations.subscriptions import subscribe_to_events
from sqlqueue_app.operations.task_results import task_result_jobs
from sqlqueue_app.operations.watching.custom import custom_check_jobs
from sqlqueue_app.operations.watching.job import Watching
from sqlqueue_app.operations.watching.own import OwnChecks, connections_needed
from sqlqueue_app.policies.back_off import BackOff
from sqlqueue_app.policies.transaction_mode import TransactionMode
from sqlqueue_app.receiving.delayed_mover import DelayedMover
from sqlqueue_app.receiving.delayed_tables import due_messages_of
from sqlqueue_app.receiving.heartbeat import Heartbeat
from sqlqueue_app.receiving.in_work import UNWATCHED, InWork
from sqlqueue_app.receiving.receiver import OUTAGE_CAP_SECONDS, OUTAGE_FIRST_SECONDS, Receiver
from sqlqueue_app.receiving.stopping import EmptyQueues, PartOfStop, StopSignal
from sqlqueue_app.receiving.wake_up import listening
from sqlqueue_app.receiving.worker import Worker
from sqlqueue_app.scheduler import BackgroundJob
from sqlqueue_app.tables.connections import connection_of, database_errors, dialect_of_connection
from sqlqueue_app.tables.inspection import current_catalog
from sqlqueue_app.tables.installation import install_tables

logger = logging.getLogger("sqlqueue.worker")


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a worker is started with; None means as in the settings."""

    endpoints: list[str] | None = None
    max_concurrency: int | None = None
    model: ConcurrencyModel | None = None
    batch_size: int | Literal["auto"] | None = None
    until_empty: bool = False
    install: bool = False


@dataclass(slots=True)
class HandledCount:
    """How many messages were received, by all threads."""

    received: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self) -> None:
        """One more."""
        with self._lock:
            self.received += 1


def run_worker(settings: Settings, options: RunOptions, stop: StopSignal, *, in_work: InWork = UNWATCHED) -> int:
    """Receive until the stop signal is set, or until nothing is left; returns how many messages were received.

    `in_work` is told which rows are being handled; a worker without a supervisor tells nobody.
    A database that is away at the start is waited for. ConfigurationError for wrong settings, QueueNotFound for missing tables;
    WorkerFailed, when everything has ended in order, if it ended because a thread died of an error of ours.
    """
    endpoints = endpoints_of(
        settings,
        options.endpoints,
        max_concurrency=options.max_concurrency,
        model=options.model,
        batch_size=options.batch_size,
    )
    count = HandledCount()
    leases: list[tuple[Endpoint, InstanceLease]] = []
    measuring = Measuring((each.name, instance_name(each.config), each.measures) for each in endpoints)
    try:
        queues = _when_reachable(lambda: _prepare(settings, endpoints, options, leases), settings.database, stop)
        if queues is None:
            return 0
        everything = [queue.name for owned in queues.values() for queue in owned]
        mover = DelayedMover(due_messages_of(settings), stop)
        empty = EmptyQueues(everything, anything_due=mover.anything_due) if options.until_empty else None
        if empty is not None:
            mover.tell(empty)
        parts = {each.name: PartOfStop(stop) for each in endpoints}
        telling = {"empty": empty, "count": count.add, "in_work": in_work}
        receivers = {each.name: _receivers(each, queues[each.name], stop, parts[each.name], telling) for each in endpoints}
        homes = WorkerHomes((each, receivers[each.name], queues[each.name], parts[each.name]) for each in endpoints)
        jobs = [_heartbeat(lease, receivers[each.name], queues[each.name], homes) for each, lease in leases]
        for each in endpoints:
            jobs += [*each.purge_jobs(queues[each.name]), *each.watching_jobs(), *service_control_jobs(each)]
        own = OwnChecks(settings.database, _connections_needed(endpoints, queues))
        notifications = Notifications(settings, stop)
        jobs += [measuring.job(), notifications.job(), *_jobs_for_all(settings, endpoints, own, stop)]
        # The leases' threads must end before the connections of this thread are given back.
        connections.close_all()
        worker = Worker([receiver for owned in receivers.values() for receiver in owned], jobs, stop)
        wake_ups = [receiver.wake_up for receiver in worker.receivers]
        looking_out = listening(settings.database, wake_ups, stop, also=mover.wake_ups)
        with looking_out, homes, mover.running(), notifications.running():
            worker.run(on_started=lambda: _say_started(endpoints, everything))
    finally:
        measuring.write_at_the_end()
        for _, lease in leases:
            lease.release_at_the_end(logger)
        connections.close_all()
    return _ended(count.received, stop)


def _ended(received: int, stop: StopSignal) -> int:
    logger.info("stopped, %s messages received", received, extra={"event": "worker_stopped"})
    if stop.has_failed:
        raise WorkerFailed("a thread of the worker died of an error that the log tells (event thread_died): start the worker again")
    return received


def _jobs_for_all(settings: Settings, endpoints: list[Endpoint], own: OwnChecks, stop: StopSignal) -> list[BackgroundJob]:
    """What belongs to no endpoint alone, and is done by one worker for all where it must happen once."""
    handled_by = {name: each.name for each in reversed(endpoints) for name in each.handlers.message_types}
    recurring = [Schedules(settings, endpoints[0].name, handled_by=handled_by).job()] if settings.schedules else []
    of_all = [Sampling(settings).job(), FailureIndexing(settings).job(), bulk_operations_job(settings, stop)]
    in_scope = any(each.mode is TransactionMode.TRANSACTION_SCOPE for each in endpoints)
    in_doubt = InDoubt(settings.database)
    of_all.append(Watching(settings, own, in_doubt).job())
    ending = in_doubt.jobs() if in_scope else []
    return [*ending, *of_all, *recurring, *custom_check_jobs(), *task_result_jobs(settings), *pipeline_jobs(settings, stop)]


def _connections_needed(endpoints: list[Endpoint], queues: dict[str, list[ReceivingQueue]]) -> int:
    threads = ((queue.maximum, each.mode is TransactionMode.RECEIVE_ONLY) for each in endpoints for queue in queues[each.name])
    return connections_needed(threads)


def _receivers(
    endpoint: Endpoint, queues: list[ReceivingQueue], stop: StopSignal, part: StopSignal, telling: dict[str, Any]
) -> list[Receiver]:
    """The receivers of the endpoint's queues; the one of the callback queue can be stopped apart."""
    return [endpoint.receiver(queue, part if queue.is_callback_queue else stop, **telling) for queue in queues]


def _prepare(
    settings: Settings, endpoints: list[Endpoint], options: RunOptions, leases: list[tuple[Endpoint, InstanceLease]]
) -> dict[str, list[ReceivingQueue]]:
    """Install if asked, lease, look at the tables, purge and subscribe if the settings say so: the queues of each endpoint."""
    # A try before this one may have come half the way before the database went away.
    while leases:
        leases.pop()[1].release_at_the_end(logger)
    connection = connection_of(settings.database)
    dialect = dialect_of_connection(connection)
    if options.install:
        install_tables(
            settings.database,
            planned_tables(settings, dialect.name, current_catalog(connection)),
            layout=settings.table_layout,
        )
    queues: dict[str, list[ReceivingQueue]] = {}
    for each in endpoints:
        each.check_tables(each.receiving_queues(None))
        with database_errors(dialect, f"register an instance of {each.name!r}"):
            lease = lease_instance(each.config, alias=managed_alias(), concurrency=each.concurrency, exists=each.queue_exists)
        leases.append((each, lease))
        queues[each.name] = each.receiving_queues(lease.callback_queue)
        each.purge_on_startup(queues[each.name])
        subscribe_to_events(each)
    return queues


def _when_reachable(
    prepare: Callable[[], dict[str, list[ReceivingQueue]]], alias: str, stop: StopSignal
) -> dict[str, list[ReceivingQueue]] | None:
    """Prepare as soon as the database answers; None if the stop came first."""
    outage = BackOff(OUTAGE_FIRST_SECONDS, OUTAGE_CAP_SECONDS)
    while not stop.is_set():
        try:
            return prepare()
        except TransientError as error:
            # Away, or (SQLite) written to by somebody who takes long: both pass.
            wait = outage.next_wait()
            logger.warning(
                "database %r cannot be used yet, trying again in %g s: %s", alias, wait, error, extra={"event": "database_away"}
            )
            connections.close_all()
            stop.wait(wait)
    return None


def _heartbeat(lease: InstanceLease, receivers: list[Receiver], queues: list[ReceivingQueue], homes: WorkerHomes) -> BackgroundJob:
    following = [receiver for receiver, queue in zip(receivers, queues, strict=True) if queue.follows_endpoint]
    callbacks = [receiver for receiver, queue in zip(receivers, queues, strict=True) if queue.is_callback_queue]
    return Heartbeat(lease, receivers, following, callbacks, lambda: homes.lost(lease.endpoint)).job()


def _say_started(endpoints: list[Endpoint], queues: list[str]) -> None:
    for endpoint in endpoints:
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
