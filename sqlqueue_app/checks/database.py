"""Checks of the queue tables. Those that ask the database run under the tag "database" alone, for the aliases that were named."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from django.apps import apps
from django.core import checks
from django.db import Error as DjangoDatabaseError
from django.db import router

from sqlqueue_app.checks.settings import TAG, usable_settings
from sqlqueue_app.conf import dialect_of
from sqlqueue_app.messages.errors import ConfigurationError, DatabaseError
from sqlqueue_app.operations.installation_plan import planned_tables, unusable_names, wake_up_tables
from sqlqueue_app.tables.connections import connection_of
from sqlqueue_app.tables.handled import handled_elsewhere
from sqlqueue_app.tables.inspection import current_catalog
from sqlqueue_app.tables.installation import Finding, FindingKind, inspect_tables
from sqlqueue_app.tables.wake_up_triggers import inspect_wake_up_triggers

UNUSABLE_NAME: Final = "sqlqueue.E030"
HANDLED_ELSEWHERE: Final = "sqlqueue.E031"
NO_ROUTER: Final = "sqlqueue.W030"
MISSING_TABLE: Final = "sqlqueue.W031"
NO_EXPIRES_INDEX: Final = "sqlqueue.W032"
FOREIGN_TABLE: Final = "sqlqueue.W033"
UNREACHABLE: Final = "sqlqueue.W034"
NON_UNICODE_HEADERS: Final = "sqlqueue.I030"
NO_WAKE_UP_TRIGGER: Final = "sqlqueue.I031"

_Message = Callable[..., checks.CheckMessage]
_MESSAGES: Final[Mapping[FindingKind, tuple[_Message, str]]] = {
    # An error would stop the `migrate` that makes the table.
    FindingKind.MISSING: (checks.Warning, MISSING_TABLE),
    FindingKind.NO_EXPIRES_INDEX: (checks.Warning, NO_EXPIRES_INDEX),
    FindingKind.MISMATCH: (checks.Warning, FOREIGN_TABLE),
    FindingKind.NON_UNICODE_HEADERS: (checks.Info, NON_UNICODE_HEADERS),
    FindingKind.NO_WAKE_UP_TRIGGER: (checks.Info, NO_WAKE_UP_TRIGGER),
}


def register() -> None:
    """Register the checks of this module."""
    checks.register(check_names, TAG)
    checks.register(check_router, TAG)
    checks.register(check_deduplication, TAG)
    checks.register(check_tables, checks.Tags.database)


def check_names(**_: Any) -> list[checks.CheckMessage]:
    """Report tables whose names the database could not hold, derived names such as callback queues among them."""
    settings = usable_settings()
    if settings is None:
        return []
    hint = "choose a shorter name; for a callback queue set INSTANCE, which stands in for the name of the machine"
    wrong = unusable_names(settings, dialect_of(settings.database))
    return [checks.Error(text, hint=hint, id=UNUSABLE_NAME) for text in wrong]


def check_router(**_: Any) -> list[checks.CheckMessage]:
    """Warn where the queues are not in `default` and the managed tables would be made beside them in a database of their own."""
    settings = usable_settings()
    if settings is None or router.db_for_read(apps.get_model("sqlqueue_app", "Instance")) == settings.database:
        return []
    message = (
        f'SQLQUEUE["DATABASE"] is {settings.database!r}, but no router keeps the tables of sqlqueue_app there: '
        "Django looks for them elsewhere"
    )
    hint = 'add "sqlqueue_app.routers.SqlQueueRouter" to DATABASE_ROUTERS'
    return [checks.Warning(message, hint=hint, id=NO_ROUTER)]


def check_deduplication(**_: Any) -> list[checks.CheckMessage]:
    """Report endpoints that remember handled messages where the managed tables are not in the database of the queues."""
    settings = usable_settings()
    if settings is None:
        return []
    alias = router.db_for_write(apps.get_model("sqlqueue_app", "HandledMessage"))
    if alias == settings.database:
        return []
    hint = 'add "sqlqueue_app.routers.SqlQueueRouter" to DATABASE_ROUTERS, or remove DEDUPLICATE_FOR'
    return [
        checks.Error(handled_elsewhere(name, alias, settings.database), hint=hint, id=HANDLED_ELSEWHERE)
        for name, endpoint in settings.endpoints.items()
        if endpoint.deduplicate_for_seconds
    ]


def check_tables(databases: Sequence[str] | None = None, **_: Any) -> list[checks.CheckMessage]:
    """Report what is missing at, or wrong with, the tables of the endpoints, with the SQL to run.

    Looks only if the alias of the queues is among `databases`. A database that cannot be reached is a warning.
    """
    settings = usable_settings()
    if settings is None or settings.database not in (databases or ()):
        return []
    alias = settings.database
    try:
        tables = planned_tables(settings, dialect_of(alias), current_catalog(connection_of(alias)))
        findings = inspect_tables(alias, tables, layout=settings.table_layout)
        if findings and all(finding.kind is FindingKind.MISSING for finding in findings) and not _migrated():
            return [_never_migrated(alias, findings)]
        findings += inspect_wake_up_triggers(alias, wake_up_tables(settings, dialect_of(alias)))
    except ConfigurationError:
        return []  # check_names reports it
    except (DatabaseError, DjangoDatabaseError) as error:
        message = f"the queue tables in the database {alias!r} cannot be looked at: {' '.join(str(error).split())}"
        return [checks.Warning(message, hint="start the database, or mend its entry in DATABASES", id=UNREACHABLE)]
    return [_message(finding) for finding in findings]


def _migrated() -> bool:
    """Whether the app's own migrations have run."""
    instance = apps.get_model("sqlqueue_app", "Instance")
    connection = connection_of(router.db_for_read(instance))
    return instance._meta.db_table in connection.introspection.table_names()


def _never_migrated(alias: str, findings: Sequence[Finding]) -> checks.CheckMessage:
    """One warning before the first `migrate`, instead of one with its DDL for each table that it is about to make."""
    names = ", ".join(finding.qualified for finding in findings)
    message = f"the {len(findings)} tables of the endpoints do not exist in the database {alias!r} yet: {names}"
    return checks.Warning(message, hint="run migrate; sqlqueue_install --sql prints the SQL", id=MISSING_TABLE)


def _message(finding: Finding) -> checks.CheckMessage:
    kind, check_id = _MESSAGES[finding.kind]
    hint = finding.sql or None
    if finding.kind is FindingKind.MISSING:
        hint = f"run migrate or sqlqueue_install, or this:\n{finding.sql}"
    if finding.kind is FindingKind.NO_WAKE_UP_TRIGGER:
        hint = f"run sqlqueue_install --wake-up, or this:\n{finding.sql}"
    return kind(finding.text, hint=hint, id=check_id)
