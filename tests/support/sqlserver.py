"""The SQL Server from SQLQUEUE_TEST_MSSQL_URL as Django settings."""

from __future__ import annotations

import atexit
import importlib.util
import os
import platform
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured
from django.db import connections

URL_VARIABLE = "SQLQUEUE_TEST_MSSQL_URL"
ODBC_DRIVER = "ODBC Driver 18 for SQL Server"

# Options of mssql-django; all others in the query string go into the connection string of the driver.
_BACKEND_OPTIONS = {"driver": str, "python_driver": str, "connection_timeout": int, "query_timeout": int}


def is_named() -> bool:
    """Whether this session tests SQL Server."""
    return bool(os.environ.get(URL_VARIABLE))


def parse_url(url: str) -> dict[str, Any]:
    """An entry for DATABASES from `mssql://user:password@host:port/database?TrustServerCertificate=yes`.

    The driver is mssql-python, which includes an ODBC driver; `?python_driver=` (empty) selects pyodbc instead.
    Raises RuntimeError for an invalid URL.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"mssql", "sqlserver"} or not parts.hostname:
        # without the URL itself, which contains a password
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


# Statements that SQL Server accepts, but that a compatible server may refuse.
_PROBES = {
    "error 2760 for a missing schema": (
        "BEGIN TRY EXEC(N'CREATE TABLE [sqlqueue_no_schema].[probe] (n int)') END TRY"
        " BEGIN CATCH IF ERROR_NUMBER() <> 2760 THROW; END CATCH"
    ),
    "NUL in a text": "IF COALESCE(LEN(N'a' + NCHAR(0) + N'b'), 0) <> 3 RAISERROR('it ends there', 16, 1)",
    "DROP CONSTRAINT of a default": (
        "CREATE TABLE sqlqueue_probe (x int CONSTRAINT sqlqueue_probed DEFAULT 1);"
        " ALTER TABLE sqlqueue_probe DROP CONSTRAINT sqlqueue_probed"
    ),
    "IDENT_CURRENT of a name with its database": (
        "SET NOCOUNT ON; CREATE TABLE sqlqueue_probe (x int IDENTITY);"
        " DECLARE @name nvarchar(400) = CONCAT(QUOTENAME(DB_NAME()), N'.', QUOTENAME(SCHEMA_NAME()), N'.sqlqueue_probe');"
        " IF IDENT_CURRENT(@name) IS NULL THROW 50000, N'it returns NULL', 1"
    ),
    "TOP WITH TIES": "SELECT TOP (1) WITH TIES name FROM sys.schemas ORDER BY name",
    "sp_rename without a kind": "CREATE TABLE sqlqueue_probe (x int); EXEC sp_rename [sqlqueue_probe], [sqlqueue_probed]",
}


def needs(vendor: str, feature: str) -> None:
    """Skip the test if the server lacks this documented feature of SQL Server."""
    if vendor == "sqlserver" and lacks(feature):
        # Imported here: the settings import this module in each process that a test starts.
        import pytest

        pytest.skip(f"the server of {URL_VARIABLE} lacks {feature}")


@cache
def lacks(feature: str) -> bool:
    """Whether the server refuses the probe of this feature. The probe is rolled back."""
    connection = connections.create_connection("mssql")
    raw = connection.get_new_connection(connection.get_connection_params())
    try:
        raw.autocommit = False
        raw.cursor().execute(_PROBES[feature])
    except Exception:  # noqa: BLE001 - the driver has its own error classes; a lost connection fails at the rollback
        return True
    finally:
        raw.rollback()
        raw.close()
    return False


def describe() -> str:
    """The server's version, for the report header.

    Raises RuntimeError if the server is unreachable: a configured server is never skipped.
    """
    register_odbc_driver()
    try:
        connection = connections.create_connection("mssql")
        # bypasses the connection of Django, which pytest-django blocks
        raw = connection.get_new_connection(connection.get_connection_params())
    except ImproperlyConfigured as error:
        # mssql-django imports pyodbc even if it uses mssql-python
        raise RuntimeError(f"mssql-django cannot be loaded (apt-get install unixodbc may help): {error}") from error
    except Exception as error:
        # each driver has its own error classes
        raise RuntimeError(f"cannot connect to the server that {URL_VARIABLE} names: {error}") from error
    try:
        cursor = raw.cursor()
        cursor.execute("SELECT CAST(SERVERPROPERTY('ProductVersion') AS nvarchar(50))")
        return str(cursor.fetchone()[0])
    finally:
        raw.close()


def register_odbc_driver() -> None:
    """Register the ODBC driver that mssql-python includes for pyodbc, with the name that mssql-django expects.

    Call it before the first connection of the process, which caches the location. Does nothing if the machine registers drivers.
    """
    if "ODBCSYSINI" in os.environ or (Path("/etc/odbcinst.ini").exists() and Path("/etc/odbcinst.ini").read_text("utf-8").strip()):
        return
    found = importlib.util.find_spec("mssql_python_odbc")
    if found is None or found.origin is None:
        return
    flavour = "debian_ubuntu" if shutil.which("apt-get") else "rhel"
    folder = Path(found.origin).parent / "libs" / "linux" / flavour / platform.machine() / "lib"
    for driver in sorted(folder.glob("libmsodbcsql-*")):
        directory = tempfile.mkdtemp(prefix="sqlq-odbc-")
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
        Path(directory, "odbcinst.ini").write_text(f"[{ODBC_DRIVER}]\nDriver={driver}\n", "utf-8")
        os.environ["ODBCSYSINI"] = directory


def has_pyodbc() -> bool:
    """Whether pyodbc is installed and finds a driver for SQL Server."""
    try:
        import pyodbc
    except ImportError:
        return False
    return ODBC_DRIVER in pyodbc.drivers()
