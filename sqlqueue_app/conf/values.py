"""The settings as values: one dataclass for each level of the `SQLQUEUE` dictionary.

The defaults stand here and nowhere else. Each field made with `setting` is a key: upper case, without `_seconds`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, Literal, get_args

from sqlqueue_app.conf.containers import ListOf, MapOf, Section, Sections, setting
from sqlqueue_app.conf.kinds import (
    CronLine,
    DottedPath,
    Flag,
    HostPattern,
    JsonObject,
    LakePlace,
    Network,
    QueueName,
    QueuePattern,
    Seconds,
    Secret,
    Text,
    TypePattern,
    WebAddress,
    Whole,
    Word,
)
from sqlqueue_app.conf.problems import meant
from sqlqueue_app.conf.task_backends import TaskBackend
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.errors import ConfigurationError
from sqlqueue_app.messages.resolution import AddressBook

TransactionMode = Literal["transaction_scope", "sends_atomic_with_receive", "receive_only", "none"]
ConcurrencyModel = Literal["fixed", "adaptive", "monitor"]
FailureWithoutTransaction = Literal["error_queue", "discard"]
TableLayout = Literal["classic", "modern"]
BodyNames = Literal["as_is", "pascal"]
Serializer = Literal["json", "xml"]
ErrorQueueOwner = Literal["sqlqueue", "servicecontrol"]

LEGACY_RETRIES: Final = ".Retries"
LEGACY_TIMEOUTS: Final = ".Timeouts"
LEGACY_TIMEOUTS_DISPATCHER: Final = ".TimeoutsDispatcher"

_ADDRESS: Final = Text("the address of a queue")
_ADDRESS_OR_NONE: Final = Text("the address of a queue", none=True)
_SCHEMA: Final = Text("the name of a schema")
_CATALOG: Final = Text("the name of a database")


def _empty() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class SatelliteSettings:
    """An extra receiver of an endpoint on a queue of its own."""

    name: str
    max_concurrency: int | None = field(default=None, metadata=setting(Whole(1, none=True)))

    def concurrency(self, endpoint_concurrency: int) -> int:
        """How many messages of this queue are handled at once; None is as many as the endpoint's main queue."""
        return endpoint_concurrency if self.max_concurrency is None else self.max_concurrency


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomCheckSettings:
    """A function whose result ServiceControl is told, by the name under which ServicePulse shows it."""

    name: str
    check: str = field(metadata=setting(DottedPath()))
    category: str = field(default="Custom", metadata=setting(Text("a word that groups checks")))
    every_seconds: float = field(default=60.0, metadata=setting(Seconds(1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSettings:
    """One endpoint: what it receives, how, and what happens on failure. Durations are seconds."""

    name: str
    handlers: tuple[str, ...] | None = field(default=None, metadata=setting(ListOf(DottedPath(), none=True)))
    transaction_mode: TransactionMode = field(default="transaction_scope", metadata=setting(Word(get_args(TransactionMode))))
    concurrency_model: ConcurrencyModel = field(default="adaptive", metadata=setting(Word(get_args(ConcurrencyModel))))
    max_concurrency: int | None = field(default=None, metadata=setting(Whole(1, none=True)))
    batch_size: int | Literal["auto"] = field(default=1, metadata=setting(Whole(1, word="auto")))
    wake_up: bool = field(default=False, metadata=setting(Flag()))
    callbacks: bool = field(default=True, metadata=setting(Flag()))
    callback_concurrency: int = field(default=1, metadata=setting(Whole(1)))
    instance: str | None = field(default=None, metadata=setting(QueueName(none=True)))
    callback_queues: int = field(default=8, metadata=setting(Whole(1)))
    legacy_addresses: bool = field(default=False, metadata=setting(Flag()))
    legacy_callback_header: bool = field(default=False, metadata=setting(Flag()))
    legacy_satellites: bool = field(default=False, metadata=setting(Flag()))
    satellites: Mapping[str, SatelliteSettings] = field(
        default_factory=_empty, metadata=setting(Sections(SatelliteSettings, QueueName(), "queue"))
    )
    peek_delay_seconds: float = field(default=1.0, metadata=setting(Seconds(0.1)))
    circuit_breaker_seconds: float = field(default=30.0, metadata=setting(Seconds()))
    rate_limit_after: int | None = field(default=None, metadata=setting(Whole(1, none=True)))
    immediate_retries: int = field(default=5, metadata=setting(Whole(0)))
    delayed_retries: int = field(default=3, metadata=setting(Whole(0)))
    delayed_retry_increase_seconds: float = field(default=10.0, metadata=setting(Seconds()))
    on_failure_without_transaction: FailureWithoutTransaction = field(
        default="error_queue", metadata=setting(Word(get_args(FailureWithoutTransaction)))
    )
    recoverability: str | None = field(default=None, metadata=setting(DottedPath(none=True)))
    middleware: tuple[str | Callable[..., object], ...] = field(default=(), metadata=setting(ListOf(DottedPath(callables=True))))
    slow_handler_seconds: float = field(default=10.0, metadata=setting(Seconds()))
    deduplicate_for_seconds: float | None = field(default=None, metadata=setting(Seconds(none=True)))
    error_queue: str = field(default="error", metadata=setting(_ADDRESS))
    audit_queue: str | None = field(default=None, metadata=setting(_ADDRESS_OR_NONE))
    acknowledge_retries: bool = field(default=True, metadata=setting(Flag()))
    service_control_queue: str | None = field(default=None, metadata=setting(_ADDRESS_OR_NONE))
    custom_checks: Mapping[str, CustomCheckSettings] = field(
        default_factory=_empty, metadata=setting(Sections(CustomCheckSettings, Text(), "check"))
    )
    purge_on_startup: bool = field(default=False, metadata=setting(Flag()))
    purge_expired_every_seconds: float = field(default=300.0, metadata=setting(Seconds()))  # 0: never
    purge_expired_batch: int = field(default=10_000, metadata=setting(Whole(1)))
    subscribe: bool = field(default=True, metadata=setting(Flag()))

    def concurrency(self, cores: int) -> int:
        """How many messages of the main queue are handled at once; None is max(2, cores), transport reference §15."""
        return max(2, cores) if self.max_concurrency is None else self.max_concurrency

    def receiving_queue_names(self) -> tuple[str, ...]:
        """The tables that all instances of the endpoint receive from: its own and its satellites'; literal names."""
        return (self.name, *dict.fromkeys((*self.legacy_satellite_names(), *self.satellites)))

    def legacy_satellite_names(self) -> tuple[str, ...]:
        """The satellite queues of transports 1.x to 3.x (transport reference §4.4), if they are drained; literal names."""
        if not self.legacy_satellites:
            return ()
        return tuple(self.name + suffix for suffix in (LEGACY_RETRIES, LEGACY_TIMEOUTS, LEGACY_TIMEOUTS_DISPATCHER))

    def satellite_concurrency(self, queue: str, endpoint_concurrency: int) -> int:
        """How many messages of a satellite's queue are handled at once; an entry of SATELLITES sets a legacy one apart too."""
        satellite = self.satellites.get(queue)
        return endpoint_concurrency if satellite is None else satellite.concurrency(endpoint_concurrency)

    def is_set_apart(self, queue: str) -> bool:
        """Whether SATELLITES gives the queue a number of its own."""
        return queue in self.satellites and self.satellites[queue].max_concurrency is not None

    def callback_queue_names(self, instance: str) -> tuple[str, ...]:
        """The pool of callback queues of one instance name: `<E>.<I>`, `<E>.<I>-2`, … (design §6.12)."""
        if not self.callbacks:
            return ()
        first = f"{self.name}.{instance}"
        return (first, *(f"{first}-{number}" for number in range(2, self.callback_queues + 1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSettings:
    """A message that is sent at the times of a crontab line, in Django's `TIME_ZONE`; 0 and 7 are Sunday."""

    name: str
    cron: str = field(metadata=setting(CronLine()))
    send: str = field(metadata=setting(Text("the full name of a message type")))
    body: Mapping[str, object] = field(default_factory=_empty, metadata=setting(JsonObject()))


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """Who may ask for the metrics; nobody where neither is set, and only who satisfies both where both are."""

    token: str | None = field(default=None, repr=False, metadata=setting(Secret(none=True)))
    networks: tuple[str, ...] = field(default=(), metadata=setting(ListOf(Network())))


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSettings:
    """The Spark pipeline: from which queues, to which lake, how much at a time. Durations are seconds."""

    lake: str | None = field(default=None, metadata=setting(LakePlace(none=True)))
    master: str = field(default="local[*]", metadata=setting(Text("the master of a Spark cluster")))
    audit_queues: tuple[str, ...] | None = field(default=None, metadata=setting(ListOf(_ADDRESS, none=True)))
    error_queues: tuple[str, ...] | None = field(default=None, metadata=setting(ListOf(_ADDRESS, none=True)))
    cron: str | None = field(default=None, metadata=setting(CronLine(none=True)))
    batch_size: int = field(default=500_000, metadata=setting(Whole(1)))
    every_seconds: float = field(default=10.0, metadata=setting(Seconds(0.1)))
    keep_days: int | None = field(default=None, metadata=setting(Whole(1, none=True)))
    peek_only: bool = field(default=False, metadata=setting(Flag()))
    spark: Mapping[str, str] = field(
        default_factory=_empty,
        repr=False,  # the keys of stores are here
        metadata=setting(MapOf(Text("a setting of Spark"), Text("a string that is not blank"))),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The whole `SQLQUEUE` dictionary, checked and with its defaults filled in. It does not change."""

    database: str = field(default="default", metadata=setting(Text("the name of an alias in DATABASES")))
    default_schema: str | None = field(default=None, metadata=setting(Text("the name of a schema", none=True)))
    schema_for_queue: Mapping[str, str] = field(default_factory=_empty, metadata=setting(MapOf(QueueName(), _SCHEMA)))
    schema_for_endpoint: Mapping[str, str] = field(default_factory=_empty, metadata=setting(MapOf(QueueName(), _SCHEMA)))
    catalog_for_queue: Mapping[str, str] = field(default_factory=_empty, metadata=setting(MapOf(QueueName(), _CATALOG)))
    catalog_for_endpoint: Mapping[str, str] = field(default_factory=_empty, metadata=setting(MapOf(QueueName(), _CATALOG)))
    table_layout: TableLayout = field(default="classic", metadata=setting(Word(get_args(TableLayout))))
    routes: Mapping[str, str] = field(default_factory=_empty, metadata=setting(MapOf(TypePattern(), QueueName())))
    send_as: str | None = field(default=None, metadata=setting(QueueName(none=True)))
    endpoints: Mapping[str, EndpointSettings] = field(
        default_factory=_empty, metadata=setting(Sections(EndpointSettings, QueueName(), "endpoint"))
    )
    body_names: BodyNames = field(default="as_is", metadata=setting(Word(get_args(BodyNames))))
    serializer: Serializer = field(default="json", metadata=setting(Word(get_args(Serializer))))
    error_queue_owner: ErrorQueueOwner = field(default="sqlqueue", metadata=setting(Word(get_args(ErrorQueueOwner))))
    allowed_destinations: tuple[str, ...] | None = field(default=None, metadata=setting(ListOf(QueuePattern(), none=True)))
    install_after_migrate: bool = field(default=True, metadata=setting(Flag()))
    schedules: Mapping[str, ScheduleSettings] = field(
        default_factory=_empty, metadata=setting(Sections(ScheduleSettings, Text(), "schedule"))
    )
    metrics: MetricsSettings | None = field(default=None, metadata=setting(Section(MetricsSettings)))
    admin_url: str | None = field(default=None, metadata=setting(WebAddress(none=True)))
    webhook_hosts: tuple[str, ...] | None = field(default=None, metadata=setting(ListOf(HostPattern(), none=True)))
    pipeline: PipelineSettings | None = field(default=None, metadata=setting(Section(PipelineSettings)))
    task_backends: Mapping[str, TaskBackend] = field(default_factory=_empty)
    """Not of `SQLQUEUE`: the entries of Django's `TASKS` that name our backend, by alias."""

    def endpoint(self, name: str) -> EndpointSettings:
        """The settings of an endpoint by its exact name; raises ConfigurationError where there is none."""
        found = self.endpoints.get(name)
        if found is None:
            near = meant(name, self.endpoints)
            raise ConfigurationError(f'endpoint {name!r} is not in SQLQUEUE["ENDPOINTS"]{near or ", add it there"}')
        return found

    @property
    def senders(self) -> Mapping[str, EndpointSettings]:
        """The endpoints, and that of SEND_AS also without an entry: it handles nothing, and no worker runs it; it has replies."""
        if self.send_as is None or self.send_as in self.endpoints:
            return self.endpoints
        sender = EndpointSettings(name=self.send_as, handlers=())
        if (first := next(iter(self.endpoints.values()), None)) is not None:
            sender = replace(sender, error_queue=first.error_queue)
        return MappingProxyType({**self.endpoints, self.send_as: sender})

    @property
    def delays_as(self) -> str | None:
        """In whose delayed table the messages of a process that is no endpoint wait: that of SEND_AS, or of the first endpoint."""
        return self.send_as or next(iter(self.endpoints), None)

    @property
    def announces(self) -> bool:
        """Whether an endpoint of these settings is woken by new messages: then all that is sent under them is announced."""
        return any(endpoint.wake_up for endpoint in self.endpoints.values())

    def queue_names(self) -> tuple[str, ...]:
        """The literal names of the tables that the endpoints receive from: their own and their satellites'."""
        names = (name for endpoint in self.endpoints.values() for name in endpoint.receiving_queue_names())
        return tuple(dict.fromkeys(names))

    def queue_addresses(self, dialect: str) -> tuple[QueueAddress, ...]:
        """Every queue that the endpoints need, each once: `queue_names` as they are, then error and audit addresses.

        The latter are text in the form of the dialect; raises AddressError where one cannot be read. Neither default
        schemas nor the schema settings are applied: that is the address book's work.
        """
        literal = [QueueAddress(name, form=dialect) for name in self.queue_names()]
        texts = [text for each in self.endpoints.values() for text in (each.error_queue, each.audit_queue) if text]
        return tuple(dict.fromkeys([*literal, *(QueueAddress.parse(text, dialect) for text in texts)]))

    def address_book(self, dialect: str, default_catalog: str | None = None, *, endpoint: str | None = None) -> AddressBook:
        """The rules that turn addresses into tables under these settings, and as an endpoint reads them in its messages.

        `default_catalog` only on SQL Server.
        """
        reader = self.endpoints.get(endpoint) if endpoint is not None else None
        return AddressBook(
            dialect=dialect,
            default_schema=self.default_schema,
            default_catalog=default_catalog,
            schema_for_queue=self.schema_for_queue,
            schema_for_endpoint=self.schema_for_endpoint,
            catalog_for_queue=self.catalog_for_queue,
            catalog_for_endpoint=self.catalog_for_endpoint,
            cuts_received=reader is not None and reader.legacy_addresses,
        )
