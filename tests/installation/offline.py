"""Django connections to servers that do not exist: they compile SQL and generate DDL without connecting."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

OFFLINE: dict[str, dict[str, Any]] = {
    "sqlserver": {"ENGINE": "mssql", "NAME": "shop", "HOST": "db.invalid", "OPTIONS": {"python_driver": "mssql_python"}},
    "postgresql": {"ENGINE": "django.db.backends.postgresql", "NAME": "shop", "HOST": "db.invalid"},
    "sqlite": {"ENGINE": "django.db.backends.sqlite3", "NAME": "/nonexistent/shop.sqlite3"},
}


@contextmanager
def offline_connection(vendor: str, alias: str = "offline") -> Iterator[BaseDatabaseWrapper]:
    """Point the alias at an unreachable server of that product."""
    if vendor == "sqlserver":
        _load_mssql()
    databases: dict[str, Any] = connections.settings
    databases[alias] = connections.configure_settings({"default": {}, alias: OFFLINE[vendor]})[alias]
    try:
        connection = connections[alias]
        if vendor == "sqlserver":
            # it would query the server for these
            connection._known_versions[alias] = 2022  # type: ignore[attr-defined]
            connection._known_azures[alias] = False  # type: ignore[attr-defined]
        yield connection
    finally:
        del connections[alias]
        del databases[alias]


def _load_mssql() -> None:
    """Import mssql-django even if pyodbc cannot be loaded because the system has no ODBC library.

    mssql-django imports pyodbc at its start, even if configured to use mssql-python. It then only looks up names in pyodbc: the
    stand-in has them, and none of it runs.
    """
    if "mssql.base" in sys.modules:
        return
    try:
        importlib.import_module("pyodbc")
    except ImportError:
        sys.modules["pyodbc"] = _NamesOnly("pyodbc")
        try:
            importlib.import_module("mssql.base")
            importlib.import_module("mssql.introspection")
        finally:
            del sys.modules["pyodbc"]


class _NamesOnly(types.ModuleType):
    version = "5.2.0"
    Error = type("Error", (Exception,), {})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("SQL_"):
            return name
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (self.Error,), {})
