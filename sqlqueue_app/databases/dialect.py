"""What a database dialect knows: its statements, its names, its error codes. No connection is opened here, and no Django needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from types import ModuleType
from typing import Literal, Protocol, cast
from uuid import UUID

from sqlqueue_app.databases import postgresql, sqlite, sqlserver
from sqlqueue_app.databases.layouts import QueueLayout
from sqlqueue_app.databases.statements import Rendered, Statement, load_statements
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.errors import ConfigurationError, DatabaseError
from sqlqueue_app.messages.identifiers import quote_postgresql, quote_sqlite, quote_sqlserver

DialectName = Literal["sqlserver", "postgresql", "sqlite"]
DIALECTS: tuple[DialectName, ...] = ("sqlserver", "postgresql", "sqlite")

# Django's word for a database -> ours.
VENDORS: Mapping[str, DialectName] = {"microsoft": "sqlserver", "postgresql": "postgresql", "sqlite": "sqlite"}


class _DialectModule(Protocol):
    """What the module of each dialect gives."""

    DEFAULT_SCHEMA: str | None
    ROWS_PER_SEND: int
    SEND_VALUES: Mapping[str, str]
    READ_VALUES: Mapping[str, str]
    EXPIRES_BETWEEN: Mapping[str, str]
    STAGED_VALUES: Mapping[str, str]

    def error_kind(self, error: BaseException) -> type[DatabaseError] | None: ...


@dataclass(frozen=True, slots=True)
class RowRange:
    """Rows of a queue by their RowVersion, both ends included, and by what may be known of their expiry.

    Times are in UTC without zone, whole seconds of the years 1000 to 9998; a row without an expiry is in neither of their ranges.
    """

    lowest: int
    highest: int
    expires_from: datetime | None = None
    expires_before: datetime | None = None
    only_expiring: bool = False


@dataclass(frozen=True, slots=True)
class Dialect:
    """One database's way to say things. Made once per dialect by `dialect()`; immutable, shared by all threads."""

    name: DialectName
    statements: Mapping[str, Statement]
    module: _DialectModule

    @property
    def default_schema(self) -> str | None:
        """The schema of a table that names none: dbo, public, or None where there are no schemas."""
        return self.module.DEFAULT_SCHEMA

    @property
    def rows_per_send(self) -> int:
        """How many rows one INSERT may carry, from the database's limit of parameters."""
        return self.module.ROWS_PER_SEND

    def qualified(self, address: QueueAddress) -> str:
        """The quoted table name of an address whose parts are filled in."""
        return address.qualified(address.schema or self.default_schema or "", address.catalog)

    def quote(self, name: str) -> str:
        """One quoted identifier."""
        return _QUOTES[self.name](name)

    def uuid_text(self, value: UUID) -> str:
        """A UUID as it stands in a column of UUIDs. SQLite has no type for it: there it is bare digits, as Django writes it."""
        return value.hex if self.name == "sqlite" else str(value)

    def statement(self, name: str, **texts: str) -> Rendered:
        """A named statement with its texts put in; KeyError for a name that the dialect does not have."""
        return self.statements[name].render(**texts)

    def script(self, name: str, **texts: str) -> str:
        """A statement without values as text, for migrations and scripts."""
        return self.statements[name].text(**texts)

    def send_statement(self, table: str, layout: QueueLayout, rows: int) -> Rendered:
        """The INSERT of so many rows; the names of its values repeat row by row."""
        row = "(" + ", ".join(self.module.SEND_VALUES[column] for column in layout.send_columns) + ")"
        template = self.statements["send"].template.replace("{rows}", ",\n".join([row] * rows))
        return Statement("send", template).render(table=table, columns=", ".join(layout.send_columns))

    def delay_statement(self, table: str, rows: int) -> Rendered:
        """The INSERT of so many rows into a table of delayed messages; the names of its values repeat row by row."""
        row = self.statements["delay_row"].template
        template = self.statements["delay"].template.replace("{rows}", ",\n".join([row] * rows))
        return Statement("delay", template).render(table=table)

    def subscribers_statement(self, table: str, topics: int) -> Rendered:
        """The SELECT of the subscribers of so many topics, its only values."""
        template = self.statements["subscribers"].template.replace("{topics}", ", ".join([":topic"] * topics))
        return Statement("subscribers", template).render(table=table)

    def read_statement(self, table: str, columns: Iterable[str], rows: RowRange, *, limit: int | None = None) -> str:
        """The SELECT of those columns of the rows of a range, as text; on SQLite of the first `limit` of them, in order.

        Without values, because PostgreSQL streams a result by COPY, which takes none: all that is put in are numbers and times.
        """
        texts = {
            "table": table,
            "columns": ",\n".join(f"{self.module.READ_VALUES[name]} AS {self.quote(name)}" for name in columns),
            "lowest": str(int(rows.lowest)),
            "highest": str(int(rows.highest)),
            "conditions": "".join(f"\nAND {text}" for text in self._expires_conditions(rows)),
        }
        if self.name == "sqlite":
            texts["limit"] = str(limit)
        return self.script("read_rows", **texts)

    def move_statement(self, table: str, layout: QueueLayout, staging: str) -> str:
        """The INSERT of staged messages into a queue, as text."""
        values = ", ".join(self.module.STAGED_VALUES[column] for column in layout.send_columns)
        return self.script("move_staged", table=table, columns=", ".join(layout.send_columns), values=values, staging=staging)

    def _expires_conditions(self, rows: RowRange) -> Iterator[str]:
        for key, instant in (("from", rows.expires_from), ("before", rows.expires_before)):
            if instant is not None:
                yield self.module.EXPIRES_BETWEEN[key].format(instant.strftime("%Y-%m-%d %H:%M:%S"))
        if rows.only_expiring:
            yield "Expires IS NOT NULL"

    def error_kind(self, error: BaseException) -> type[DatabaseError] | None:
        """Our kind of a driver's error by its code; None for one that has no kind of its own."""
        seen: BaseException | None = error
        while seen is not None:
            if (kind := self.module.error_kind(seen)) is not None:
                return kind
            seen = seen.__cause__
        return None


_QUOTES: Mapping[DialectName, Callable[[str], str]] = {
    "sqlserver": quote_sqlserver,
    "postgresql": quote_postgresql,
    "sqlite": quote_sqlite,
}
_MODULES: Mapping[DialectName, ModuleType] = {"sqlserver": sqlserver, "postgresql": postgresql, "sqlite": sqlite}


@cache
def dialect(name: str) -> Dialect:
    """The dialect of that name; ConfigurationError names the ones there are."""
    if name not in DIALECTS:
        raise ConfigurationError(f"unknown dialect {name!r}: expected one of {', '.join(DIALECTS)}")
    known = cast(DialectName, name)
    return Dialect(known, load_statements(known), cast(_DialectModule, _MODULES[known]))


def dialect_of_vendor(vendor: str) -> Dialect:
    """The dialect of a Django connection's vendor; ConfigurationError names the databases that can hold queues."""
    if vendor not in VENDORS:
        raise ConfigurationError(
            f"database vendor {vendor!r} cannot hold queue tables: expected SQL Server (mssql-django), PostgreSQL or SQLite"
        )
    return dialect(VENDORS[vendor])
