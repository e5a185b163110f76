"""The check for dead rows; it asks the database, and runs under the tag "database" alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from django.core import checks
from django.db import Error as DjangoDatabaseError

from sqlqueue_app.checks.settings import usable_settings
from sqlqueue_app.conf import dialect_of
from sqlqueue_app.databases.dialect import dialect
from sqlqueue_app.messages.errors import ConfigurationError, DatabaseError
from sqlqueue_app.operations.dead_rows import dead_row_problems

DEAD_ROWS: Final = "sqlqueue.W035"


def register() -> None:
    """Register the check of this module."""
    checks.register(check_dead_rows, checks.Tags.database)


def check_dead_rows(databases: Sequence[str] | None = None, **_: Any) -> list[checks.CheckMessage]:
    """Warn of queue tables on PostgreSQL in which dead rows pile up, with who holds them, and the SQL that helps.

    Looks only if the alias of the queues is among `databases`; a database that cannot be reached is reported by the check of the
    tables.
    """
    settings = usable_settings()
    if settings is None or settings.database not in (databases or ()):
        return []
    try:
        known = dialect(dialect_of(settings.database))
        tables = [known.qualified(address) for address in settings.queue_addresses(known.name)]
        problems = dead_row_problems(settings.database, tables)
    except (ConfigurationError, DatabaseError, DjangoDatabaseError):
        return []  # check_tables reports it
    return [checks.Warning(problem.text, hint=problem.sql, id=DEAD_ROWS) for problem in problems.values()]
