"""What the watermark of a queue table asks of its database, over whatever connection there is."""

from __future__ import annotations

from typing import Any, Protocol

from sqlqueue_app.databases.dialect import Dialect
from sqlqueue_app.databases.statements import Rendered
from sqlqueue_app.messages.errors import ConfigurationError
from sqlqueue_app.spark.source.settling import Writer


class Fetch(Protocol):
    """Runs a statement on its own, outside of any transaction, and returns all rows of its small answer."""

    def __call__(self, statement: Rendered, **values: object) -> list[tuple[Any, ...]]:
        """The rows."""
        ...


class LooksAtTable:
    """The looks at one table. ConfigurationError where its numbers cannot be followed."""

    def __init__(self, fetch: Fetch, known: Dialect, qualified: str) -> None:
        self._fetch = fetch
        self._dialect = known
        self._table = qualified
        if known.name == "postgresql":
            ((drawn,),) = fetch(known.statement("numbers_in_advance"), table=qualified)
            if int(drawn) > 1:
                raise ConfigurationError(
                    f"the sequence of {qualified} draws {drawn} numbers at once for each session, so rows get lower numbers than "
                    "rows before them and would be missed: ALTER SEQUENCE … CACHE 1"
                )

    def newest(self) -> int | None:
        """The highest number that can be seen."""
        ((_, last),) = self._fetch(self._dialect.statement("row_version_bounds", table=self._table))
        return None if last is None else int(last)

    def writers(self) -> frozenset[Writer]:
        """Who may still insert a lower one. On SQLite nobody: there is one writer at a time."""
        if self._dialect.name == "sqlite":
            return frozenset()
        found = self._fetch(self._dialect.statement("writers"), table=self._table)
        return frozenset(Writer(str(name), bool(is_prepared)) for name, is_prepared in found)
