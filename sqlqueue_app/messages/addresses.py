"""Queue addresses: their text in headers, settings and subscription tables, the quoting of their parts, and the
schema and catalog of a name. Every name in SQL comes from here: as one quoted identifier, or else an AddressError is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from sqlqueue_app.messages.errors import AddressError, ConfigurationError

SQLSERVER_LIMIT: Final = 128
"""UTF-16 units of one SQL Server identifier (``sysname``)."""

POSTGRESQL_LIMIT: Final = 63
"""Bytes of UTF-8 of one PostgreSQL identifier (``NAMEDATALEN - 1``); PostgreSQL cuts longer names without an error."""

POSTGRESQL_TABLE_LIMIT: Final = 55
"""UTF-8 bytes of a queue table's name: 63 minus 8 for ``_seq_seq`` and ``.Delayed`` (docs/internals/wire.md#postgresql-names)."""

WHITESPACE: Final = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)
"""White space in .NET. ``str.isspace()`` also includes U+001C to U+001F, so it would reject names that .NET accepts."""


def is_blank(text: str | None) -> bool:
    """Whether the text is ``None``, empty, or white space by the rules of .NET."""
    return text is None or not text.strip(WHITESPACE)


def check_characters(text: str, what: str = "name") -> None:
    """Raise :class:`AddressError` for characters that no database accepts in a name: NUL and lone surrogates."""
    if "\0" in text:
        raise AddressError(f"the {what} {text!r} contains the character NUL, which no database accepts; remove it")
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise AddressError(f"the {what} {text!r} contains half of a surrogate pair; write valid Unicode") from None


def quote_sqlserver(name: str) -> str:
    """``a]b`` → ``[a]]b]``. The empty name gives ``[]``, as in the original. Raises AddressError for NUL."""
    return _quote(name, "[", "]")


def quote_postgresql(name: str) -> str:
    """``a"b`` → ``"a""b"``. Raises AddressError for NUL."""
    return _quote(name, '"', '"')


def quote_sqlite(name: str) -> str:
    """``a"b`` → ``"a""b"``. Raises AddressError for NUL."""
    return _quote(name, '"', '"')


def unquote_sqlserver(text: str) -> str:
    """``[a]]b]`` → ``a]b``; text without brackets is returned unchanged.

    See docs/internals/wire.md#sql-server-addresses, step 4.
    """
    return _unquote(text, "[", "]")


def unquote_postgresql(text: str) -> str:
    """``"a""b"`` → ``a"b``; text without quotes is returned unchanged (docs/internals/wire.md#postgresql-addresses)."""
    return _unquote(text, '"', '"')


def check_name(name: str, dialect: str, suffix_bytes: int = 0, *, part: str = "table") -> None:
    """Raise :class:`AddressError` if the database does not support an object with this name.

    ``dialect`` is ``sqlserver``, ``postgresql`` or ``sqlite``; ``part`` is ``table``, ``schema`` or ``catalog``.
    ``suffix_bytes`` is the length of a suffix to be appended (``.Delayed``, an instance), all ASCII: as many bytes as
    UTF-16 units. PostgreSQL's 55 bytes for tables already leave room for ``.Delayed``. SQLite has no limit.
    """
    if is_blank(name):
        raise AddressError(f"the {part} name {name!r} is empty or white space; give it a name")
    check_characters(name, f"{part} name")
    if dialect == "sqlserver" and part == "table" and name.startswith("#"):
        raise AddressError(
            f"the table name {name!r} begins with '#', which makes it a temporary table on SQL Server: choose another name"
        )
    if dialect == "sqlite" and part == "table" and name.lower().startswith("sqlite_"):
        raise AddressError(f"the table name {name!r} begins with 'sqlite_', which SQLite reserves: choose another name")
    limit, unit, length = _measure(name, dialect, part)
    if limit is None or length + suffix_bytes <= limit:
        return
    suffix = f" and needs {suffix_bytes} more for its suffix" if suffix_bytes else ""
    raise AddressError(
        f"the {part} name {name!r} is {length} {unit} long{suffix}; {dialect} allows {limit} {unit} here: choose a shorter name"
    )


def check_queue_name(name: object, setting: str) -> None:
    """Raise :class:`AddressError`, naming ``setting``, if the value cannot be the literal name of a queue.

    A name with ``@`` is rejected: every reader would split it there and take the rest for a schema.
    """
    if not isinstance(name, str):
        raise AddressError(f"{setting}: expected a queue name as text, got {name!r}")
    if is_blank(name):
        raise AddressError(f"{setting}: the queue name {name!r} is empty or white space; give it a name")
    if "@" in name:
        raise AddressError(
            f"{setting}: the queue name {name!r} contains '@', which separates table and schema in an address; "
            "write only the name here, and the schema in DEFAULT_SCHEMA, SCHEMA_FOR_QUEUE or SCHEMA_FOR_ENDPOINT"
        )
    check_characters(name, f"queue name in {setting}")


def _measure(name: str, dialect: str, part: str) -> tuple[int | None, str, int]:
    if dialect == "sqlserver":
        return SQLSERVER_LIMIT, "characters", len(name.encode("utf-16-le")) // 2
    if dialect == "postgresql":
        limit = POSTGRESQL_TABLE_LIMIT if part == "table" else POSTGRESQL_LIMIT
        return limit, "bytes", len(name.encode("utf-8"))
    if dialect == "sqlite":
        return None, "characters", len(name)
    raise ValueError(f"unknown dialect {dialect!r}; expected 'sqlserver', 'postgresql' or 'sqlite'")


def _quote(name: str, opening: str, closing: str) -> str:
    check_characters(name)
    return f"{opening}{name.replace(closing, closing * 2)}{closing}"


def _unquote(text: str, opening: str, closing: str) -> str:
    # A lone quote character starts and ends with itself but encloses nothing.
    if len(text) < 2 or not text.startswith(opening) or not text.endswith(closing):
        return text
    return text[1:-1].replace(closing * 2, closing)


FORMS: Final = ("sqlserver", "postgresql", "3.0", "legacy", "sqlite")
"""The forms that :meth:`QueueAddress.parse` supports."""

_Parts = tuple[str, str | None, str | None]


@dataclass(frozen=True, slots=True)
class QueueAddress:
    """A queue as table, schema and catalog, unquoted, with the form in which it is written as text.

    ============ ============================== ===========================================================
    form         text                           writer (docs/internals/wire.md#addresses)
    ============ ============================== ===========================================================
    sqlserver    ``table@[schema]@[catalog]``   SQL Server transport 3.1 and later; our own on SQL Server
    postgresql   ``"schema"."table"``           PostgreSQL transport; our own on PostgreSQL
    3.0          ``table@[schema]``             SQL Server transport 3.0
    legacy       ``table`` or ``table@machine`` SQL Server transport 1.x and 2.x, which cut at the first ``@``
    sqlite       ``table``                      our own on SQLite, which has no schemas
    ============ ============================== ===========================================================

    Blank schemas and catalogs become ``None``: unspecified, to be resolved. Raises :class:`AddressError` (a
    ``ValueError``) for a blank table, an unknown form, NUL and invalid Unicode. Does not check lengths, because an
    address may name a queue of another database: see :func:`sqlqueue_app.messages.addresses.check_name`.
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
        if type(self.table) is not str:
            # A member of `class Queue(str, Enum)`, which an f-string would write as "Queue.SALES".
            object.__setattr__(self, "table", str.__str__(self.table))
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
        """Parse an address as a reader of ``form`` does. Raises :class:`AddressError`, quoting the text, if it is invalid."""
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
        """The canonical address, as written to ReplyToAddress, FailedQ and the subscription table.

        ``default_schema`` fills in a missing schema (blank: ``dbo`` or ``public``), ``default_catalog`` a missing
        catalog; with neither, the catalog is omitted. Raises AddressError if the text would be read as another queue: a
        table with ``@`` in one of the forms that split there.
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
        """The quoted name of the table for SQL; missing parts are filled in as in :meth:`full`."""
        if self.form == "sqlite":
            return quote_sqlite(self.table)
        schema = self._schema_or(default_schema)
        if self.form == "postgresql":
            return f"{quote_postgresql(schema)}.{quote_postgresql(self.table)}"
        catalog = self._catalog_or(default_catalog)
        start = f"{quote_sqlserver(catalog)}." if catalog else ""
        return f"{start}{quote_sqlserver(schema)}.{quote_sqlserver(self.table)}"

    def __str__(self) -> str:
        """The short form: only the known parts. Parsing it again gives the same address.

        This holds for the forms sqlserver, postgresql and sqlite, and for ``legacy`` except for a schema set by hand. The
        original of ``3.0`` did not double ``]``, and neither does sqlqueue.
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
    """Step 2 of docs/internals/wire.md#sql-server-addresses: the text before the next separating ``@``, and the text after it."""
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
        # The original fails on this text with an index out of range.
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


def _parse_sqlite(text: str) -> _Parts:
    """Take the whole text as the table, unless it has one of the other forms: then only its table counts.

    So rows copied from a server, with ``Sales@[dbo]@[nsb]`` or ``"public"."Sales"`` in their headers, find their
    queues. A dot alone is not enough: ``Particular.ServiceControl`` is a table.
    """
    dot = _first_open_dot(text)
    table = text[dot + 1 :]
    if _is_quoted(table) and (dot < 0 or _is_quoted(text[:dot])):
        return unquote_postgresql(table), None, None
    return text.partition("@")[0], None, None


def _is_quoted(text: str) -> bool:
    """Whether the text is exactly one identifier in double quotes."""
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


def _print_sqlite(address: QueueAddress) -> str:
    # Unquoted, unless a reader would then see another table.
    return address.table if _parse_sqlite(address.table)[0] == address.table else quote_sqlite(address.table)


_PARSERS: Final[dict[str, Callable[[str], _Parts]]] = {
    "sqlserver": _parse_sqlserver,
    "postgresql": _parse_postgresql,
    "3.0": _parse_3_0,
    "legacy": lambda text: (text.partition("@")[0], None, None),
    "sqlite": _parse_sqlite,
}

_PRINTERS: Final[dict[str, Callable[[QueueAddress], str]]] = {
    "sqlserver": _print_sqlserver,
    "postgresql": _print_postgresql,
    "3.0": _print_3_0,
    "legacy": lambda address: address.table,
    "sqlite": _print_sqlite,
}

_EXPECTED: Final = {
    "sqlserver": "'table', 'table@[schema]' or 'table@[schema]@[catalog]'",
    "postgresql": "'table', '\"table\"' or '\"schema\".\"table\"'",
    "3.0": "'table' or 'table@[schema]'",
    "legacy": "'table'",
    "sqlite": "'table'",
}


_LAST_SCHEMA: Final = {"sqlserver": "dbo", "postgresql": "public", "sqlite": None}


@dataclass(frozen=True, slots=True)
class AddressBook:
    """Fills in the schema and the catalog of queue addresses of one database from the settings.

    The order of precedence for both (docs/internals/wire.md#address-resolution): the setting for the queue, the setting for the
    endpoint if a message is routed to one, the address, the default, and for schemas finally ``dbo`` or ``public``. Look-ups use
    the table part, exact and case-sensitive.

    ``dialect`` is ``sqlserver``, ``postgresql`` or ``sqlite``; only SQL Server has catalogs, SQLite has no schemas
    either, and settings for parts that a database lacks are ignored. Without a known catalog (no default), the catalog
    of an address stays ``None`` and its names have two parts. Raises :class:`ConfigurationError` for another dialect.
    Resolving is idempotent.

    ``cuts_received``: addresses in received messages are read as transports 1.x and 2.x read them.
    """

    dialect: str
    default_schema: str | None = None
    default_catalog: str | None = None
    schema_for_queue: Mapping[str, str] = field(default_factory=dict)
    schema_for_endpoint: Mapping[str, str] = field(default_factory=dict)
    catalog_for_queue: Mapping[str, str] = field(default_factory=dict)
    catalog_for_endpoint: Mapping[str, str] = field(default_factory=dict)
    cuts_received: bool = False

    def __post_init__(self) -> None:
        if self.dialect not in _LAST_SCHEMA:
            raise ConfigurationError(f"unknown dialect {self.dialect!r}; expected one of {', '.join(_LAST_SCHEMA)}")

    def resolve(self, address: QueueAddress, endpoint: str | None = None) -> QueueAddress:
        """The address in this database's form with all its parts; ``endpoint`` if the message is routed to one."""
        table = address.table
        schema = catalog = None
        if self.dialect != "sqlite":
            schema = _first(
                self.schema_for_queue.get(table),
                self.schema_for_endpoint.get(endpoint) if endpoint is not None else None,
                address.schema,
                self.default_schema,
                _LAST_SCHEMA[self.dialect],
            )
        if self.dialect == "sqlserver":
            catalog = _first(
                self.catalog_for_queue.get(table),
                self.catalog_for_endpoint.get(endpoint) if endpoint is not None else None,
                address.catalog,
                self.default_catalog,
            )
        return QueueAddress(table, schema, catalog, self.dialect)

    def parse(self, text: str) -> QueueAddress:
        """Parse and resolve an address. Raises :class:`AddressError` if it is invalid."""
        return self.resolve(QueueAddress.parse(text, self.dialect))

    def received(self, text: str) -> QueueAddress:
        """Parse and resolve an address in a received message. Raises :class:`AddressError` if it is invalid.

        With ``cuts_received`` it is cut at the first ``@``: the rest is a machine, or a schema that versions 1 and 2 leave to
        their settings (docs/internals/wire.md#addresses-across-versions). Those versions write no double quotes, so quoted text
        is read as usual.
        """
        cuts = self.cuts_received and not text.startswith('"')
        return self.resolve(QueueAddress.parse(text, "legacy" if cuts else self.dialect))

    def of_queue(self, name: str) -> QueueAddress:
        """The resolved queue with this literal name: it is never parsed, so dots and brackets belong to it."""
        return self.resolve(QueueAddress(name, form=self.dialect))

    def of_endpoint(self, name: str) -> QueueAddress:
        """The primary queue of an endpoint, resolved with the settings of the endpoint; the name is never parsed."""
        return self.resolve(QueueAddress(name, form=self.dialect), name)

    def canonical(self, address: QueueAddress) -> str:
        """The text to write to ReplyToAddress, FailedQ, ForwardDestination and the subscription table.

        On SQLite only the table name. Raises :class:`AddressError` for a table whose name no reader can parse.
        """
        return self.resolve(address).full(None)


def _first(*values: str | None) -> str | None:
    return next((value for value in values if not is_blank(value)), None)
