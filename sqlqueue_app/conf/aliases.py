"""Which database is behind an alias of Django's DATABASES, found without connecting to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.db.utils import load_backend

from sqlqueue_app.conf.problems import listed, meant
from sqlqueue_app.messages.errors import ConfigurationError

_BY_ENGINE: Final = {
    "mssql": "sqlserver",
    "django.db.backends.postgresql": "postgresql",
    "django.db.backends.sqlite3": "sqlite",
}
_BY_VENDOR: Final = {"microsoft": "sqlserver", "postgresql": "postgresql", "sqlite": "sqlite"}
_SUPPORTED: Final = "SQL Server (mssql-django), PostgreSQL and SQLite"


def dialect_of(alias: str) -> str:
    """The dialect of an alias: "sqlserver", "postgresql" or "sqlite".

    The usual engines are known by name, so no driver need be installed; a wrapper around one of them (such as
    django_prometheus) is loaded and asked for its vendor. Never connects. Raises ConfigurationError for an unknown
    alias, an engine that cannot be loaded, and databases that sqlqueue does not know.
    """
    if alias not in connections.settings:
        near = meant(alias, connections.settings)
        raise ConfigurationError(f"the alias {alias!r} is not in DATABASES{near or f', expected {listed(connections.settings)}'}")
    engine = str(connections.settings[alias].get("ENGINE", ""))
    if engine in _BY_ENGINE:
        return _BY_ENGINE[engine]
    vendor = _vendor(alias, engine)
    if vendor not in _BY_VENDOR:
        raise ConfigurationError(f"the engine {engine!r} of the database {alias!r} is not supported, expected one for {_SUPPORTED}")
    return _BY_VENDOR[vendor]


class ConfiguredDialects(Mapping[str, str]):
    """The aliases of DATABASES and, on demand, the dialect of each; `[]` raises what `dialect_of` raises."""

    def __getitem__(self, alias: str) -> str:
        if alias not in connections.settings:
            raise KeyError(alias)
        return dialect_of(alias)

    def __contains__(self, alias: object) -> bool:
        return alias in connections.settings

    def __iter__(self) -> Iterator[str]:
        return iter(connections.settings)

    def __len__(self) -> int:
        return len(connections.settings)


def _vendor(alias: str, engine: str) -> str:
    try:
        vendor: str = load_backend(engine).DatabaseWrapper.vendor
    except (ImproperlyConfigured, ImportError) as error:
        raise ConfigurationError(f"the engine {engine!r} of the database {alias!r} cannot be loaded: {error}") from error
    return vendor
