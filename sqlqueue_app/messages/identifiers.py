"""Quoting of database identifiers, and the limits of their length.

Pure text work: no connection is asked. Whatever text comes in, what goes out is exactly one quoted identifier, or an
:class:`AddressError`. All names reach SQL through here.
"""

from __future__ import annotations

from typing import Final

from sqlqueue_app.messages.errors import AddressError

SQLSERVER_LIMIT: Final = 128
"""UTF-16 units of one SQL Server identifier (``sysname``)."""

POSTGRESQL_LIMIT: Final = 63
"""Bytes of UTF-8 of one PostgreSQL identifier (``NAMEDATALEN - 1``); PostgreSQL cuts longer names without an error."""

POSTGRESQL_TABLE_LIMIT: Final = 55
"""Bytes of UTF-8 of a queue table's name: 63 minus 8 for ``_seq_seq`` and ``.Delayed`` (transport reference §11)."""

WHITESPACE: Final = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)
"""What .NET calls white space. ``str.isspace()`` adds U+001C to U+001F, so it would refuse names that .NET accepts."""


def is_blank(text: str | None) -> bool:
    """Whether the text is ``None``, empty, or white space by the rules of .NET."""
    return text is None or not text.strip(WHITESPACE)


def check_characters(text: str, what: str = "name") -> None:
    """Raise :class:`AddressError` for what no database takes in a name: NUL and halves of surrogate pairs."""
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
    """``[a]]b]`` → ``a]b``; text that is not in brackets comes back as it is (transport reference §3.2, step 5)."""
    return _unquote(text, "[", "]")


def unquote_postgresql(text: str) -> str:
    """``"a""b"`` → ``a"b``; text that is not in quotes comes back as it is (transport reference §3.6)."""
    return _unquote(text, '"', '"')


def check_name(name: str, dialect: str, suffix_bytes: int = 0, *, part: str = "table") -> None:
    """Raise :class:`AddressError` if the database could not hold an object of this name.

    ``dialect`` is ``sqlserver``, ``postgresql`` or ``sqlite``; ``part`` is ``table``, ``schema`` or ``catalog``.
    ``suffix_bytes`` is the length of what will be appended to the name (``.Delayed``, an instance), all ASCII: bytes
    and UTF-16 units alike. PostgreSQL's 55 bytes for tables have room for ``.Delayed`` already. SQLite knows no limit.
    """
    if is_blank(name):
        raise AddressError(f"the {part} name {name!r} is empty or white space; give it a name")
    check_characters(name, f"{part} name")
    limit, unit, length = _measure(name, dialect, part)
    if limit is None or length + suffix_bytes <= limit:
        return
    suffix = f" and needs {suffix_bytes} more for its suffix" if suffix_bytes else ""
    raise AddressError(
        f"the {part} name {name!r} is {length} {unit} long{suffix}; {dialect} allows {limit} {unit} here: choose a shorter name"
    )


def check_queue_name(name: object, setting: str) -> None:
    """Raise :class:`AddressError`, naming ``setting``, if the value cannot be the literal name of a queue.

    A name with ``@`` is refused: every reader of the wire would cut it there and take the rest for a schema.
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
