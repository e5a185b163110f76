"""The `SQLQUEUE` setting: its declaration, its values, and the settings of the running process.

The dataclasses declare all settings: the name, type, default and attribute of each are here and nowhere else (`validation.py`
explains how fields become keys). `python -m docs.settings_tables` writes the tables of docs/reference/settings.md from them.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Final, Literal

from django.apps import apps
from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.db import connections
from django.db.utils import load_backend
from django.dispatch import receiver

from sqlqueue_app.conf.kinds import (
    MAX_MEMORY,
    Address,
    CatalogName,
    Count,
    CountOrZero,
    CronLine,
    DottedPath,
    Flag,
    HostPattern,
    JsonObject,
    LakePlace,
    Network,
    ParallelCount,
    QueueName,
    QueuePattern,
    RateText,
    RetryRule,
    SchemaName,
    Seconds,
    Secret,
    Text,
    TypePattern,
    WebAddress,
    integer,
    seconds,
    text,
)
from sqlqueue_app.conf.task_backends import (
    TaskBackend,
    find_missing_queues,
    names_our_backend,
    read_task_backends,
    with_endpoints_for_tasks,
)
from sqlqueue_app.conf.validation import (
    ROOT,
    Code,
    Findings,
    Given,
    Problem,
    check_combinations,
    listed,
    places_of,
    read_section,
    shown_at,
    suggestion,
)
from sqlqueue_app.messages.addresses import AddressBook, QueueAddress
from sqlqueue_app.messages.errors import ConfigurationError
from sqlqueue_app.policies.priorities import PRIORITY_SUFFIXES

TransactionMode = Literal["transaction_scope", "sends_atomic_with_receive", "receive_only", "none"]
ConcurrencyModel = Literal["fixed", "adaptive", "monitor"]
FailureWithoutTransaction = Literal["error_queue", "discard"]
TableLayout = Literal["classic", "modern"]
BodyNames = Literal["as_is", "pascal_case", "pascal"]
Serializer = Literal["json", "xml"]
ErrorQueueOwner = Literal["sqlqueue", "servicecontrol"]

LEGACY_RETRIES: Final = ".Retries"
LEGACY_TIMEOUTS: Final = ".Timeouts"
LEGACY_TIMEOUTS_DISPATCHER: Final = ".TimeoutsDispatcher"


def _empty() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class SatelliteSettings:
    """An extra receiver of an endpoint on a queue of its own."""

    entry: ClassVar = "queue"
    name: Given[str]
    max_concurrency: ParallelCount | None = None

    def concurrency(self, endpoint_concurrency: int) -> int:
        """The concurrency of this queue; None means that of the endpoint's main queue."""
        return endpoint_concurrency if self.max_concurrency is None else self.max_concurrency


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomCheckSettings:
    """A function whose result is reported to ServiceControl, with the name that ServicePulse shows."""

    entry: ClassVar = "check"
    name: Given[str]
    check: DottedPath
    category: Annotated[str, text("a word that groups checks")] = "Custom"
    every_seconds: Annotated[float, seconds(1)] = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSettings:
    """The settings of one endpoint: queues, concurrency, transactions and recoverability. Durations are seconds."""

    entry: ClassVar = "endpoint"
    name: Given[str]
    handlers: tuple[DottedPath, ...] | None = None
    transaction_mode: TransactionMode = "transaction_scope"
    concurrency_model: ConcurrencyModel = "adaptive"
    max_concurrency: ParallelCount | None = None
    batch_size: Count | Literal["auto"] = 1
    priorities: Flag = False
    wake_up: Flag | None = None
    callbacks: Flag | Literal["on_request"] = "on_request"
    callback_concurrency: ParallelCount = 1
    instance: QueueName | None = None
    callback_queues: ParallelCount = 8
    legacy_addresses: Flag = False
    legacy_callback_header: Flag = False
    legacy_satellites: Flag = False
    satellites: Mapping[QueueName, SatelliteSettings] = field(default_factory=_empty)
    peek_delay_seconds: Annotated[float, seconds(0.1)] = 1.0
    circuit_breaker_seconds: Seconds = 30.0
    rate_limit_after: Count | None = None
    immediate_retries: CountOrZero = 5
    delayed_retries: CountOrZero = 3
    delayed_retry_increase_seconds: Seconds = 10.0
    retries: Mapping[TypePattern, RetryRule] = field(default_factory=_empty)
    rate_limits: Mapping[TypePattern, RateText] = field(default_factory=_empty)
    on_failure_without_transaction: FailureWithoutTransaction = "error_queue"
    recoverability: DottedPath | None = None
    middleware: tuple[DottedPath | Callable[..., object], ...] = ()
    slow_handler_seconds: Seconds = 10.0
    soft_time_limit_seconds: Annotated[float, seconds(0.1)] | None = None
    hard_time_limit_seconds: Annotated[float, seconds(0.1)] | None = None
    deduplicate_for_seconds: Seconds | None = None
    error_queue: Address = "error"
    audit_queue: Address | None = None
    acknowledge_retries: Flag = True
    service_control_queue: Address | None = None
    custom_checks: Mapping[Text, CustomCheckSettings] = field(default_factory=_empty)
    purge_on_startup: Flag = False
    purge_expired_every_seconds: Seconds = 300.0  # 0: never
    purge_expired_batch: Count = 10_000
    subscribe: Flag = True

    def concurrency(self, cores: int) -> int:
        """The concurrency of the main queue (docs/internals/endpoints.md#default-values)."""
        return max(2, cores) if self.max_concurrency is None else self.max_concurrency

    def receiving_queue_names(self) -> tuple[str, ...]:
        """The tables that all instances of the endpoint receive from: its own and its satellites'; literal names."""
        return (self.name, *self.priority_queue_names(), *dict.fromkeys((*self.legacy_satellite_names(), *self.satellites)))

    def priority_queue_names(self) -> tuple[str, ...]:
        """The queues of the other priorities, highest first; the threads of the main queue also receive from them."""
        return tuple(self.name + suffix for suffix in PRIORITY_SUFFIXES.values()) if self.priorities else ()

    def legacy_satellite_names(self) -> tuple[str, ...]:
        """The drained satellites of transports 1.x to 3.x (docs/internals/endpoints.md#queues-of-an-endpoint)."""
        if not self.legacy_satellites:
            return ()
        return tuple(self.name + suffix for suffix in (LEGACY_RETRIES, LEGACY_TIMEOUTS, LEGACY_TIMEOUTS_DISPATCHER))

    def satellite_concurrency(self, queue: str, endpoint_concurrency: int) -> int:
        """The concurrency of a satellite's queue; an entry of SATELLITES also applies to a legacy satellite."""
        satellite = self.satellites.get(queue)
        return endpoint_concurrency if satellite is None else satellite.concurrency(endpoint_concurrency)

    def has_own_concurrency(self, queue: str) -> bool:
        """Whether SATELLITES sets the concurrency of the queue."""
        return queue in self.satellites and self.satellites[queue].max_concurrency is not None

    def callback_queue_name(self, instance: str, number: int) -> str:
        """The callback queues of an instance: `<E>.<I>`, `<E>.<I>-2`, … (docs/internals/decisions.md#callback-queues)."""
        return f"{self.name}.{instance}" if number == 1 else f"{self.name}.{instance}-{number}"

    def callback_queue_names(self, instance: str) -> tuple[str, ...]:
        """The callback queues that the installer creates for an instance; none if CALLBACKS is False."""
        if not self.callbacks:
            return ()
        return tuple(self.callback_queue_name(instance, number) for number in range(1, self.callback_queues + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSettings:
    """A message that is sent at the times of a crontab line, in Django's `TIME_ZONE`; 0 and 7 are Sunday."""

    entry: ClassVar = "schedule"
    name: Given[str]
    cron: CronLine
    send: Annotated[str, text("the full name of a message type", 255)]
    body: JsonObject = field(default_factory=_empty)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """The access to the metrics: denied if neither is set; if both are set, a request must satisfy both."""

    token: Secret | None = field(default=None, repr=False)
    networks: tuple[Network, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimCheckSettings:
    """Where the bodies of large messages are stored, and which ones."""

    storage: Annotated[str, text("the name of an alias in STORAGES")] = "default"
    above: Count = 256 << 10
    endpoints: tuple[QueueName, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSettings:
    """The settings of the Spark pipeline: queues, lake, and batch sizes. Durations are seconds."""

    lake: LakePlace | None = None
    master: Annotated[str, text("the master of a Spark cluster")] = "local[*]"
    audit_queues: tuple[Address, ...] | None = None
    error_queues: tuple[Address, ...] | None = None
    cron: CronLine | None = None
    batch_size: Count = 500_000
    every_seconds: Annotated[float, seconds(0.1)] = 10.0
    keep_days: Count | None = None
    peek_only: Flag = False
    spark: Mapping[Annotated[str, text("a setting of Spark")], Text] = field(
        default_factory=_empty,
        repr=False,  # contains the keys of object stores
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The whole `SQLQUEUE` dictionary, checked and with its defaults filled in. Immutable."""

    database: Annotated[str, text("the name of an alias in DATABASES")] = "default"
    default_schema: SchemaName | None = None
    schema_for_queue: Mapping[QueueName, SchemaName] = field(default_factory=_empty)
    schema_for_endpoint: Mapping[QueueName, SchemaName] = field(default_factory=_empty)
    catalog_for_queue: Mapping[QueueName, CatalogName] = field(default_factory=_empty)
    catalog_for_endpoint: Mapping[QueueName, CatalogName] = field(default_factory=_empty)
    table_layout: TableLayout = "classic"
    routes: Mapping[TypePattern, QueueName] = field(default_factory=_empty)
    send_as: QueueName | None = None
    endpoints: Mapping[QueueName, EndpointSettings] = field(default_factory=_empty)
    priority_endpoints: tuple[QueueName, ...] = ()
    body_names: BodyNames = "as_is"
    serializer: Serializer = "json"
    max_body_size: Count | None = 16 << 20
    claim_check: ClaimCheckSettings | None = None
    error_queue_owner: ErrorQueueOwner = "sqlqueue"
    allowed_destinations: tuple[QueuePattern, ...] | None = None
    install_after_migrate: Flag = True
    eager: Flag = False
    max_messages_per_process: Count | None = None
    max_memory_per_process: Annotated[int, integer(1, MAX_MEMORY)] | None = None
    outgoing_middleware: tuple[DottedPath | Callable[..., object], ...] = ()
    schedules: Mapping[Annotated[str, text("a string that is not blank", 255)], ScheduleSettings] = field(default_factory=_empty)
    metrics: MetricsSettings | None = None
    instance_expiry_seconds: Annotated[float, seconds(60)] = 600.0
    admin_url: WebAddress | None = None
    webhook_hosts: tuple[HostPattern, ...] | None = None
    pipeline: PipelineSettings | None = None
    task_backends: Given[Mapping[str, TaskBackend]] = field(default_factory=_empty)
    """The entries of Django's `TASKS` that name our backend, by alias."""

    def endpoint(self, name: str) -> EndpointSettings:
        """The settings of an endpoint by its exact name; raises ConfigurationError if there is none."""
        found = self.endpoints.get(name)
        if found is None:
            near = suggestion(name, self.endpoints)
            raise ConfigurationError(f'endpoint {name!r} is not in SQLQUEUE["ENDPOINTS"]{near or ", add it there"}')
        return found

    @property
    def senders(self) -> Mapping[str, EndpointSettings]:
        """The endpoints, including SEND_AS without an entry, which handles nothing, runs in no worker, and gets replies."""
        if self.send_as is None or self.send_as in self.endpoints:
            return self.endpoints
        sender = EndpointSettings(name=self.send_as, handlers=())
        if (first := next(iter(self.endpoints.values()), None)) is not None:
            sender = replace(sender, error_queue=first.error_queue)
        return MappingProxyType({**self.endpoints, self.send_as: sender})

    def is_send_only(self, endpoint: str) -> bool:
        """Whether the settings give the endpoint neither handlers nor tasks: it only sends, and may await replies."""
        if endpoint in self.endpoints and any(each.takes_tasks(endpoint, self.endpoints) for each in self.task_backends.values()):
            return False
        return endpoint in self.senders and self.senders[endpoint].handlers == ()

    @property
    def delays_as(self) -> str | None:
        """The endpoint whose delayed table a process that is not an endpoint uses: SEND_AS, or the first endpoint."""
        return self.send_as or next(iter(self.endpoints), None)

    def queue_names(self) -> tuple[str, ...]:
        """The literal names of the tables that the endpoints receive from: their own and their satellites'."""
        names = (name for endpoint in self.endpoints.values() for name in endpoint.receiving_queue_names())
        return tuple(dict.fromkeys(names))

    def queue_addresses(self, dialect: str) -> tuple[QueueAddress, ...]:
        """Every queue that the settings name, each once: those of endpoints and SEND_AS, then error and audit addresses.

        The latter are text in the form of the dialect; raises AddressError if one cannot be read. Neither default
        schemas nor the schema settings are applied: the address book does that.
        """
        names = (name for each in self.senders.values() for name in each.receiving_queue_names())
        literal = [QueueAddress(name, form=dialect) for name in names]
        texts = [text for each in self.senders.values() for text in (each.error_queue, each.audit_queue) if text]
        return tuple(dict.fromkeys([*literal, *(QueueAddress.parse(text, dialect) for text in texts)]))

    def address_book(self, dialect: str, default_catalog: str | None = None, *, endpoint: str | None = None) -> AddressBook:
        """The rules for resolving addresses in messages of `endpoint`; `default_catalog` applies to SQL Server only."""
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


def settings_problems(raw: object, *, dialects: Mapping[str, str] | None = None) -> list[Problem]:
    """All problems of the dictionary, as found by `read_settings`."""
    return read_settings(raw, dialects=dialects)[1]


def read_settings(raw: object, *, dialects: Mapping[str, str] | None = None) -> tuple[Settings, list[Problem]]:
    """The settings with defaults in place of wrong values, and all problems: single values first, then combinations.

    Use the settings only if no problem is an error. `dialects` maps the aliases of DATABASES to "sqlserver", "postgresql" or
    "sqlite"; its `[]` may raise ConfigurationError for an unsupported database. Without it the rules about databases are
    skipped.
    """
    findings = Findings(places_of(Settings))
    if not isinstance(raw, Mapping):
        message = f"{ROOT} is {shown_at(raw, ROOT)}, expected a dictionary"
        findings.add(ROOT, message, "write SQLQUEUE = {} for the defaults, or remove it", Code.NOT_A_DICTIONARY)
        return Settings(), findings.problems
    settings = read_section(Settings, raw, ROOT, findings) or Settings()
    check_combinations(settings, dialects, findings)
    return settings, findings.problems


@lru_cache(maxsize=1)
def get_settings() -> Settings:
    """The `SQLQUEUE` setting, checked and complete; without the setting, the defaults and no endpoints but those for `TASKS`.

    Reads Django's settings at the first call and never connects to a database. Raises ConfigurationError that lists all
    errors, and as `check_installed`; warnings are left to the system checks. Safe to call from any thread.
    """
    return _checked(ConfiguredDialects())


def settings_for(dialect: str) -> Settings:
    """The setting as `get_settings` returns it, but checked as on databases of this dialect: for a script to run elsewhere."""
    return _checked(dict.fromkeys(connections.settings, dialect))


def _checked(dialects: Mapping[str, str]) -> Settings:
    check_installed()
    settings, problems = _read(dialects)
    errors = [problem.message for problem in problems if problem.is_error]
    if len(errors) == 1:
        raise ConfigurationError(errors[0])
    if errors:
        raise ConfigurationError(f"{len(errors)} settings are wrong: {'; '.join(errors)}")
    return settings


def check_installed() -> None:
    """Raise ConfigurationError if the app is missing from INSTALLED_APPS: its models, commands and checks are missing then."""
    if apps.models_ready and not apps.is_installed("sqlqueue_app"):
        raise ConfigurationError("'sqlqueue_app' is not in INSTALLED_APPS: add it there and run migrate")


def current_problems() -> list[Problem]:
    """The errors and warnings about the `SQLQUEUE` setting of this process and about our entries in `TASKS`."""
    return _read(ConfiguredDialects())[1]


def is_configured() -> bool:
    """Whether the project has a `SQLQUEUE` setting at all, or TASKS that need one."""
    return hasattr(django_settings, "SQLQUEUE") or names_our_backend(getattr(django_settings, "TASKS", None))


def instance_name(endpoint: EndpointSettings | None = None) -> str:
    """The name of this instance in callback queues: the endpoint's INSTANCE, else the machine name.

    Processes on one machine share it. Raises ConfigurationError on a machine without a name.
    """
    name = (endpoint.instance if endpoint is not None else None) or platform.node()
    if not name:
        raise ConfigurationError("the machine has no name, expected one for its callback queues; set INSTANCE")
    return name


def _read(dialects: Mapping[str, str]) -> tuple[Settings, list[Problem]]:
    if not is_configured():
        return Settings(), []
    findings = Findings()
    backends = read_task_backends(getattr(django_settings, "TASKS", None), findings)
    raw = with_endpoints_for_tasks(getattr(django_settings, "SQLQUEUE", {}), backends)
    settings, problems = read_settings(raw, dialects=dialects)
    if not any(problem.is_error for problem in problems):
        find_missing_queues(backends, settings.endpoints, findings)
    return replace(settings, task_backends=backends), [*problems, *findings.problems]


@receiver(setting_changed, dispatch_uid="sqlqueue_app.conf.forget_settings")
def _forget_settings(*, setting: str, **_: Any) -> None:
    if setting in ("SQLQUEUE", "DATABASES", "TASKS"):
        get_settings.cache_clear()


_BY_ENGINE: Final = {"mssql": "sqlserver", "django.db.backends.postgresql": "postgresql", "django.db.backends.sqlite3": "sqlite"}
_BY_VENDOR: Final = {"microsoft": "sqlserver", "postgresql": "postgresql", "sqlite": "sqlite"}
_SUPPORTED: Final = "SQL Server (mssql-django), PostgreSQL and SQLite"


def dialect_of(alias: str) -> str:
    """The dialect of an alias: "sqlserver", "postgresql" or "sqlite".

    The usual engines are known by name, so that no driver needs to be installed; a wrapper around one of them (such as
    django_prometheus) is loaded to read its vendor. Never connects. Raises ConfigurationError for an unknown
    alias, an engine that cannot be loaded, and an unsupported database.
    """
    if alias not in connections.settings:
        near = suggestion(alias, connections.settings)
        raise ConfigurationError(f"the alias {alias!r} is not in DATABASES{near or f', expected {listed(connections.settings)}'}")
    engine = str(connections.settings[alias].get("ENGINE", ""))
    if engine in _BY_ENGINE:
        return _BY_ENGINE[engine]
    try:
        vendor = load_backend(engine).DatabaseWrapper.vendor
    except (ImproperlyConfigured, ImportError) as error:
        raise ConfigurationError(f"the engine {engine!r} of the database {alias!r} cannot be loaded: {error}") from error
    if vendor not in _BY_VENDOR:
        raise ConfigurationError(f"the engine {engine!r} of the database {alias!r} is not supported, expected one for {_SUPPORTED}")
    return _BY_VENDOR[vendor]


class ConfiguredDialects(Mapping[str, str]):
    """The aliases of DATABASES and, on demand, the dialect of each; `[]` raises the errors of `dialect_of`."""

    def __getitem__(self, alias: str) -> str:
        if alias not in connections.settings:
            raise KeyError(alias)
        return dialect_of(alias)

    def __contains__(self, alias: object) -> bool:
        return alias in connections.settings

    def __iter__(self) -> Iterator[str]:
        return iter(connections.settings)

    def __len__(self) -> int:
        return len(connections.settings)
