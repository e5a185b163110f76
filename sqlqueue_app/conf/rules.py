"""Rules between settings: combinations that are each fine alone and wrong together.

Each rule looks at settings that were read already, so at values of the right type. What was found wrong before is left
out: one mistake gives one problem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from sqlqueue_app.conf.not_yet import NotYet
from sqlqueue_app.conf.problems import Code, Findings, KeyPath, Problem, listed, meant, shown
from sqlqueue_app.conf.values import EndpointSettings, Settings
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.errors import AddressError
from sqlqueue_app.messages.identifiers import check_name

ROOT: Final = KeyPath()
_SLOW_PEEK_SECONDS: Final = 10
_DELAYED: Final = ".Delayed"
_TITLES: Final = {"postgresql": "PostgreSQL", "sqlite": "SQLite", "sqlserver": "SQL Server"}


@dataclass(frozen=True, slots=True)
class Facts:
    """What the rules know: the settings as read, the dictionary they came from, and what is known of the databases."""

    settings: Settings
    raw: Mapping[object, object]
    aliases: tuple[str, ...] | None
    dialect: str | None
    dialect_fault: str | None
    not_yet: Mapping[tuple[str, ...], NotYet]


Rule = Callable[[Facts], Iterator[Problem]]
EndpointRule = Callable[[Facts, EndpointSettings, KeyPath], Iterator[Problem]]


def apply_rules(facts: Facts, findings: Findings) -> None:
    """Add what the combinations are guilty of; endpoints with wrong values of their own are looked at when mended."""
    for rule in _RULES:
        problems = [problem for problem in rule(facts) if not findings.has_error_at(problem.key_path)]
        findings.problems.extend(problems)
    for name, endpoint in facts.settings.endpoints.items():
        at = ROOT / "ENDPOINTS" / name
        if not findings.has_error_at(at):
            findings.problems.extend(problem for rule in _ENDPOINT_RULES for problem in rule(facts, endpoint, at))


def _alias_exists(facts: Facts) -> Iterator[Problem]:
    alias, at = facts.settings.database, ROOT / "DATABASE"
    if facts.aliases is not None and alias not in facts.aliases:
        message = f"{at} is {alias!r}, expected an alias of DATABASES{meant(alias, facts.aliases)}"
        yield Problem(at, message, f"the aliases are {listed(facts.aliases, last='and')}", Code.UNKNOWN_ALIAS)


def _database_is_supported(facts: Facts) -> Iterator[Problem]:
    at = ROOT / "DATABASE"
    if facts.dialect_fault is not None:
        message = f"{at} is {facts.settings.database!r}, but {facts.dialect_fault}"
        yield Problem(at, message, "name an alias of a supported database", Code.UNSUPPORTED_DATABASE)


def _catalogs_only_on_sql_server(facts: Facts) -> Iterator[Problem]:
    if facts.dialect is None or facts.dialect == "sqlserver":
        return
    for key in ("CATALOG_FOR_QUEUE", "CATALOG_FOR_ENDPOINT"):
        if getattr(facts.settings, key.lower()):
            at = ROOT / key
            message = f"{at} is set, but only SQL Server has catalogs and the queues are on {_TITLES[facts.dialect]}"
            yield Problem(at, message, "remove the key", Code.CATALOG_OFF_SQL_SERVER)


def _no_schemas_on_sqlite(facts: Facts) -> Iterator[Problem]:
    if facts.dialect != "sqlite":
        return
    for key in ("DEFAULT_SCHEMA", "SCHEMA_FOR_QUEUE", "SCHEMA_FOR_ENDPOINT"):
        if getattr(facts.settings, key.lower()):
            at = ROOT / key
            message = f"{at} is {shown(facts.raw[key])}, but SQLite has no schemas and the queues are on SQLite"
            yield Problem(at, message, "remove the key where the queues are on SQLite", Code.SCHEMA_ON_SQLITE)


def _local_endpoints_have_no_schema(facts: Facts) -> Iterator[Problem]:
    """NServiceBus throws for it too (transport reference §3.3)."""
    for kind in ("SCHEMA", "CATALOG"):
        key = f"{kind}_FOR_ENDPOINT"
        for name in getattr(facts.settings, key.lower()):
            if name in facts.settings.endpoints:
                at = ROOT / key / name
                message = f'{at} names an endpoint of this process (SQLQUEUE["ENDPOINTS"]), expected another one'
                yield Problem(at, message, f"use {kind}_FOR_QUEUE for its queue", Code.LOCAL_ENDPOINT)


def _queues_are_not_shared(facts: Facts) -> Iterator[Problem]:
    """Each table has one receiver: two would take each other's messages."""
    # PostgreSQL tells names apart by case; SQLite does not, nor does SQL Server under its usual collations.
    fold: Callable[[str], str] = str if facts.dialect in (None, "postgresql") else str.casefold
    owners: dict[str, str] = {}
    reported: set[KeyPath] = set()
    for place, queue, owner in _queues(facts.settings):
        first = owners.setdefault(fold(queue), owner)
        if first != owner and place not in reported:
            reported.add(place)
            message = f"{place} uses the queue {queue!r}, which is {first} already"
            yield Problem(place, message, "give each receiver a queue of its own", Code.SHARED_QUEUE)


def _queues(settings: Settings) -> Iterator[tuple[KeyPath, str, str]]:
    """Every table with one reader: the place that names it, its name, and whose it is. Endpoints come first."""
    for name in settings.endpoints:
        yield ROOT / "ENDPOINTS" / name, name, f"the queue of endpoint {name!r}"
    for name, endpoint in settings.endpoints.items():
        at = ROOT / "ENDPOINTS" / name
        yield at, f"{name}{_DELAYED}", f"the table of delayed messages of endpoint {name!r}"
        for satellite in endpoint.receiving_queue_names()[1:]:
            yield _place_of_satellite(endpoint, satellite), satellite, f"the satellite {satellite!r} of endpoint {name!r}"
        if endpoint.instance is not None:
            for queue in endpoint.callback_queue_names(endpoint.instance):
                yield at / "INSTANCE", queue, f"a callback queue of endpoint {name!r}"


def _place_of_satellite(endpoint: EndpointSettings, queue: str) -> KeyPath:
    at = ROOT / "ENDPOINTS" / endpoint.name
    return at / "SATELLITES" / queue if queue in endpoint.satellites else at / "LEGACY_SATELLITES"


def _names_fit(facts: Facts) -> Iterator[Problem]:
    if facts.dialect is None:
        return
    for name, endpoint in facts.settings.endpoints.items():
        at = ROOT / "ENDPOINTS" / name
        satellites = [(_place_of_satellite(endpoint, queue), queue) for queue in endpoint.receiving_queue_names()[1:]]
        for place, queue in [(at, name), *satellites]:
            try:
                check_name(queue, facts.dialect)
            except AddressError as error:
                hint = "rename it on both sides, NServiceBus has the same limit"
                yield Problem(place, f"{place}: {error}", hint, Code.NAME_TOO_LONG)


def _targets_are_other_queues(facts: Facts, endpoint: EndpointSettings, at: KeyPath) -> Iterator[Problem]:
    """A failed message that went back into the queue it came from would fail for ever."""
    targets = {
        "ERROR_QUEUE": endpoint.error_queue,
        "AUDIT_QUEUE": endpoint.audit_queue,
        "SERVICE_CONTROL_QUEUE": endpoint.service_control_queue,
    }
    for key, text in targets.items():
        if text is None:
            continue
        try:
            table = QueueAddress.parse(text, facts.dialect or "sqlserver").table
        except AddressError as error:
            yield Problem(at / key, f"{at / key}: {error}", "write the name of a queue", Code.BAD_ADDRESS)
            continue
        if table in endpoint.receiving_queue_names():
            message = f"{at / key} is {shown(text)}, expected a queue that the endpoint does not receive from"
            yield Problem(at / key, message, "give it another queue, such as the default", Code.OWN_QUEUE_AS_TARGET)


def _no_retries_without_transaction(_: Facts, endpoint: EndpointSettings, at: KeyPath) -> Iterator[Problem]:
    """Core 8 and later refuse to start too (transport reference §9)."""
    if endpoint.transaction_mode != "none":
        return
    for key in ("IMMEDIATE_RETRIES", "DELAYED_RETRIES"):
        number = getattr(endpoint, key.lower())
        if number > 0:
            message = f"{at / key} is {number}, but in transaction mode 'none' there is nothing to retry"
            hint = "set IMMEDIATE_RETRIES and DELAYED_RETRIES both to 0"
            yield Problem(at / key, message, hint, Code.RETRIES_WITHOUT_TRANSACTION)


def _no_deduplication_without_transaction(_: Facts, endpoint: EndpointSettings, at: KeyPath) -> Iterator[Problem]:
    """An id that is remembered before the work, and not with it, would have a message dropped whose work was never done."""
    if endpoint.transaction_mode == "none" and endpoint.deduplicate_for_seconds:
        place = at / "DEDUPLICATE_FOR"
        message = f"{place} is set, but in transaction mode 'none' there is no transaction in which messages could be remembered"
        yield Problem(place, message, "remove the key, or choose another TRANSACTION_MODE", Code.DEDUPLICATION_WITHOUT_TRANSACTION)


def _failure_setting_fits_mode(_: Facts, endpoint: EndpointSettings, at: KeyPath) -> Iterator[Problem]:
    if endpoint.transaction_mode != "none" and endpoint.on_failure_without_transaction != "error_queue":
        place = at / "ON_FAILURE_WITHOUT_TRANSACTION"
        message = (
            f"{place} is {endpoint.on_failure_without_transaction!r}, which applies to transaction mode 'none' only, "
            f"and the mode is {endpoint.transaction_mode!r}"
        )
        hint = "remove the key, or set TRANSACTION_MODE to 'none'"
        yield Problem(place, message, hint, Code.FAILURE_WITH_TRANSACTION)


def _peek_is_not_slow(_: Facts, endpoint: EndpointSettings, at: KeyPath) -> Iterator[Problem]:
    if endpoint.peek_delay_seconds > _SLOW_PEEK_SECONDS:
        place = at / "PEEK_DELAY"
        message = f"{place} is {endpoint.peek_delay_seconds:g} seconds: a message may wait that long in an idle queue"
        yield Problem(place, message, f"choose at most {_SLOW_PEEK_SECONDS} seconds", Code.SLOW_PEEK)


def _only_postgresql_wakes(facts: Facts, endpoint: EndpointSettings, at: KeyPath) -> Iterator[Problem]:
    """A warning and no error: settings that production shares with a SQLite for development work there all the same."""
    if not endpoint.wake_up or facts.dialect is None or facts.dialect == "postgresql":
        return
    place = at / "WAKE_UP"
    message = f"{place} is True, but only PostgreSQL wakes receivers: the queues are on {_TITLES[facts.dialect]} and are polled"
    yield Problem(place, message, "remove the key, or set it where the queues are on PostgreSQL", Code.WAKE_UP_OFF_POSTGRESQL)


_RULES: Final[tuple[Rule, ...]] = (
    _alias_exists,
    _database_is_supported,
    _catalogs_only_on_sql_server,
    _no_schemas_on_sqlite,
    _local_endpoints_have_no_schema,
    _queues_are_not_shared,
    _names_fit,
)
_ENDPOINT_RULES: Final[tuple[EndpointRule, ...]] = (
    _targets_are_other_queues,
    _no_retries_without_transaction,
    _no_deduplication_without_transaction,
    _failure_setting_fits_mode,
    _peek_is_not_slow,
    _only_postgresql_wakes,
)
