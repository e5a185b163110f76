"""The SQL Server that SQLQUEUE_TEST_MSSQL_URL names, as Django settings."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured
from django.db import connections

URL_VARIABLE = "SQLQUEUE_TEST_MSSQL_URL"

# mssql-django's own options; anything else in the query goes into the driver's connection string.
_BACKEND_OPTIONS = {"driver": str, "python_driver": str, "connection_timeout": int, "query_timeout": int}


def is_named() -> bool:
    """Whether this session tests SQL Server."""
    return bool(os.environ.get(URL_VARIABLE))


def parse_url(url: str) -> dict[str, Any]:
    """An entry for DATABASES from `mssql://user:password@host:port/database?TrustServerCertificate=yes`.

    The driver is mssql-python, which brings its own ODBC driver; `?python_driver=` (empty) takes pyodbc instead.
    Raises RuntimeError for a text of another form.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"mssql", "sqlserver"} or not parts.hostname:
        # not the text itself: it holds a password
        raise RuntimeError(f"{URL_VARIABLE} must look like mssql://user:password@host:port/database?TrustServerCertificate=yes")
    options: dict[str, Any] = {"python_driver": "mssql_python"}
    extra: dict[str, str] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name in _BACKEND_OPTIONS:
            options[name] = _BACKEND_OPTIONS[name](value)
        else:
            extra[name] = value
    if extra:
        options["extra_params"] = ";".join(f"{name}={_braced(value)}" for name, value in extra.items())
    return {
        "ENGINE": "mssql",
        "NAME": unquote(parts.path.strip("/")) or "master",
        "HOST": parts.hostname,
        "PORT": str(parts.port or 1433),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "OPTIONS": options,
    }


def _braced(value: str) -> str:
    return "{" + value.replace("}", "}}") + "}" if set(value) & set(";={} ") else value


def describe() -> str:
    """The server's version, for the report header.

    Raises RuntimeError where the server cannot be reached: one that was named is never skipped.
    """
    try:
        connection = connections.create_connection("mssql")
        # past Django's connection, which pytest-django guards
        raw = connection.get_new_connection(connection.get_connection_params())
    except ImproperlyConfigured as error:
        # mssql-django imports pyodbc, also where it then talks through mssql-python
        raise RuntimeError(f"mssql-django cannot be loaded (apt-get install unixodbc may help): {error}") from error
    except Exception as error:
        # each driver has an error tree of its own
        raise RuntimeError(f"cannot connect to the server that {URL_VARIABLE} names: {error}") from error
    try:
        cursor = raw.cursor()
        cursor.execute("SELECT CAST(SERVERPROPERTY('ProductVersion') AS nvarchar(50))")
        return str(cursor.fetchone()[0])
    finally:
        raw.close()
