"""Checks of the `SQLQUEUE` setting; they touch no database."""

from __future__ import annotations

from typing import Any, Final

from django.core import checks
from django.db import connections

from sqlqueue_app.conf import Code, Settings, current_problems, dialect_of, get_settings, is_configured
from sqlqueue_app.messages.errors import ConfigurationError
from sqlqueue_app.operations.schedules import schedules_without_route

TAG: Final = "sqlqueue"


def usable_settings() -> Settings | None:
    """The settings, unless there are none or they are wrong, which `check_settings` reports."""
    if not is_configured() or any(problem.is_error for problem in current_problems()):
        return None
    return get_settings()


def register() -> None:
    """Register the checks of this module under the tag "sqlqueue"."""
    checks.register(check_settings, TAG)
    checks.register(check_sqlite_transaction_mode, TAG)
    checks.register(check_schedules, TAG)


def check_settings(**_: Any) -> list[checks.CheckMessage]:
    """Report everything that is wrong with the `SQLQUEUE` dictionary."""
    return [
        (checks.Error if problem.is_error else checks.Warning)(problem.message, hint=problem.hint, id=str(problem.code))
        for problem in current_problems()
    ]


def check_sqlite_transaction_mode(**_: Any) -> list[checks.CheckMessage]:
    """Warn where transactions on SQLite start deferred (design §6.11)."""
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
    """Warn of recurring messages that no route sends anywhere, and that no endpoint handles."""
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
