"""Queue addresses: the text that names a queue in headers, settings and subscription tables, and its parts.

Five forms of text exist (transport reference §3):

============ ============================== ===========================================================
form         text                           who writes it
============ ============================== ===========================================================
sqlserver    ``table@[schema]@[catalog]``   SQL Server transport 3.1 and later; our own on SQL Server
postgresql   ``"schema"."table"``           PostgreSQL transport; our own on PostgreSQL
3.0          ``table@[schema]``             SQL Server transport 3.0
legacy       ``table`` or ``table@machine`` SQL Server transport 1.x and 2.x, which cut at the first ``@``
sqlite       ``table``                      our own on SQLite, which has no schemas
============ ============================== ===========================================================
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sqlqueue_app.messages.errors import AddressError
from sqlqueue_app.messages.identifiers import (
    check_characters,
    is_blank,
    quote_postgresql,
    quote_sqlite,
    quote_sqlserver,
    unquote_postgresql,
    unquote_sqlserver,
)

FORMS: Final = ("sqlserver", "postgresql", "3.0", "legacy", "sqlite")
"""Every form that :meth:`QueueAddress.parse` knows."""

_Parts = tuple[str, str | None, str | None]


@dataclass(frozen=True, slots=True)
class QueueAddress:
    """A queue as table, schema and catalog, unquoted, with the form in which it is written as text.

    Blank schemas and catalogs become ``None``, which means: not said, resolution decides. Raises :class:`AddressError`
    (a ``ValueError``) for a blank table, an unknown form, NUL and broken Unicode. Lengths are not checked here, because
    an address may name a queue of another database: see :func:`sqlqueue_app.messages.identifiers.check_name`.
    """

    table: str
    schema: str | None = None
    catalog: str | None = None
    form: str = "sqlserver"

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise AddressError(f"unknown form of address {self.form!r}; expected one of {', '.join(FORMS)}")
        if is_blank(self.table):
            raise AddressError(f"the queue address with schema {self.schema!r} has no table (got {self.table!r})")
        check_characters(self.table, "table")
        for part in ("schema", "catalog"):
            value: str | None = getattr(self, part)
            if value is None:
                continue
            if is_blank(value):
                object.__setattr__(self, part, None)
            else:
                check_characters(value, part)

    @classmethod
    def parse(cls, text: str, form: str = "sqlserver") -> QueueAddress:
        """The address that a reader of ``form`` sees in ``text``; raises :class:`AddressError`, naming it, if none."""
        parser = _PARSERS.get(form)
        if parser is None:
            raise AddressError(f"unknown form of address {form!r}; expected one of {', '.join(FORMS)}")
        if not isinstance(text, str):
            raise AddressError(f"expected a queue address as text, got {text!r}")
        table, schema, catalog = parser(text)
        if is_blank(table):
            raise AddressError(f"the queue address {text!r} has no table; expected {_EXPECTED[form]}")
        return cls(table, schema, catalog, form)

    def full(self, default_schema: str | None, default_catalog: str | None = None) -> str:
        """The canonical address, as it goes into ReplyToAddress, FailedQ and the subscription table.

        ``default_schema`` fills in a missing schema (blank: ``dbo`` or ``public``), ``default_catalog`` a missing
        catalog; with neither, the catalog is left out. Raises AddressError where the text would be read as another
        queue: a table with ``@`` in one of the forms that cut there.
        """
        if self.form == "postgresql":
            return self.qualified(default_schema)
        if self.form in ("sqlite", "legacy"):
            return str(self)
        if "@" in self.table:
            raise AddressError(
                f"the table {self.table!r} contains '@' and so has no address that others could read; rename the table"
            )
        schema = self._schema_or(default_schema)
        if self.form == "3.0":
            return f"{self.table}@[{schema}]"
        catalog = self._catalog_or(default_catalog)
        return f"{self.table}@{quote_sqlserver(schema)}" + (f"@{quote_sqlserver(catalog)}" if catalog else "")

    def qualified(self, default_schema: str | None, default_catalog: str | None = None) -> str:
        """The quoted name of the table for SQL; what is missing is filled in as in :meth:`full`."""
        if self.form == "sqlite":
            return quote_sqlite(self.table)
        schema = self._schema_or(default_schema)
        if self.form == "postgresql":
            return f"{quote_postgresql(schema)}.{quote_postgresql(self.table)}"
        catalog = self._catalog_or(default_catalog)
        start = f"{quote_sqlserver(catalog)}." if catalog else ""
        return f"{start}{quote_sqlserver(schema)}.{quote_sqlserver(self.table)}"

    def __str__(self) -> str:
        """The short form: only what is known. For every parsed address, parsing it again gives the same address.

        True of the forms sqlserver, postgresql and sqlite, and of ``legacy`` but for a schema set by hand; the original
        of ``3.0`` did not double ``]``, and neither do we.
        """
        return _PRINTERS[self.form](self)

    def _schema_or(self, default: str | None) -> str:
        if self.schema is not None:
            return self.schema
        if default is not None and not is_blank(default):
            return default
        return "public" if self.form == "postgresql" else "dbo"

    def _catalog_or(self, default: str | None) -> str | None:
        return self.catalog if self.catalog is not None else (None if is_blank(default) else default)


def _parse_sqlserver(text: str) -> _Parts:
    table, at, rest = text.partition("@")
    if not at:
        return table, None, None
    schema, rest = _next_part(rest)
    catalog = _next_part(rest)[0] if rest else ""
    return table, unquote_sqlserver(schema), unquote_sqlserver(catalog)


def _next_part(rest: str) -> tuple[str, str]:
    """Step 3 of transport reference §3.2: the text before the next separating ``@``, and the text after it."""
    bracketed = rest.startswith("[")
    closing = 0
    for index in range(1, len(rest)):
        character = rest[index]
        if character == "]":
            closing += 1
        elif character == "@" and (not bracketed or closing % 2 == 1):
            return rest[:index], rest[index + 1 :]
    return rest, ""


def _parse_postgresql(text: str) -> _Parts:
    dot = _first_open_dot(text)
    schema, table = (None, text) if dot < 0 else (unquote_postgresql(text[:dot]), text[dot + 1 :])
    if table == '"':
        # The original fails on this text, with an index out of range.
        raise AddressError(f"the queue address {text!r} has an opening quote only; expected {_EXPECTED['postgresql']}")
    return unquote_postgresql(table), schema, None


def _first_open_dot(text: str) -> int:
    quotes = 0
    for index, character in enumerate(text):
        if character == '"':
            quotes += 1
        elif character == "." and quotes % 2 == 0:
            return index
    return -1


def _parse_3_0(text: str) -> _Parts:
    table, *others = text.split("@")
    return table, unquote_sqlserver(others[0]) if others else None, None


def _parse_legacy(text: str) -> _Parts:
    return text.partition("@")[0], None, None


def _parse_sqlite(text: str) -> _Parts:
    """The whole text is the table, unless it is written like an address of the other forms: then only its table counts.

    So rows that were copied from a server, with ``Sales@[dbo]@[nsb]`` or ``"public"."Sales"`` in their headers, find
    their queues. A dot alone decides nothing: ``Particular.ServiceControl`` is a table.
    """
    dot = _first_open_dot(text)
    table = text[dot + 1 :]
    if _is_quoted(table) and (dot < 0 or _is_quoted(text[:dot])):
        return unquote_postgresql(table), None, None
    return text.partition("@")[0], None, None


def _is_quoted(text: str) -> bool:
    """Whether the text is one identifier in double quotes, to the letter."""
    return len(text) > 2 and text == quote_postgresql(unquote_postgresql(text))


def _print_sqlserver(address: QueueAddress) -> str:
    text = address.table
    if address.schema is not None or address.catalog is not None:
        text += f"@{quote_sqlserver(address.schema or '')}"
    if address.catalog is not None:
        text += f"@{quote_sqlserver(address.catalog)}"
    return text


def _print_postgresql(address: QueueAddress) -> str:
    if address.schema is not None:
        return f"{quote_postgresql(address.schema)}.{quote_postgresql(address.table)}"
    special = "." in address.table or '"' in address.table
    return quote_postgresql(address.table) if special else address.table


def _print_3_0(address: QueueAddress) -> str:
    return address.table if address.schema is None else f"{address.table}@[{address.schema}]"


def _print_table(address: QueueAddress) -> str:
    return address.table


def _print_sqlite(address: QueueAddress) -> str:
    # Bare, unless a reader would then see another table.
    return address.table if _parse_sqlite(address.table)[0] == address.table else quote_sqlite(address.table)


_PARSERS: Final[dict[str, Callable[[str], _Parts]]] = {
    "sqlserver": _parse_sqlserver,
    "postgresql": _parse_postgresql,
    "3.0": _parse_3_0,
    "legacy": _parse_legacy,
    "sqlite": _parse_sqlite,
}

_PRINTERS: Final[dict[str, Callable[[QueueAddress], str]]] = {
    "sqlserver": _print_sqlserver,
    "postgresql": _print_postgresql,
    "3.0": _print_3_0,
    "legacy": _print_table,
    "sqlite": _print_sqlite,
}

_EXPECTED: Final = {
    "sqlserver": "'table', 'table@[schema]' or 'table@[schema]@[catalog]'",
    "postgresql": "'table', '\"table\"' or '\"schema\".\"table\"'",
    "3.0": "'table' or 'table@[schema]'",
    "legacy": "'table'",
    "sqlite": "'table'",
}
