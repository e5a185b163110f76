"""Another database of the project that cannot prepare a transaction: handlers read from it, and what would write is refused.

At the statement, and not at the end of the message: nothing that it has written could be taken back then.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from sqlqueue_app.messages.errors import CannotPrepare
from sqlqueue_app.tables.branches import cannot_prepare

# What reads, and what begins and ends a transaction or sets up a session.
_HARMLESS: Final = re.compile(
    r"\s*(?:--[^\n]*\n\s*|/\*.*?\*/\s*|\(\s*)*"
    r"(?:SELECT|WITH|VALUES|SHOW|EXPLAIN|DESCRIBE|PRAGMA|BEGIN|START|COMMIT|ROLLBACK|SAVEPOINT|RELEASE|SAVE|SET|USE)\b",
    re.IGNORECASE | re.DOTALL,
)
_WRITES_INSIDE: Final = re.compile(r"\b(?:INSERT|UPDATE|DELETE|MERGE|REPLACE\s+INTO|INTO)\b", re.IGNORECASE)
_TEXTS: Final = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`[^`]*`|\[[^\]]*\]")


class RefusedAlias:
    """Wraps the statements of the thread's connection while a handler runs."""

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self._connection: BaseDatabaseWrapper | None = None

    def begin_message(self) -> None:
        """Refuse from here on."""
        if self._connection is None:
            self._connection = connections[self.alias]
            self._connection.execute_wrappers.append(self._refuse)

    def end_message(self) -> None:
        """Refuse no more."""
        connection, self._connection = self._connection, None
        if connection is not None and self._refuse in connection.execute_wrappers:
            connection.execute_wrappers.remove(self._refuse)

    def _refuse(self, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: dict[str, Any]) -> Any:
        if is_writing(str(sql)):
            vendor = context["connection"].display_name
            raise CannotPrepare(cannot_prepare(self.alias, f"({vendor}) cannot prepare a transaction"))
        return execute(sql, params, many, context)


def is_writing(sql: str) -> bool:
    """Whether a statement may change something. Of one that only locks rows (FOR UPDATE) the answer is yes as well."""
    if _HARMLESS.match(sql) is None:
        return True
    return _WRITES_INSIDE.search(_TEXTS.sub("''", sql)) is not None
