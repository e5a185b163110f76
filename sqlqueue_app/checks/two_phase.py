"""Checks of the databases that may take part in receive transactions by two-phase commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from django.core import checks
from django.db import connections

from sqlqueue_app.checks.settings import TAG, usable_settings
from sqlqueue_app.conf import Settings
from sqlqueue_app.databases.two_phase import CAN_PREPARE
from sqlqueue_app.messages.errors import DatabaseError
from sqlqueue_app.policies.transaction_mode import TransactionMode
from sqlqueue_app.tables.branches import max_prepared_transactions
from sqlqueue_app.tables.connections import aliases_beside

KEEPS_NONE: Final = "sqlqueue.W037"
READ_ONLY: Final = "sqlqueue.I032"
_MODE: Final = TransactionMode.TRANSACTION_SCOPE.value


def register() -> None:
    """Register the checks of this module."""
    checks.register(check_other_databases, TAG)
    checks.register(check_prepared_transactions, checks.Tags.database)


def check_other_databases(**_: Any) -> list[checks.CheckMessage]:
    """Say which other databases handlers can only read from. Touches no database."""
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
    """Warn of PostgreSQL servers that keep no prepared transactions: what handlers write there fails their messages.

    Looks at the aliases among `databases` alone; one that cannot be reached is left out.
    """
    settings = usable_settings()
    if settings is None or not (endpoints := _in_scope(settings)):
        return []
    wanted = [alias for alias in aliases_beside(settings.database) if alias in (databases or ())]
    found: list[checks.CheckMessage] = []
    for alias in wanted:
        if connections[alias].vendor not in CAN_PREPARE or _most(alias) != 0:
            continue
        message = (
            f"the server of the database {alias!r} keeps no prepared transactions (max_prepared_transactions = 0): "
            f"a message of {endpoints} whose handler writes there fails, in TRANSACTION_MODE {_MODE!r}"
        )
        hint = "ALTER SYSTEM SET max_prepared_transactions = 100; and restart the server: at least one for each receiving thread"
        found.append(checks.Warning(message, hint=hint, id=KEEPS_NONE))
    return found


def _in_scope(settings: Settings) -> str:
    """The endpoints whose receive transactions other databases may join."""
    return ", ".join(sorted(name for name, each in settings.endpoints.items() if each.transaction_mode == _MODE))


def _most(alias: str) -> int | None:
    try:
        return max_prepared_transactions(alias)
    except DatabaseError:
        return None
