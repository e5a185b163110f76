"""Shared by all tests: the leak check, the database fixtures, the versions in the report header."""

from __future__ import annotations

import gc
import platform
import sqlite3
import sys
from collections.abc import Generator, Iterator

import django
import psycopg
import pytest
from hypothesis import HealthCheck, settings

from tests.support import postgresql, sqlserver

# leaks comes first: databases imports it, and pytest must import a plugin itself to rewrite its asserts
pytest_plugins = [
    "tests.support.leaks",
    "tests.support.databases",
    "tests.support.bench",
    "tests.support.filling",
    "tests.support.side_by_side",
    "tests.support.spark",
    "tests.support.once",
]

# Examples may take longer on a busy machine; that is not a failure.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture(autouse=True)
def no_alerts_of_another_test() -> Iterator[None]:
    """The badge of alerts counts what the last overview of the process has found, here that of an earlier test."""
    yield
    if (loaded := sys.modules.get("sqlqueue_app.monitoring.check_results")) is not None:
        loaded.live_alerts.remember(())


VERSIONS = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    """Contact the servers named in the environment before the first test; a wrong address ends the session."""
    try:
        mssql = sqlserver.describe() if sqlserver.is_named() else f"not tested ({sqlserver.URL_VARIABLE} is not set)"
        config.stash[VERSIONS] = [
            f"sqlqueue: Python {platform.python_version()}, Django {django.get_version()}, SQLite {sqlite3.sqlite_version}",
            f"sqlqueue: PostgreSQL {postgresql.describe()}, SQL Server {mssql}",
        ]
    except (RuntimeError, psycopg.Error) as error:
        raise pytest.UsageError(str(error)) from error


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without the garbage collector, and exclude the collected tests from its later runs, because they are not garbage.

    It took half of the time of collecting them, and 15 % of the time of running them.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_report_header(config: pytest.Config) -> list[str]:
    return config.stash[VERSIONS]
