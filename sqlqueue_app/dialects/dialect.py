"""A database dialect: named statements, quoting, error codes, table layouts. Opens no connection and needs no Django.

Statements are in `sql/<dialect>/*.sql`, separated by `-- name:` lines; a line with two names serves two purposes that differ on
another database. In a statement, `{table}` is replaced by text (a quoted identifier, a list of rows) and `:limit` is a value,
always sent as a parameter. Rendering fails on a missing, extra or unused mark, so that a typo never reaches a database.

A table created by other software is used as it is if it has the columns that every version of the transport has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib import resources
from types import ModuleType
from typing import Any, Literal, Protocol, cast
from uuid import UUID

from sqlqueue_app.dialects import postgresql, sqlite, sqlserver
from sqlqueue_app.messages.addresses import QueueAddress, quote_postgresql, quote_sqlite, quote_sqlserver
from sqlqueue_app.messages.errors import ConfigurationError, DatabaseError, TableMismatch

DialectName = Literal["sqlserver", "postgresql", "sqlite"]
DIALECTS: tuple[DialectName, ...] = ("sqlserver", "postgresql", "sqlite")

# Django's vendor names -> dialect names.
VENDORS: Mapping[str, DialectName] = {"microsoft": "sqlserver", "postgresql": "postgresql", "sqlite": "sqlite"}


class _DialectModule(Protocol):
    """The interface of the module of each dialect."""

    DEFAULT_SCHEMA: str | None
    ROWS_PER_SEND: int
    SEND_VALUES: Mapping[str, str]
    READ_VALUES: Mapping[str, str]
    EXPIRES_BETWEEN: Mapping[str, str]
    STAGED_VALUES: Mapping[str, str]

    def error_kind(self, error: BaseException) -> type[DatabaseError] | None: ...


@dataclass(frozen=True, slots=True)
class RowRange:
    """Rows of a queue by RowVersion, both ends included, optionally restricted by expiry.

    Times are naive UTC in whole seconds, years 1000 to 9998. A row without an expiry matches neither bound.
    """

    lowest: int
    highest: int
    expires_from: datetime | None = None
    expires_before: datetime | None = None
    only_expiring: bool = False


@dataclass(frozen=True, slots=True)
class Dialect:
    """One database dialect. Created once by `dialect()`; immutable, shared by all threads."""

    name: DialectName
    statements: Mapping[str, Statement]
    module: _DialectModule

    @property
    def default_schema(self) -> str | None:
        """The schema of a table without one: dbo, public, or None if there are no schemas."""
        return self.module.DEFAULT_SCHEMA

    @property
    def rows_per_send(self) -> int:
        """Rows per INSERT, from the database's limit of parameters."""
        return self.module.ROWS_PER_SEND

    def qualified(self, address: QueueAddress) -> str:
        """The quoted table name of an address whose parts are filled in."""
        return address.qualified(address.schema or self.default_schema or "", address.catalog)

    def quote(self, name: str) -> str:
        """One quoted identifier."""
        return _QUOTES[self.name](name)

    def uuid_text(self, value: UUID) -> str:
        """A UUID as stored in a UUID column: bare digits on SQLite, as Django writes it."""
        return value.hex if self.name == "sqlite" else str(value)

    def statement(self, name: str, **texts: str) -> Rendered:
        """Render a named statement; KeyError if the dialect does not have it."""
        return self.statements[name].render(**texts)

    def script(self, name: str, **texts: str) -> str:
        """A statement without values as text, for migrations and scripts."""
        return self.statements[name].text(**texts)

    def send_statement(self, table: str, layout: QueueLayout, rows: int) -> Rendered:
        """The INSERT of this many rows; the names of its values repeat for each row."""
        row = "(" + ", ".join(self.module.SEND_VALUES[column] for column in layout.send_columns) + ")"
        template = self.statements["send"].template.replace("{rows}", ",\n".join([row] * rows))
        return Statement("send", template).render(table=table, columns=", ".join(layout.send_columns))

    def delay_statement(self, table: str, rows: int) -> Rendered:
        """The INSERT of this many rows into a table of delayed messages."""
        row = self.statements["delay_row"].template
        template = self.statements["delay"].template.replace("{rows}", ",\n".join([row] * rows))
        return Statement("delay", template).render(table=table)

    def find_statement(
        self,
        name: str,
        *,
        texts: Sequence[str],
        bodies: bool,
        match_case: bool = False,
        by_row_id: bool = False,
        with_locked: bool = False,
        **more: str,
    ) -> Rendered:
        """The search of a table for any of the texts, bound under these names; with `bodies` also in the bodies.

        `match_case`: in the headers as they are written. `by_row_id`: or for the row of this id in a queue. `with_locked`: also
        rows that other transactions have locked, which the statements of SQL Server skip otherwise.
        """
        conditions = ["holds_exactly_in_headers" if match_case else "holds_in_headers", *(["holds_in_body"] if bodies else [])]
        holds = [self.statements[condition].template for condition in conditions]
        any_of = " OR ".join(each.replace(":text", f":{text}") for text in texts for each in holds)
        if by_row_id and name == "find_in_queue":
            any_of += " OR " + self.statements["holds_row_id"].template
        template = self.statements[name].template.replace("{holds}", any_of)
        if with_locked:
            template = template.replace(sqlserver.SKIP_LOCKED, "")
        return Statement(name, template).render(body=", Body" if bodies else "", **more)

    def subscribers_statement(self, table: str, topics: int) -> Rendered:
        """The SELECT of the subscribers of this many topics, its only values."""
        template = self.statements["subscribers"].template.replace("{topics}", ", ".join([":topic"] * topics))
        return Statement("subscribers", template).render(table=table)

    def read_statement(self, table: str, columns: Iterable[str], rows: RowRange, *, limit: int | None = None) -> str:
        """The SELECT of these columns of a range of rows, as text; on SQLite the first `limit` rows in order.

        It has no values, because PostgreSQL streams results by COPY, which takes none; only numbers and times are inserted.
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
        """Our error class for a driver's error, by code; None if there is no specific class."""
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
    """The dialect with this name. ConfigurationError lists the known names."""
    if name not in DIALECTS:
        raise ConfigurationError(f"unknown dialect {name!r}: expected one of {', '.join(DIALECTS)}")
    known = cast(DialectName, name)
    return Dialect(known, load_statements(known), cast(_DialectModule, _MODULES[known]))


def dialect_of_vendor(vendor: str) -> Dialect:
    """The dialect of a Django connection's vendor. ConfigurationError lists the supported databases."""
    if vendor not in VENDORS:
        raise ConfigurationError(
            f"database vendor {vendor!r} cannot hold queue tables: expected SQL Server (mssql-django), PostgreSQL or SQLite"
        )
    return dialect(VENDORS[vendor])


_NAME_LINE = re.compile(r"^-- name: (?P<names>[a-z_]+(?:, [a-z_]+)*)[ \t]*$", re.MULTILINE)
_COMMENT_LINE = re.compile(r"^[ \t]*--.*$", re.MULTILINE)
_TEXT_MARK = re.compile(r"\{([a-z_]+)\}")
# String literals and casts are skipped: a colon inside them is not a value.
_VALUE_MARK = re.compile(r"'(?:[^']|'')*'|::|:(?P<name>[a-z_]+)")


@dataclass(frozen=True, slots=True)
class Rendered:
    """A statement for a cursor: `%s` for each value, and the names of the values in order."""

    sql: str
    names: tuple[str, ...]

    def bind(self, values: dict[str, object]) -> tuple[Any, ...]:
        """The parameters in order; KeyError for a missing value."""
        return tuple(values[name] for name in self.names)


@dataclass(frozen=True, slots=True)
class Statement:
    """A named statement as written in a `.sql` file."""

    name: str
    template: str

    def render(self, **texts: str) -> Rendered:
        """Insert the texts and number the values; ValueError for a missing or extra text."""
        wanted = set(_TEXT_MARK.findall(self.template))
        if wanted != texts.keys():
            missing, extra = sorted(wanted - texts.keys()), sorted(texts.keys() - wanted)
            raise ValueError(f"statement {self.name!r}: missing texts {missing}, extra texts {extra}")
        names: list[str] = []
        parts: list[str] = []
        for index, piece in enumerate(_TEXT_MARK.split(self.template)):
            # Only the template contains values; inserted texts are literal.
            parts.append(_number_values(piece, names) if index % 2 == 0 else texts[piece].replace("%", "%%"))
        return Rendered("".join(parts), tuple(names))

    def text(self, **texts: str) -> str:
        """A statement without values, for DDL and scripts; ValueError if it has values."""
        rendered = self.render(**texts)
        if rendered.names:
            raise ValueError(f"statement {self.name!r} has values {rendered.names}: it cannot be sent as text")
        return rendered.sql.replace("%%", "%")


def _number_values(piece: str, names: list[str]) -> str:
    def put(match: re.Match[str]) -> str:
        name = match["name"]
        if name is None:
            return match[0]
        names.append(name)
        return "%s"

    return _VALUE_MARK.sub(put, piece.replace("%", "%%"))


def parse_statements(source: str) -> dict[str, Statement]:
    """Split a `.sql` file into statements without comment lines.

    ValueError for a repeated name, an empty statement, or text before the first name.
    """
    pieces = _NAME_LINE.split(source)
    if _COMMENT_LINE.sub("", pieces[0]).strip():
        raise ValueError(f"text before the first '-- name:' line: {pieces[0].strip()[:60]!r}")
    found: dict[str, Statement] = {}
    for line, body in zip(pieces[1::2], pieces[2::2], strict=True):
        template = "\n".join(text for text in _COMMENT_LINE.sub("", body).splitlines() if text.strip()).strip()
        template = template.removesuffix(";")
        for name in line.split(", "):
            if not template:
                raise ValueError(f"statement {name!r} is empty")
            if name in found:
                raise ValueError(f"statement {name!r} is defined twice")
            found[name] = Statement(name, template)
    return found


def load_statements(dialect: str) -> dict[str, Statement]:
    """All statements of `dialects/sql/<dialect>/*.sql`; ValueError if two files define the same name."""
    found: dict[str, Statement] = {}
    folder = resources.files("sqlqueue_app.dialects").joinpath("sql", dialect)
    for file in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if not file.name.endswith(".sql"):
            continue
        statements = parse_statements(file.read_text(encoding="utf-8"))
        doubled = sorted(found.keys() & statements.keys())
        if doubled:
            raise ValueError(f"statements {doubled} of {file.name!r} are also defined in another file of {dialect!r}")
        found.update(statements)
    return found


_NEEDED_SQLSERVER = frozenset({"id", "expires", "headers", "body", "rowversion"})
_NEEDED_POSTGRESQL = frozenset({"id", "expires", "headers", "body", "seq"})
# Only we create queues on SQLite, and its statements name the reply columns.
_NEEDED_SQLITE = _NEEDED_SQLSERVER | {"correlationid", "replytoaddress"}
_NEEDED: Mapping[str, frozenset[str]] = {"sqlserver": _NEEDED_SQLSERVER, "postgresql": _NEEDED_POSTGRESQL, "sqlite": _NEEDED_SQLITE}
_NEEDED_DELAYED = frozenset({"headers", "body", "due"})
_NEEDED_SUBSCRIPTIONS = frozenset({"queueaddress", "endpoint", "topic"})
_NON_UNICODE_TYPES = frozenset({"varchar", "char", "text"})


@dataclass(frozen=True, slots=True)
class TableShape:
    """A table as the database describes it: columns with types, and the first key column and kind of each index."""

    columns: tuple[tuple[str, str], ...]
    indexes: tuple[tuple[str, str], ...]

    def has(self, column: str) -> bool:
        """Whether the table has this column, ignoring case."""
        return column.lower() in {name.lower() for name, _ in self.columns}

    def type_of(self, column: str) -> str | None:
        """The type of the column as the database prints it, or None."""
        return next((kind for name, kind in self.columns if name.lower() == column.lower()), None)

    def has_index_on(self, column: str) -> bool:
        """Whether an index starts with this column."""
        return any(name.lower() == column.lower() for name, _ in self.indexes)


@dataclass(frozen=True, slots=True)
class QueueLayout:
    """The layout of an existing queue table.

    `send_columns` are the columns of an INSERT in order. `expires_index`: counting and purging by expiry can use an index.
    `unicode_headers` is False for a `varchar` column on SQL Server.
    """

    send_columns: tuple[str, ...]
    correlation_columns: bool
    expires_index: bool
    unicode_headers: bool


def layout_of(dialect: str, table: str, shape: TableShape) -> QueueLayout:
    """The layout of an existing table. TableMismatch names missing columns."""
    _check_columns(table, "queue", _NEEDED[dialect], shape)
    names = {name.lower() for name, _ in shape.columns}
    if dialect == "postgresql":
        # A table that was moved from SQL Server may have its other columns, too; no statement names them here.
        names &= _NEEDED_POSTGRESQL
    send = ["Id", "CorrelationId", "ReplyToAddress", "Recoverable", "Expires", "Headers", "Body"]
    headers_type = shape.type_of("headers") or ""
    return QueueLayout(
        send_columns=tuple(column for column in send if column.lower() in names),
        correlation_columns={"correlationid", "replytoaddress"} <= names,
        expires_index=shape.has_index_on("expires"),
        unicode_headers=dialect != "sqlserver" or headers_type.lower() not in _NON_UNICODE_TYPES,
    )


def check_delayed(table: str, shape: TableShape) -> None:
    """Raise TableMismatch if the table cannot hold delayed messages."""
    _check_columns(table, "delayed", _NEEDED_DELAYED, shape)


def check_subscriptions(table: str, shape: TableShape) -> None:
    """Raise TableMismatch if the table cannot hold subscriptions."""
    _check_columns(table, "subscriptions", _NEEDED_SUBSCRIPTIONS, shape)


def _check_columns(table: str, kind: str, needed: frozenset[str], shape: TableShape) -> None:
    missing = sorted(needed - {name.lower() for name, _ in shape.columns})
    if missing:
        found = ", ".join(name for name, _ in shape.columns)
        raise TableMismatch(
            f"table {table} is not a {kind} table: column(s) {', '.join(missing)} are missing, found {found}; "
            f"name another table; to use this name for a {kind} table, rename this one and run sqlqueue_install"
        )
