"""The option `url`, which describes a database in one text that is sent to the executors: build and parse it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from sqlqueue_app.dialects.dialect import VENDORS, DialectName
from sqlqueue_app.messages.errors import ConfigurationError

_SCHEMES: Mapping[str, DialectName] = {
    "postgresql": "postgresql",
    "postgres": "postgresql",
    "sqlite": "sqlite",
    "mssql": "sqlserver",
    "sqlserver": "sqlserver",
}
_EXPECTED = "postgresql://user:password@host:5432/database, sqlite:////path/of/the/file or mssql://user:password@host:1433/database"
# Django's PostgreSQL options that libpq accepts.
_LIBPQ = (
    "application_name", "channel_binding", "connect_timeout", "gss", "keepalives", "krbsrvname", "options", "passfile",
    "require_auth", "requirepeer", "service", "ssl", "target_session_attrs", "tcp_user_timeout",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Database:
    """A parsed url. Its repr shows no password."""

    url: str
    dialect: DialectName
    name: str
    host: str
    port: int | None
    user: str
    password: str
    options: tuple[tuple[str, str], ...]

    def __repr__(self) -> str:
        return f"<Database {self.shown}>"

    @property
    def shown(self) -> str:
        """The url without the password, for messages."""
        if self.dialect == "sqlite":
            return f"sqlite:///{self.name}"
        scheme = "mssql" if self.dialect == "sqlserver" else "postgresql"
        who = f"{self.user}@" if self.user else ""
        where = self.host or dict(self.options).get("host", "")
        return f"{scheme}://{who}{where}{f':{self.port}' if self.port else ''}/{self.name}"

    def without_password(self, text: str) -> str:
        """Remove the url and its passwords from an error text."""
        secrets = {self.password, quote(self.password, safe=""), self.url}
        secrets |= {value for key, value in self.options if key.lower() in ("password", "pwd", "sslpassword")}
        for secret in sorted(filter(None, secrets), key=len, reverse=True):
            text = text.replace(secret, self.shown if secret == self.url else "***")
        return text


def parse_url(url: str) -> Database:
    """Parse a url. Raises ConfigurationError, which never shows the password, for an invalid one."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ConfigurationError(f"the option url is not a URL: expected {_EXPECTED}, with special characters as %XX") from None
    dialect = _SCHEMES.get(parts.scheme.lower())
    if dialect is None:
        raise ConfigurationError(f"the option url begins with the scheme {parts.scheme!r}: expected {_EXPECTED}")
    path = unquote(parts.path)
    name = path.removeprefix("/")
    options = tuple(parse_qsl(parts.query, keep_blank_values=True))
    # a service of libpq may name the database
    if not name and not (dialect == "postgresql" and "service" in dict(options)):
        raise ConfigurationError(f"the option url names no database: expected {_EXPECTED}")
    if dialect == "sqlite" and parts.netloc:
        raise ConfigurationError("the option url names a host, and SQLite has none: expected sqlite:////path/of/the/file")
    if dialect == "sqlserver" and not parts.hostname:
        raise ConfigurationError("the option url names no host: expected mssql://user:password@host:1433/database")
    return Database(
        url,
        dialect,
        name,
        unquote(parts.hostname or ""),
        port,
        unquote(parts.username or ""),
        unquote(parts.password or ""),
        options,
    )


def source_url(
    vendor: str,
    name: str,
    *,
    host: str = "",
    port: str | int = "",
    user: str = "",
    password: str = "",
    options: Mapping[str, Any] | None = None,
) -> str:
    """Build the option `url` from the parts of an entry in Django's DATABASES.

    `vendor` is the name of the dialect or Django's vendor. Of `options`, `extra_params` is used for SQL Server, and those of libpq
    and `assume_role` for PostgreSQL. A `host` that starts with a slash is a socket folder; several hosts, and their ports, are
    separated by commas. Raises ConfigurationError for an unsupported vendor and for SQLite in memory, which other processes
    cannot read.
    """
    dialect = VENDORS.get(vendor, vendor)
    given = dict(options or {})
    if dialect == "sqlite":
        if not name or ":memory:" in name or "mode=memory" in name:
            raise ConfigurationError(f"the SQLite database {name!r} is in memory, where only its own process reads it: use a file")
        return f"sqlite:///{quote(name)}"
    query: dict[str, str] = {}
    if dialect == "postgresql":
        query = {key: str(value) for key, value in given.items() if key.startswith(_LIBPQ) and isinstance(value, str | int)}
        if role := given.get("assume_role"):
            escaped = re.sub(r"([ \\])", r"\\\1", str(role))
            query["options"] = f"{query.get('options', '')} -c role={escaped}".lstrip()
        if host.startswith("/") or "," in host:
            query |= {"host": host, **({"port": str(port)} if port else {})}
            host = port = ""
    elif dialect == "sqlserver":
        pairs = (pair.partition("=") for pair in str(given.get("extra_params", "")).split(";"))
        query = {key.strip(): value.strip() for key, _, value in pairs if key.strip()}
    else:
        raise ConfigurationError(
            f"database vendor {vendor!r} cannot hold queue tables: expected one of {', '.join(VENDORS.values())}"
        )
    who = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
    place = (f"[{host}]" if ":" in host else quote(host)) + (f":{port}" if port else "")
    scheme = "mssql" if dialect == "sqlserver" else "postgresql"
    # libpq does not read "+" as a space
    parameters = f"?{urlencode(query, quote_via=quote)}" if query else ""
    return f"{scheme}://{who}{'@' if who else ''}{place}/{quote(name, safe='')}{parameters}"
