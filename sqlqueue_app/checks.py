"""Django system checks of sqlqueue; docs/reference/checks.md describes each by its id.

Checks with the tag "database" query a database and run only for the aliases that are named; the others use no database.
"""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from django.apps import apps
from django.conf import settings as django_settings
from django.core import checks
from django.core.files.storage import storages
from django.db import Error as DjangoDatabaseError, connections, router

from sqlqueue_app.conf import Code, Settings, current_problems, dialect_of, get_settings, is_configured
from sqlqueue_app.conf.validation import listed, suggestion
from sqlqueue_app.dialects.dialect import dialect
from sqlqueue_app.dialects.postgresql import CAN_PREPARE, options_for, seconds_until_given_up
from sqlqueue_app.installation import planned_tables, unusable_names, wake_up_tables
from sqlqueue_app.messages.errors import ConfigurationError, DatabaseError
from sqlqueue_app.policies.recoverability import TransactionMode
from sqlqueue_app.sending.claim_checks import unknown_storage
from sqlqueue_app.sending.composer import Routes
from sqlqueue_app.sending.middleware import load_middleware
from sqlqueue_app.status.queues import dead_row_problems, table_key
from sqlqueue_app.status.schedule_definitions import handlers_or_none, schedules_without_route, types_handled, why_no_worker
from sqlqueue_app.tables.announcements import inspect_wake_up_triggers, why_not_woken
from sqlqueue_app.tables.connections import aliases_beside, connection_of, fetch_all
from sqlqueue_app.tables.installation import Finding, FindingKind, inspect_tables, migrate_command
from sqlqueue_app.tables.listing import current_catalog, dead_rows, list_tables
from sqlqueue_app.tables.managed import handled_elsewhere, reserved_elsewhere
from sqlqueue_app.tables.queue import queue_table
from sqlqueue_app.tables.two_phase import max_prepared_transactions


def register() -> None:
    """Register all checks with Django; called when the app is ready, may be called again."""
    for check in (
        check_settings,
        check_sqlite_transaction_mode,
        check_schedules,
        check_names,
        check_router,
        check_deduplication,
        check_rate_limits,
        check_claim_checks,
        check_outgoing_middleware,
    ):
        checks.register(check, TAG)
    for check in (check_worker_side, check_other_databases, check_routes, check_shared_handlers, check_types_of_handlers):
        checks.register(check, TAG)
    # A worker, which runs the checks with the tag, imports the same code in its processes.
    checks.register(check_worker_imports)
    for check in (check_tables, check_routed_queues, check_dead_rows, check_server_side, check_prepared_transactions):
        checks.register(check, checks.Tags.database)
    checks.register(check_eager, TAG, deploy=True)


TAG: Final = "sqlqueue"


def usable_settings() -> Settings | None:
    """The settings; None if they are missing or invalid, which `check_settings` reports."""
    if not is_configured() or any(problem.is_error for problem in current_problems()):
        return None
    return get_settings()


def check_settings(**_: Any) -> list[checks.CheckMessage]:
    """Report all problems of the `SQLQUEUE` dictionary."""
    return [
        (checks.Error if problem.is_error else checks.Warning)(problem.message, hint=problem.hint, id=str(problem.code))
        for problem in current_problems()
    ]


EAGER: Final = "sqlqueue.W008"


def check_eager(**_: Any) -> list[checks.CheckMessage]:
    """Warn of EAGER in a deployment. Uses no database."""
    settings = usable_settings()
    if settings is None or not settings.eager:
        return []
    message = 'SQLQUEUE["EAGER"] is on: send() handles messages itself, without retries, and no worker starts'
    return [checks.Warning(message, hint="Remove it from the settings of this deployment, and run a worker.", id=EAGER)]


UNKNOWN_STORAGE: Final = "sqlqueue.E033"
PUBLIC_STORAGE: Final = "sqlqueue.W009"
MIDDLEWARE: Final = "sqlqueue.E034"


def check_claim_checks(**_: Any) -> list[checks.CheckMessage]:
    """Report a storage of CLAIM_CHECK that does not exist; warn of one with the uploads. Opens no storage."""
    settings = usable_settings()
    if settings is None or settings.claim_check is None:
        return []
    alias = settings.claim_check.storage
    defined: Mapping[str, Any] = storages.backends
    if (backend := defined.get(alias)) is None:
        return [checks.Error(unknown_storage(alias), hint="add it to STORAGES, or name another one", id=UNKNOWN_STORAGE)]
    if not isinstance(backend, Mapping) or "BACKEND" not in backend or not isinstance(backend.get("OPTIONS", {}), Mapping):
        message = f'STORAGES["{alias}"], which CLAIM_CHECK names, is not a dictionary with a "BACKEND" and a dictionary "OPTIONS"'
        return [checks.Error(message, hint="add what is missing, or name another storage in CLAIM_CHECK", id=UNKNOWN_STORAGE)]
    location = backend.get("OPTIONS", {}).get("location")
    root = str(django_settings.MEDIA_ROOT)
    is_public = location is None or (root != "" and Path(location).is_relative_to(root))
    if backend["BACKEND"] != "django.core.files.storage.FileSystemStorage" or not is_public:
        return []
    place = f"MEDIA_ROOT ({root!r}), which web servers show to everyone" if root else "the folder in which a process was started"
    message = f'SQLQUEUE["CLAIM_CHECK"]["STORAGE"] is {alias!r}, which stores bodies in {place}'
    return [checks.Warning(message, hint='name a storage with a "location" of its own in STORAGES', id=PUBLIC_STORAGE)]


def check_outgoing_middleware(**_: Any) -> list[checks.CheckMessage]:
    """Report outgoing middleware that cannot be loaded: without it, no process can send. Uses no database."""
    settings = usable_settings()
    try:
        load_middleware(() if settings is None else settings.outgoing_middleware, setting='SQLQUEUE["OUTGOING_MIDDLEWARE"]')
    except ConfigurationError as error:
        return [checks.Error(str(error), hint="correct the path, or remove the entry", id=MIDDLEWARE)]
    return []


def check_sqlite_transaction_mode(**_: Any) -> list[checks.CheckMessage]:
    """Warn about deferred transactions on SQLite."""
    if not is_configured():
        return []
    try:
        alias = get_settings().database
        dialect = dialect_of(alias)
    except ConfigurationError:
        return []  # check_settings reports it
    mode = connections.settings[alias].get("OPTIONS", {}).get("transaction_mode")
    if dialect != "sqlite" or str(mode).upper() == "IMMEDIATE":
        return []
    place = f'DATABASES["{alias}"]["OPTIONS"]["transaction_mode"]'
    message = (
        f"{place} is {mode!r}, expected 'IMMEDIATE': a deferred transaction that reads and then writes "
        "fails at once with 'database is locked' while another process writes"
    )
    hint = f'add DATABASES["{alias}"]["OPTIONS"] = {{"transaction_mode": "IMMEDIATE"}}'
    return [checks.Warning(message, hint=hint, id=str(Code.SQLITE_TRANSACTION_MODE))]


def check_schedules(**_: Any) -> list[checks.CheckMessage]:
    """Warn about recurring messages without a route and without a handler."""
    settings = usable_settings()
    if settings is None:
        return []
    return [
        checks.Warning(
            f'SQLQUEUE["SCHEDULES"]["{schedule.name}"]["SEND"] is {schedule.send!r}, '
            "which has no route and no handler: nothing will be sent",
            hint=f'add {schedule.send!r}: "<endpoint>" to SQLQUEUE["ROUTES"]',
            id=str(Code.SCHEDULE_WITHOUT_ROUTE),
        )
        for schedule in schedules_without_route(settings)
    ]


def check_routes(**_: Any) -> list[checks.CheckMessage]:
    """Warn about routes to names spelled much like an endpoint of the settings. Uses no database."""
    settings = usable_settings()
    if settings is None:
        return []
    return [
        _lost_route(pattern, name, f"not an endpoint in the settings{near}", MISSPELLED_ROUTE)
        for pattern, name in settings.routes.items()
        if name not in settings.senders and (near := suggestion(name, settings.senders))
    ]


def check_routed_queues(databases: Sequence[str] | None = None, **_: Any) -> list[checks.CheckMessage]:
    """Warn about other routes to queues that do not exist, if `databases` has the alias of the queues."""
    settings = usable_settings()
    if settings is None or (alias := settings.database) not in (databases or ()):
        return []
    senders = settings.senders
    routes = {each: name for each, name in settings.routes.items() if name not in senders and not suggestion(name, senders)}
    if not routes:
        return []
    try:
        book = settings.address_book(dialect_of(alias), current_catalog(connection_of(alias)))
        addresses = {name: book.of_endpoint(name) for name in routes.values()}
        tables = {table_key(each.address): each.address.table for each in list_tables(alias) if each.layout is not None}
        # The list lacks tables of other catalogs, and those that this login may only write to.
        lost = {each for each, at in addresses.items() if table_key(at) not in tables and not queue_table(alias, at).exists()}
    except (ConfigurationError, DatabaseError, DjangoDatabaseError):
        return []  # check_tables reports it
    what = "neither an endpoint in the settings nor a queue in the database"
    return [
        _lost_route(pattern, name, f"{what}{suggestion(name, tables.values())}", UNKNOWN_ROUTE)
        for pattern, name in routes.items()
        if name in lost
    ]


def _lost_route(pattern: str, name: str, what: str, check_id: str) -> checks.CheckMessage:
    # Not an error, which would stop the `migrate` of a project whose peer creates its queues later.
    hint = "correct the name, or create the queue: sending to it raises QueueNotFound"
    return checks.Warning(f'SQLQUEUE["ROUTES"]["{pattern}"] is {name!r}, which is {what}', hint=hint, id=check_id)


def check_shared_handlers(**_: Any) -> list[checks.CheckMessage]:
    """Report endpoints with the same handlers if no route selects the one that gets a message. Imports the handlers."""
    settings = usable_settings()
    if settings is None or settings.routes or len(settings.endpoints) < 2:
        return []
    owners: dict[str, list[str]] = {}
    for name, endpoint in settings.endpoints.items():
        for path in dict.fromkeys(handler.path for handler in handlers_or_none(endpoint)):
            owners.setdefault(path, []).append(name)
    path, names = max(owners.items(), key=lambda entry: len(entry[1]), default=("", []))
    if len(names) < 2:
        return []
    message = (
        f"the endpoints {listed(names, last='and')} have the same handler {path}, and ROUTES is empty: "
        "it is undefined which of them receives a message"
    )
    hint = "list the modules of each endpoint in its HANDLERS, and the endpoint of each message type in ROUTES"
    return [checks.Error(message, hint=hint, id=SHARED_HANDLERS)]


def check_worker_imports(**_: Any) -> list[checks.CheckMessage]:
    """Warn about handlers, middleware and policies that cannot be imported: only workers need them. Imports them."""
    settings = usable_settings()
    endpoints: dict[str, list[str]] = {}
    for endpoint in () if settings is None else settings.endpoints.values():
        if reason := why_no_worker(endpoint):
            endpoints.setdefault(reason, []).append(endpoint.name)
    hint = "correct the path or the module; where handlers are not installed, silence this check"
    return [
        checks.Warning(f"a worker of {listed(names, last='and')} would not start: {reason}", hint=hint, id=NO_WORKER)
        for reason, names in endpoints.items()
    ]


def check_types_of_handlers(**_: Any) -> list[checks.CheckMessage]:
    """Warn about entries of RETRIES and RATE_LIMITS for types that no handler of the endpoint handles. Imports the handlers."""
    settings = usable_settings()
    return [] if settings is None else [each for name in settings.endpoints for each in _types_without_handler(settings, name)]


def _types_without_handler(settings: Settings, name: str) -> Iterator[checks.CheckMessage]:
    endpoint = settings.endpoints[name]
    entries = [(key, each) for key, of in (("RETRIES", endpoint.retries), ("RATE_LIMITS", endpoint.rate_limits)) for each in of]
    handled = types_handled(settings, name) if entries else set()
    for key, pattern in entries:
        # without any handler, nothing is known about the types
        if handled and not any(map(Routes({pattern: True}).find, handled)):
            place = f'SQLQUEUE["ENDPOINTS"]["{name}"]["{key}"]["{pattern}"]'
            message = f"{place} has no effect, because no handler of the endpoint handles it{suggestion(pattern, handled)}"
            yield checks.Warning(message, hint="correct the name of the type, or remove the entry", id=TYPE_WITHOUT_HANDLER)


TYPE_WITHOUT_HANDLER: Final = "sqlqueue.W010"
NO_WORKER: Final = "sqlqueue.W011"
SHARED_HANDLERS: Final = "sqlqueue.E027"
MISSPELLED_ROUTE: Final = "sqlqueue.W007"
UNKNOWN_ROUTE: Final = "sqlqueue.W038"
UNUSABLE_NAME: Final = "sqlqueue.E030"
HANDLED_ELSEWHERE: Final = "sqlqueue.E031"
RESERVED_ELSEWHERE: Final = "sqlqueue.E032"
NO_ROUTER: Final = "sqlqueue.W030"
MISSING_TABLE: Final = "sqlqueue.W031"
NO_EXPIRES_INDEX: Final = "sqlqueue.W032"
FOREIGN_TABLE: Final = "sqlqueue.W033"
UNREACHABLE: Final = "sqlqueue.W034"
NON_UNICODE_HEADERS: Final = "sqlqueue.I030"
NO_WAKE_UP_TRIGGER: Final = "sqlqueue.I031"
NOT_WOKEN: Final = "sqlqueue.I033"

_Message = Callable[..., checks.CheckMessage]
_MESSAGES: Final[Mapping[FindingKind, tuple[_Message, str]]] = {
    # An error would stop the `migrate` that creates the table.
    FindingKind.MISSING: (checks.Warning, MISSING_TABLE),
    FindingKind.NO_EXPIRES_INDEX: (checks.Warning, NO_EXPIRES_INDEX),
    FindingKind.MISMATCH: (checks.Warning, FOREIGN_TABLE),
    FindingKind.NON_UNICODE_HEADERS: (checks.Info, NON_UNICODE_HEADERS),
    FindingKind.NO_WAKE_UP_TRIGGER: (checks.Info, NO_WAKE_UP_TRIGGER),
}


def check_names(**_: Any) -> list[checks.CheckMessage]:
    """Report table names that the database cannot hold, including derived names such as callback queues."""
    settings = usable_settings()
    if settings is None:
        return []
    hint = "choose a shorter name; for a callback queue set INSTANCE, which replaces the name of the machine"
    wrong = unusable_names(settings, dialect_of(settings.database))
    return [checks.Error(text, hint=hint, id=UNUSABLE_NAME) for text in wrong]


def check_router(**_: Any) -> list[checks.CheckMessage]:
    """Warn if the queues are not in `default` and no router keeps the managed tables beside them."""
    settings = usable_settings()
    if settings is None or router.db_for_read(apps.get_model("sqlqueue_app", "Instance")) == settings.database:
        return []
    message = (
        f'SQLQUEUE["DATABASE"] is {settings.database!r}, but no router sends the models of sqlqueue_app there, '
        "so Django uses another database for them"
    )
    hint = 'add "sqlqueue_app.routers.SqlQueueRouter" to DATABASE_ROUTERS'
    return [checks.Warning(message, hint=hint, id=NO_ROUTER)]


def check_deduplication(**_: Any) -> list[checks.CheckMessage]:
    """Report endpoints with DEDUPLICATE_FOR if the managed tables are not in the database of the queues."""
    settings = usable_settings()
    if settings is None or (alias := router.db_for_write(apps.get_model("sqlqueue_app", "HandledMessage"))) == settings.database:
        return []
    hint = 'add "sqlqueue_app.routers.SqlQueueRouter" to DATABASE_ROUTERS, or remove DEDUPLICATE_FOR'
    return [
        checks.Error(handled_elsewhere(name, alias, settings.database), hint=hint, id=HANDLED_ELSEWHERE)
        for name, endpoint in settings.endpoints.items()
        if endpoint.deduplicate_for_seconds
    ]


def check_rate_limits(**_: Any) -> list[checks.CheckMessage]:
    """Report endpoints with rate limits, in the settings or of their handlers, if the managed tables are in another database."""
    settings = usable_settings()
    if settings is None or (alias := router.db_for_write(apps.get_model("sqlqueue_app", "RateReservation"))) == settings.database:
        return []
    hint = 'add "sqlqueue_app.routers.SqlQueueRouter" to DATABASE_ROUTERS, or remove the rate limits'
    return [
        checks.Error(reserved_elsewhere(name, alias, settings.database), hint=hint, id=RESERVED_ELSEWHERE)
        for name, endpoint in settings.endpoints.items()
        if endpoint.rate_limits or any(handler.rate is not None for handler in handlers_or_none(endpoint))
    ]


def check_tables(databases: Sequence[str] | None = None, **_: Any) -> list[checks.CheckMessage]:
    """Report wrong tables with the SQL to run, if `databases` has the alias of the queues; an unavailable one is a warning."""
    settings = usable_settings()
    if settings is None or settings.database not in (databases or ()):
        return []
    alias = settings.database
    try:
        tables = planned_tables(settings, dialect_of(alias), current_catalog(connection_of(alias)))
        findings = found = inspect_tables(alias, tables, layout=settings.table_layout)
        if settings.install_after_migrate and sys.argv[1:2] == ["migrate"]:
            # The command that runs this check creates them next.
            findings = [finding for finding in findings if finding.kind is not FindingKind.MISSING]
        if findings and all(finding.kind is FindingKind.MISSING for finding in findings) and not _migrated():
            return [_never_migrated(alias, findings)]
        woken = wake_up_tables(settings, dialect_of(alias))
        reason = why_not_woken(alias) if woken else None
        triggers = [] if reason else inspect_wake_up_triggers(alias, woken, found)
        own = _own_tables(alias)
    except ConfigurationError:
        return []  # check_names reports it
    except (DatabaseError, DjangoDatabaseError) as error:
        message = f"the queue tables in the database {alias!r} cannot be inspected: {' '.join(str(error).split())}"
        return [checks.Warning(message, hint="start the database, or correct its entry in DATABASES", id=UNREACHABLE)]
    return [*own, *map(_message, [*findings, *triggers]), *([_not_woken(alias, reason)] if reason else [])]


def _not_woken(alias: str, reason: str) -> checks.CheckMessage:
    message = f"workers poll the queues in the database {alias!r} instead of being woken by new messages: {reason}"
    hint = "install psycopg[binary], give the worker's alias the address of the server itself, or set WAKE_UP to False"
    return checks.Info(message, hint=hint, id=NOT_WOKEN)


def _migrated() -> bool:
    instance = apps.get_model("sqlqueue_app", "Instance")
    connection = connection_of(router.db_for_read(instance))
    return instance._meta.db_table in connection.introspection.table_names()


def _own_tables(alias: str) -> list[checks.CheckMessage]:
    """The warning that the app's own tables are missing, if this database is to hold them and `migrate` is not running."""
    if sys.argv[1:2] == ["migrate"] or router.db_for_read(apps.get_model("sqlqueue_app", "Instance")) != alias or _migrated():
        return []
    message = f"the app's own tables do not exist in the database {alias!r}: a worker does not start"
    return [
        checks.Warning(message, hint=f"run {migrate_command(alias)}, which creates the tables of sqlqueue_app", id=MISSING_TABLE)
    ]


def _never_migrated(alias: str, findings: Sequence[Finding]) -> checks.CheckMessage:
    """One warning before the first `migrate`, instead of one per table that it will create."""
    names = ", ".join(finding.qualified for finding in findings)
    message = f"the {len(findings)} tables of the endpoints do not exist in the database {alias!r} yet: {names}"
    return checks.Warning(message, hint=f"run {migrate_command(alias)}; sqlqueue_install --sql prints the SQL", id=MISSING_TABLE)


def _message(finding: Finding) -> checks.CheckMessage:
    kind, check_id = _MESSAGES[finding.kind]
    hint = finding.sql or None
    if finding.kind is FindingKind.MISSING:
        hint = f"run migrate or sqlqueue_install, or this:\n{finding.sql}"
    if finding.kind is FindingKind.NO_WAKE_UP_TRIGGER:
        hint = f"run sqlqueue_install --wake-up, or this:\n{finding.sql}"
    return kind(finding.text, hint=hint, id=check_id)


DEAD_ROWS: Final = "sqlqueue.W035"


def check_dead_rows(databases: Sequence[str] | None = None, **_: Any) -> list[checks.CheckMessage]:
    """Warn about many dead rows on PostgreSQL, with the SQL that helps, if `databases` has the alias of the queues."""
    settings = usable_settings()
    if settings is None or settings.database not in (databases or ()):
        return []
    try:
        known = dialect(dialect_of(settings.database))
        tables = [known.qualified(address) for address in settings.queue_addresses(known.name)]
        problems = dead_row_problems(settings.database, dead_rows(settings.database, tables).values())
    except (ConfigurationError, DatabaseError, DjangoDatabaseError):
        return []  # check_tables reports it
    return [checks.Warning(problem.text, hint=problem.sql, id=DEAD_ROWS) for problem in problems.values()]


NO_BOUND_OF_WORKER: Final = "sqlqueue.W006"
NO_BOUND_OF_SERVER: Final = "sqlqueue.W036"
MAX_SECONDS: Final = 120
"""A peer that is given up later is reported."""


def check_worker_side(**_: Any) -> list[checks.CheckMessage]:
    """Warn if a worker would wait minutes or hours for a PostgreSQL server whose host is lost. Uses no database."""
    alias = _alias_on_postgresql()
    if alias is None:
        return []
    entry = connections.settings[alias]
    options = entry.get("OPTIONS", {})
    # A service file may contain the bounds.
    if not _is_elsewhere(str(entry.get("HOST") or "")) or "service" in options or _gives_up_in_time(options):
        return []
    message = (
        f'DATABASES["{alias}"]["OPTIONS"] sets no limit for a server whose host vanishes: with the defaults of Linux a worker '
        "waits for 15 minutes, or for two hours if it has nothing to send"
    )
    return [checks.Warning(message, hint=_hint(alias), id=NO_BOUND_OF_WORKER)]


def check_server_side(databases: Sequence[str] | None = None, **_: Any) -> list[checks.CheckMessage]:
    """Warn if PostgreSQL keeps the rows of a lost worker for minutes, if `databases` has the alias of the queues."""
    alias = _alias_on_postgresql()
    if alias is None or alias not in (databases or ()):
        return []
    try:
        (row,) = fetch_all(connection_of(alias), dialect(dialect_of(alias)).statement("server_keepalives"))
    except (DatabaseError, DjangoDatabaseError):
        return []  # check_tables reports it
    client, *kernel = row
    if not _is_elsewhere(client or "") or (seconds := seconds_until_given_up(*kernel)) <= MAX_SECONDS:
        return []
    message = (
        f"the server of the database {alias!r} drops the connection of a worker whose host vanishes only after {seconds:.0f} s: "
        "until then its rows stay locked, and no other worker receives those messages"
    )
    return [checks.Warning(message, hint=_hint(alias), id=NO_BOUND_OF_SERVER)]


def _alias_on_postgresql() -> str | None:
    """The alias of the queues if it is on PostgreSQL and the settings are valid."""
    settings = usable_settings()
    if settings is None:
        return None
    try:
        return settings.database if dialect_of(settings.database) == "postgresql" else None
    except ConfigurationError:
        return None


def _is_elsewhere(host: str) -> bool:
    """Whether a host of the setting is another machine, not a socket or the loopback interface."""
    return any(_is_other(each.strip()) for each in host.split(","))


def _is_other(host: str) -> bool:
    if not host or host.startswith(("/", "@")) or host == "localhost":
        return False
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return True


def _gives_up_in_time(options: Mapping[str, Any]) -> bool:
    try:
        user_timeout = int(options.get("tcp_user_timeout") or 0)
        idle, interval, count = (int(options.get(f"keepalives_{name}") or 0) for name in ("idle", "interval", "count"))
        is_on = bool(int(options.get("keepalives", 1)))
    except (TypeError, ValueError):
        return False  # libpq reports the error
    # The user timeout alone bounds a worker that waits for an acknowledgement, keepalives one that waits for an answer.
    bound = seconds_until_given_up(idle, interval, count, user_timeout)
    return is_on and user_timeout > 0 and idle > 0 and bound <= MAX_SECONDS


def _hint(alias: str) -> str:
    wanted = ", ".join(f'"{name}": {value!r}' for name, value in options_for().items())
    return f'for a limit of about ten seconds on both sides, add to DATABASES["{alias}"]["OPTIONS"]: {wanted}'


NO_PREPARED_TRANSACTIONS: Final = "sqlqueue.W037"
READ_ONLY: Final = "sqlqueue.I032"
_MODE: Final = TransactionMode.TRANSACTION_SCOPE.value


def check_other_databases(**_: Any) -> list[checks.CheckMessage]:
    """List databases that handlers can only read. Uses no database."""
    settings = usable_settings()
    if settings is None or not (endpoints := _in_scope(settings)):
        return []
    hint = f"TRANSACTION_MODE {TransactionMode.SENDS_ATOMIC_WITH_RECEIVE.value!r} lets what they write there commit on its own"
    return [
        checks.Info(
            f"handlers of {endpoints} can read from the database {alias!r} ({connections[alias].display_name}) but not "
            f"write to it: it cannot prepare a transaction, as TRANSACTION_MODE {_MODE!r} needs",
            hint=hint,
            id=READ_ONLY,
        )
        for alias in aliases_beside(settings.database)
        if connections[alias].vendor not in CAN_PREPARE
    ]


def check_prepared_transactions(databases: Sequence[str] | None = None, **_: Any) -> list[checks.CheckMessage]:
    """Warn if PostgreSQL, on one of `databases`, has no prepared transactions: messages whose handlers write there fail."""
    settings = usable_settings()
    if settings is None or not (endpoints := _in_scope(settings)):
        return []
    wanted = [alias for alias in aliases_beside(settings.database) if alias in (databases or ())]
    found: list[checks.CheckMessage] = []
    for alias in wanted:
        try:
            if connections[alias].vendor not in CAN_PREPARE or max_prepared_transactions(alias) != 0:
                continue
        except DatabaseError:
            continue
        message = (
            f"the server of the database {alias!r} allows no prepared transactions (max_prepared_transactions = 0): "
            f"a message of {endpoints} whose handler writes there fails, in TRANSACTION_MODE {_MODE!r}"
        )
        hint = "ALTER SYSTEM SET max_prepared_transactions = 100; and restart the server: at least one for each receiving thread"
        found.append(checks.Warning(message, hint=hint, id=NO_PREPARED_TRANSACTIONS))
    return found


def _in_scope(settings: Settings) -> str:
    return ", ".join(sorted(name for name, each in settings.endpoints.items() if each.transaction_mode == _MODE))
