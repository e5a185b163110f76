"""Builds an endpoint from the settings: the only place that wires its parts."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, Literal

from django.db import connections, router

from sqlqueue_app.conf import TASK_MESSAGE, ConcurrencyModel, EndpointSettings, Settings
from sqlqueue_app.conf.kinds import load_callable
from sqlqueue_app.dialects.postgresql import CAN_PREPARE
from sqlqueue_app.dialects.schema import PlannedTable, TableKind
from sqlqueue_app.messages.addresses import AddressBook, QueueAddress
from sqlqueue_app.messages.errors import ConfigurationError, DatabaseError, PermissionDenied, QueueNotFound, TransientError, counted
from sqlqueue_app.messages.types import plain_name
from sqlqueue_app.models import DistributedTransaction, HandledMessage, Instance, TwoPhaseCoordinator, managed_alias
from sqlqueue_app.policies.recoverability import Policy, RecoverabilityConfig, TransactionMode, default_policy
from sqlqueue_app.receiving.auditing import Auditing, Forwarding
from sqlqueue_app.receiving.background import BackgroundJob
from sqlqueue_app.receiving.concurrency import AdaptiveReceiver, FixedReceiver, MonitorReceiver
from sqlqueue_app.receiving.destinations import Destinations, allowed_destinations
from sqlqueue_app.receiving.duplicates import Duplicates
from sqlqueue_app.receiving.error_queue import ErrorQueue, Processor
from sqlqueue_app.receiving.handlers import (
    Handler,
    HandlerTable,
    SubscriptionMessages,
    around,
    handlers_of,
    task_handlers,
    with_retries,
    with_time_limits,
)
from sqlqueue_app.receiving.in_flight import InFlightRegistry
from sqlqueue_app.receiving.instances import InstanceLease, lease_instance
from sqlqueue_app.receiving.keys import KeyedHandlerTable, check_keys, key_window
from sqlqueue_app.receiving.measures import Measures, SlowHandlers
from sqlqueue_app.receiving.priority_poller import LevelPoller, PriorityPoller, PriorityWakeUp
from sqlqueue_app.receiving.processing import ProcessorConfig
from sqlqueue_app.receiving.rate_limits import TypeLimits, with_rates
from sqlqueue_app.receiving.receiver import NewProcessor, Poller, QueuePoller, Receiver, ReceiverOptions
from sqlqueue_app.receiving.recovery import RateLimit, SharedFailures
from sqlqueue_app.receiving.special_queues import CallbackWakeUp, SatelliteProcessor, SatelliteRoutes, callback_processor
from sqlqueue_app.receiving.stopping import StopSignal
from sqlqueue_app.receiving.time_limits import TimeLimits
from sqlqueue_app.receiving.waiting import EmptyQueues, WakeUp
from sqlqueue_app.sending.composer import Composer, Routes, sender_identity, utc_now
from sqlqueue_app.sending.dispatcher import Dispatcher, SeparateDispatcher, own_delayed_table
from sqlqueue_app.sending.middleware import composer_for, load_middleware
from sqlqueue_app.tables.announcements import can_listen
from sqlqueue_app.tables.connections import aliases_beside, connection_of, database_errors, dialect_of_connection
from sqlqueue_app.tables.installation import (
    FindingKind,
    check_address,
    delayed_address,
    inspect_tables,
    install_tables,
    migrate_command,
)
from sqlqueue_app.tables.listing import current_catalog
from sqlqueue_app.tables.managed import HandledTable, TransactionLog, handled_elsewhere
from sqlqueue_app.tables.queue import QueueTable, queue_table
from sqlqueue_app.tables.receive_transaction import check_driver
from sqlqueue_app.tables.two_phase import TwoPhaseParticipants

logger = logging.getLogger("sqlqueue.worker")


@dataclass(frozen=True, slots=True)
class ReceivingQueue:
    """One queue that an endpoint receives from, with its maximum of threads, which `follows_endpoint` ties to the endpoint's."""

    table: QueueTable
    maximum: int
    is_callback_queue: bool = False
    is_drained: bool = False
    follows_endpoint: bool = True
    shares_threads: bool = False
    """Whether the threads of the main queue receive from it, because it holds messages of another priority."""

    @property
    def name(self) -> str:
        """The literal name of the queue."""
        return self.table.address.table


class ReceivingEndpoint:
    """An endpoint of the settings, ready to receive. Building it imports the handlers but reaches no database."""

    def __init__(
        self,
        settings: Settings,
        name: str,
        *,
        max_concurrency: int | None = None,
        model: ConcurrencyModel | None = None,
        batch_size: int | Literal["auto"] | None = None,
    ) -> None:
        self.settings = settings
        self.config: EndpointSettings = settings.senders.get(name) or settings.endpoint(name)
        self.alias = settings.database
        connection = connection_of(self.alias)
        self.book: AddressBook = settings.address_book(
            dialect_of_connection(connection).name, current_catalog(connection), endpoint=name
        )
        self.mode = TransactionMode(self.config.transaction_mode)
        self.model: ConcurrencyModel = model or self.config.concurrency_model
        self.concurrency = max_concurrency or self.config.concurrency(os.cpu_count() or 1)
        self.batch_size = batch_size or self.config.batch_size
        handlers = self._handlers()
        keyed = check_keys(handlers, endpoint=name, mode=self.mode, batch_size=self.batch_size)
        if keyed:
            self.batch_size = 1
        self._time_limits = TimeLimits(name, handlers)
        self._allowed = allowed_destinations(settings.allowed_destinations, self.book)
        self._composer = composer_for(settings, self.book, sender_identity(name, self.book))
        self.subscriptions = self._composer.subscribers.table
        self.handlers = (KeyedHandlerTable if keyed else HandlerTable)(
            handlers,
            body_names=settings.body_names,
            serializer=settings.serializer,
            subscriptions=SubscriptionMessages(self.subscriptions, self.book, own=name, allowed=self._allowed),
        )
        self.measures = Measures()
        self._duplicates: dict[str, Duplicates] = {}
        self._slow_handlers = SlowHandlers(name, self.config.slow_handler_seconds)
        self._policy = self._load_policy()
        # SQLite has one writer: a second connection would wait forever for the receive, so sends commit with it.
        checks = self._composer.claim_checks
        self._separate: SeparateDispatcher | None = None
        if connection.vendor != "sqlite":
            self._separate = SeparateDispatcher(self.alias, self.book, endpoint=name, claim_checks=checks)
        self.type_limits: TypeLimits | None = None
        """The rate limits of message types; None without any."""
        if rates := self.handlers.rates:
            self.type_limits = TypeLimits(name, rates, self.alias, None if self._separate is None else self._separate.second)
        self._log = transaction_log(self.alias)
        self._joined = Dispatcher(self.alias, self.book, endpoint=name, claim_checks=checks)
        self._dispatcher = (self._separate or self._joined) if self.mode is TransactionMode.RECEIVE_ONLY else self._joined

    def _load_policy(self) -> Policy:
        if self.config.recoverability is None:
            return default_policy
        policy: Policy = load_callable(self.config.recoverability, setting=f"RECOVERABILITY of endpoint {self.name!r}")
        return policy

    def _handlers(self) -> list[Handler]:
        """The handlers with the options that the settings add."""
        setting = f"MIDDLEWARE of endpoint {self.name!r}"
        middleware = load_middleware(self.config.middleware, setting=setting)
        own = [*handlers_of(self.config.handlers), *task_handlers(self.settings, self.name)]
        found = with_retries(own, self.config.retries)
        for handler in found:
            self._check_handler(handler)
        found = with_rates(found, self.config.rate_limits)
        found = with_time_limits(found, self.config.soft_time_limit_seconds, self.config.hard_time_limit_seconds)
        return around(found, middleware, setting=setting)

    def _check_handler(self, handler: Handler) -> None:
        """Raise ConfigurationError for a handler that cannot run here, and for a Retry in mode none or of an unknown error."""
        if handler.check is not None:
            handler.check(self.name, self.alias, self.mode)
        if (retry := handler.retry) is None:
            return
        what = f"handler {handler.path} has a Retry for {handler.message_type!r}"
        if self.mode is TransactionMode.NONE:
            raise ConfigurationError(
                f"{what}, but TRANSACTION_MODE of endpoint {self.name!r} is 'none', where nothing can be retried: "
                "remove the Retry, or choose another mode"
            )
        for path in (*retry.on, *retry.give_up_on):
            if isinstance(path, str):
                load_callable(path if "." in path else f"builtins.{path}", setting=f"{what}, which")

    @property
    def name(self) -> str:
        """The endpoint's name."""
        return self.config.name

    @property
    def events(self) -> list[str]:
        """The types handled as events, sorted: all except commands, types that ROUTES sends here, tasks and timeouts."""
        routes = Routes(self.settings.routes)
        others = self.handlers.timeout_types | {TASK_MESSAGE}
        names = (name for name in self.handlers.message_types if plain_name(name) not in others)
        return [name for name in names if routes.find(name) != self.name]

    def queue_exists(self, name: str) -> bool:
        """Whether the table of a literal queue name exists."""
        return queue_table(self.alias, self.book.of_queue(name)).exists()

    def create_callback_queue(self, name: str) -> None:
        """Create the table of a literal queue name. DatabaseError if this process may not."""
        planned = [PlannedTable(TableKind.QUEUE, self.book.of_queue(name))]
        dialect = dialect_of_connection(connection_of(self.alias)).name
        check_address(planned[0].address, dialect)
        install_tables(self.alias, planned, layout=self.settings.table_layout)

    def lease(self, *, concurrency: int) -> InstanceLease:
        """Register this process with a callback queue, as `lease_instance` does."""
        return lease_instance(
            self.config,
            alias=managed_alias(),
            concurrency=concurrency,
            exists=self.queue_exists,
            make=self.create_callback_queue,
            may_receive=self._may_receive,
        )

    def _may_receive(self, name: str) -> bool:
        """Whether this process has the rights to receive from a queue; deleting an expired message needs the same."""
        try:
            queue_table(self.alias, self.book.of_queue(name)).purge_expired(1)
        except PermissionDenied:
            return False
        return True

    @contextmanager
    def registering(self) -> Iterator[None]:
        """Context for registering this process: raises database errors as ours; the one for a missing table names `migrate`."""
        connection = connection_of(managed_alias())
        try:
            with database_errors(dialect_of_connection(connection), f"register an instance of {self.name!r}"):
                yield
        except DatabaseError as error:
            if isinstance(error, TransientError) or Instance._meta.db_table in connection.introspection.table_names():
                raise
            raise QueueNotFound(
                f"{error}; run {migrate_command(managed_alias())}, which creates the tables of sqlqueue_app"
            ) from error

    def receiving_queues(self, callback_queue: str | None) -> list[ReceivingQueue]:
        """The queues to receive from: the main one, the satellites, this process's callback queue."""
        queues = [ReceivingQueue(self._table(self.name), self.concurrency)]
        levels = self.config.priority_queue_names()
        queues += [ReceivingQueue(self._table(name), 0, follows_endpoint=False, shares_threads=True) for name in levels]
        drained = self.config.legacy_satellite_names()
        queues += [
            ReceivingQueue(
                self._table(name),
                self.config.satellite_concurrency(name, self.concurrency),
                is_drained=name in drained,
                follows_endpoint=not self.config.has_own_concurrency(name),
            )
            for name in self.config.receiving_queue_names()[1 + len(levels) :]
        ]
        if callback_queue is not None:
            number = self.config.callback_concurrency
            queues.append(ReceivingQueue(self._table(callback_queue), number, is_callback_queue=True, follows_endpoint=False))
        return queues

    def receiver(
        self,
        queue: ReceivingQueue,
        stop: StopSignal,
        *,
        empty: EmptyQueues | None = None,
        in_flight: InFlightRegistry | None = None,
    ) -> Receiver:
        """The receiver of one queue, not started."""
        levels = self.config.priority_queue_names() if queue.name == self.name else ()
        new_poller = self._new_poller(queue, stop, empty, in_flight)
        options = ReceiverOptions(
            maximum=queue.maximum,
            new_poller=new_poller,
            stop=stop,
            name=f"sqlqueue-{self.name}-{queue.name}",
            circuit_breaker_seconds=self.config.circuit_breaker_seconds,
            wake_up=self._wake_up(queue, stop, empty),
            levels=levels,
        )
        if self.model == "monitor":
            return MonitorReceiver(queue.name, options, peek_delay_seconds=self.config.peek_delay_seconds)
        return (FixedReceiver if self.model == "fixed" else AdaptiveReceiver)(queue.name, options)

    def _new_poller(
        self, queue: ReceivingQueue, stop: StopSignal, empty: EmptyQueues | None, in_flight: InFlightRegistry | None
    ) -> Callable[[], Poller]:
        """The function that creates the poller of a thread."""
        options: dict[str, Any] = {
            "stop": stop,
            "empty": empty,
            # A thread of the monitor's pool may idle for a while, and would hold its rows.
            # Callbacks of requests run after the commit, before the next receive may begin.
            "receives_ahead": self.model != "monitor" and not queue.is_callback_queue,
            "new_processor": self._processor_class(queue),
        }
        config = self.processor_config(queue, in_flight)
        if not (self.config.priorities and queue.name == self.name):
            return lambda: QueuePoller(queue.table, config, **options)
        # The queues are one in three parts: too many failures limit all of them.
        levels = [
            (level, replace(self.processor_config(level, in_flight), rate_limit=config.rate_limit)) for level in self._levels(queue)
        ]
        return lambda: PriorityPoller([LevelPoller(level.table, its, **options) for level, its in levels])

    def _levels(self, main: ReceivingQueue) -> list[ReceivingQueue]:
        """The queues of all priorities, in the order of PRIORITIES."""
        high, low = (replace(main, table=self._table(name)) for name in self.config.priority_queue_names())
        return [high, main, low]

    def _processor_class(self, queue: ReceivingQueue) -> NewProcessor | None:
        """The processor of a special queue; None for an ordinary one."""
        if queue.is_drained:
            return partial(SatelliteProcessor, routes=self._satellite_routes())
        return callback_processor(self.mode) if queue.is_callback_queue else None

    def callback_composer(self, queue: str) -> Composer:
        """The composer of requests whose replies go to the callback queue of this literal name."""
        reply_to = self.book.canonical(self.book.of_queue(queue))
        return composer_for(self.settings, self.book, replace(self._composer.identity, reply_to=reply_to))

    def _wake_up(self, queue: ReceivingQueue, stop: StopSignal, empty: EmptyQueues | None) -> WakeUp | None:
        """The wake-up for new messages; None with --until-empty, which polls each queue continuously."""
        if empty is not None:
            return None
        listens = self.config.wake_up is not False and can_listen(self.alias)
        if queue.is_callback_queue:
            return CallbackWakeUp(queue.name, queue.table.qualified, stop, listens=listens)
        if not listens:
            return None
        if self.config.priorities and queue.name == self.name:
            return PriorityWakeUp([level.table for level in self._levels(queue)], stop)
        return WakeUp(queue.name, queue.table.qualified, stop)

    def watching_jobs(self) -> list[BackgroundJob]:
        """Background jobs that watch slow handlers and time limits, and delete old ids of handled messages, as configured."""
        return [*self._slow_handlers.jobs(), *self._time_limits.jobs(), *(each.job() for each in self._duplicates.values())]

    def purge_jobs(self, queues: list[ReceivingQueue]) -> list[BackgroundJob]:
        """Background jobs that delete expired messages; none if PURGE_EXPIRED_EVERY is 0."""
        every = self.config.purge_expired_every_seconds
        if not every:
            return []
        return [
            BackgroundJob(
                f"purge expired of {queue.name}", every, partial(purge_expired, queue.table, self.config.purge_expired_batch)
            )
            for queue in queues
        ]

    def purge_on_startup(self, queues: list[ReceivingQueue]) -> None:
        """Delete everything in the queues, if PURGE_ON_STARTUP is set."""
        if not self.config.purge_on_startup:
            return
        for queue in queues:
            purged = queue.table.purge()
            logger.info(
                "%s purged from %s", counted(purged, "message"), queue.name, extra={"event": "queue_purged", "queue": queue.name}
            )

    def check_tables(self, queues: list[ReceivingQueue]) -> None:
        """Check driver and tables before receiving. QueueNotFound names all missing ones; merely slow tables are logged."""
        check_driver(queues[0].table)
        planned = [PlannedTable(TableKind.QUEUE, queue.table.address) for queue in queues]
        planned.append(PlannedTable(TableKind.QUEUE, self._error_address()))
        if (audit := self._audit_address()) is not None:
            planned.append(PlannedTable(TableKind.QUEUE, audit))
        planned.append(PlannedTable(TableKind.DELAYED, delayed_address(self.book, self.name)))
        if self.config.subscribe and self.events:
            planned.append(PlannedTable(TableKind.SUBSCRIPTIONS, self.subscriptions.address))
        findings = inspect_tables(self.alias, planned, layout=self.settings.table_layout)
        stopping = [finding for finding in findings if finding.kind in (FindingKind.MISSING, FindingKind.MISMATCH)]
        for finding in findings:
            if finding.kind is FindingKind.NON_UNICODE_HEADERS:
                logger.info("%s; to change it: %s", finding.text, finding.sql, extra={"event": "table_inspected"})
            elif finding not in stopping:
                logger.warning("%s; to add it: %s", finding.text, finding.sql, extra={"event": "table_inspected"})
        if self.mode is TransactionMode.TRANSACTION_SCOPE:
            name_coordinator(self._log)
        for needed in (self.type_limits, *map(self._duplicates_of, queues)):
            if needed is not None:
                needed.check()
        if stopping:
            found = "; ".join(finding.text for finding in stopping)
            remedy = "run sqlqueue_install or migrate, or start with --install"
            raise QueueNotFound(f"endpoint {self.name!r} cannot receive: {found}; {remedy}")

    def _table(self, name: str) -> QueueTable:
        return queue_table(self.alias, self.book.of_queue(name))

    def _error_address(self) -> QueueAddress:
        return self.book.parse(self.config.error_queue)

    def _duplicates_of(self, queue: ReceivingQueue) -> Duplicates | None:
        """The duplicate detection of a queue; None if DEDUPLICATE_FOR is off. ConfigurationError for another database."""
        seconds = self.config.deduplicate_for_seconds
        if not seconds or queue.is_drained:
            return None
        if queue.name not in self._duplicates:
            if (alias := router.db_for_write(HandledMessage)) != self.alias:
                raise ConfigurationError(handled_elsewhere(self.name, alias, self.alias))
            table = HandledTable(self.alias, HandledMessage._meta.db_table)
            address = self.book.canonical(queue.table.address)
            self._duplicates[queue.name] = Duplicates(table, endpoint=self.name, queue=queue.name, address=address, seconds=seconds)
        return self._duplicates[queue.name]

    def _audit_address(self) -> QueueAddress | None:
        return None if self.config.audit_queue is None else self.book.parse(self.config.audit_queue)

    def _error_queue_of(self, failed_queue: str, received_from: Iterable[QueueAddress] = ()) -> ErrorQueue:
        identity = self._composer.identity
        processor = Processor(self.name, identity.machine, identity.host_id)
        address = self._error_address()
        return ErrorQueue(self.alias, address, failed_queue=failed_queue, processor=processor, received_from=received_from)

    def _destinations(self) -> Destinations:
        """The destinations that headers of received messages may name."""
        return Destinations(
            self.alias,
            self.book,
            satellites=frozenset(self.config.legacy_satellite_names()),
            own=self.name,
            allowed=self._allowed,
        )

    def _satellite_routes(self) -> SatelliteRoutes:
        return SatelliteRoutes(
            main=self.book.canonical(self._table(self.name).address),
            destinations=self._destinations(),
            delayed=own_delayed_table(self.alias, self.book, self.name),
            error_queue_of=self._error_queue_of,
            now=utc_now,
        )

    def _recoverability(self) -> RecoverabilityConfig:
        config = self.config
        retries = (config.immediate_retries, config.delayed_retries) if self.mode is not TransactionMode.NONE else (0, 0)
        increase = timedelta(seconds=config.delayed_retry_increase_seconds)
        return RecoverabilityConfig(retries[0], config.error_queue, retries[1], increase)

    def processor_config(self, queue: ReceivingQueue, in_flight: InFlightRegistry | None = None) -> ProcessorConfig:
        """The configuration for processing the messages of a queue."""
        own = queue.table.address
        own_text = self.book.canonical(own)
        received_from = [own, *map(self.book.of_queue, self.config.receiving_queue_names())]
        return ProcessorConfig(
            endpoint=self.name,
            queue=queue.name,
            handlers=self.handlers,
            composer=self._composer,
            dispatcher=self._dispatcher,
            joined_dispatcher=self._joined,
            error_queue=self._error_queue_of(own_text, received_from),
            auditing=Auditing(
                self._audit_address(),
                self._composer,
                acknowledges=self.config.acknowledge_retries,
                allowed=self._allowed,
                error_queues={self.book.parse(each.error_queue) for each in self.settings.senders.values()},
            ),
            address=own,
            forwarding=Forwarding(self.name, own, own_text, self._destinations(), self._error_queue_of),
            recoverability=self._recoverability(),
            policy=self._policy,
            duplicates=self._duplicates_of(queue),
            slow_handlers=self._slow_handlers,
            time_limits=self._time_limits,
            measures=self.measures,
            type_limits=None if queue.is_callback_queue else self.type_limits,
            rate_limit=RateLimit(queue.name, after) if (after := self.config.rate_limit_after) is not None else None,
            failures=SharedFailures(),
            mode=self.mode,
            batch_size=self.batch_size,
            keys=None if queue.is_drained else key_window(self.name, queue.table, self.handlers, self._composer.claim_checks),
            immediate_dispatcher=self._separate,
            discard_failures=self.config.on_failure_without_transaction == "discard",
            allowed=self._allowed,
            participants=partial(participants_of, self._log, self.mode, queue.name),
            in_flight=in_flight,
        )


def endpoints_of(
    settings: Settings,
    names: list[str] | None,
    *,
    max_concurrency: int | None = None,
    model: ConcurrencyModel | None = None,
    batch_size: int | Literal["auto"] | None = None,
) -> list[ReceivingEndpoint]:
    """The named endpoints, or all in the settings except those that only send, unless there is only one.

    Raises ConfigurationError if there is none. Arguments of None keep the values of the settings.
    """
    # An endpoint with HANDLERS empty may exist only for processes that send as it: messages to it are kept.
    receiving = [name for name in settings.endpoints if name != settings.send_as or not settings.is_send_only(name)]
    chosen = list(dict.fromkeys(names or receiving or settings.endpoints))
    if not chosen:
        raise ConfigurationError(
            'no endpoint to run: SQLQUEUE["ENDPOINTS"] is empty; add one, such as "ENDPOINTS": {"Sales": {}}, and run migrate'
        )
    for name in chosen:
        settings.endpoint(name)
    return [
        ReceivingEndpoint(settings, name, max_concurrency=max_concurrency, model=model, batch_size=batch_size) for name in chosen
    ]


def participants_of(log: TransactionLog, mode: TransactionMode, queue: str) -> TwoPhaseParticipants | None:
    """The other databases in one thread's receive transactions (docs/internals/decisions.md#two-phase-commit); None without any."""
    aliases: Sequence[str] = aliases_beside(log.alias) if mode is TransactionMode.TRANSACTION_SCOPE else ()
    return TwoPhaseParticipants(aliases, log, queue) if aliases else None


def transaction_log(alias: str) -> TransactionLog:
    """The log of the queues' database, for use from many threads. Reaches no database."""
    kept_in = router.db_for_write(DistributedTransaction)
    return TransactionLog(alias, DistributedTransaction._meta.db_table, TwoPhaseCoordinator._meta.db_table, kept_in=kept_in)


def name_coordinator(log: TransactionLog) -> None:
    """Create the log's name before the first message, if other databases may take part. DatabaseError if that fails.

    Does nothing if the log is kept elsewhere: a check reports that, and so does the first message that needs the log.
    """
    if log.is_here and any(connections[alias].vendor in CAN_PREPARE for alias in aliases_beside(log.alias)):
        log.coordinator()


def purge_expired(table: QueueTable, batch: int) -> None:
    """Delete all expired messages, in commits of at most `batch` messages. DatabaseError if the database refuses."""
    purged = 0
    while True:
        deleted = table.purge_expired(batch)
        purged += deleted
        if deleted < batch:
            break
    if purged:
        name = table.address.table
        logger.info("%s purged from %s", counted(purged, "expired message"), name, extra={"event": "expired_purged", "queue": name})
