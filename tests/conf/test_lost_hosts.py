"""The warnings about lost hosts: when they appear, when not, and that the advised settings reach both kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.core import checks
from django.db import connections

from sqlqueue_app import checks as lost_hosts
from sqlqueue_app.dialects.postgresql import options_for, seconds_until_given_up
from tests.support.databases import QueueDatabase
from tests.support.postgresql import ThrowAwayServer
from tests.support.provisioning import point

ADVISED = options_for()


@pytest.fixture
def elsewhere(postgresql_database: QueueDatabase) -> Iterator[QueueDatabase]:
    """Point the alias of the queues at another host, which is never contacted."""
    alias = postgresql_database.alias
    before = {name: connections.settings[alias][name] for name in ("HOST", "OPTIONS")}
    point(alias, HOST="db.example.com")
    yield postgresql_database
    point(alias, **before)


def warning_ids() -> list[str]:
    return [str(each.id) for each in checks.run_checks(tags=["sqlqueue"])]


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ({}, ["sqlqueue.W006"]),
        ({"sslmode": "require", "connect_timeout": 5}, ["sqlqueue.W006"]),
        (ADVISED, []),
        (options_for(60), []),
        (options_for(600), ["sqlqueue.W006"]),
        ({**ADVISED, "keepalives": 0}, ["sqlqueue.W006"]),
        ({**ADVISED, "tcp_user_timeout": 0}, ["sqlqueue.W006"]),
        ({"tcp_user_timeout": "10000"}, ["sqlqueue.W006"]),
        ({"tcp_user_timeout": "10000", "keepalives_idle": "30", "keepalives_interval": "10", "keepalives_count": "3"}, []),
        ({"tcp_user_timeout": "ten"}, ["sqlqueue.W006"]),
        ({"service": "shop"}, []),
    ],
)
def test_aliases_that_wait_for_a_lost_server_are_reported(
    elsewhere: QueueDatabase, options: dict[str, Any], ids: list[str]
) -> None:
    point(elsewhere.alias, OPTIONS=options)
    assert warning_ids() == ids


@pytest.mark.parametrize(
    ("host", "ids"),
    [
        *[(host, []) for host in ("", "/run/postgresql", "@sockets", "localhost", "127.0.0.1", "::1", "localhost,127.0.0.1")],
        *[(host, ["sqlqueue.W006"]) for host in ("10.0.0.1", "db", "fd00::1", "localhost,db")],
    ],
)
def test_other_hosts_are_recognised(elsewhere: QueueDatabase, host: str, ids: list[str]) -> None:
    point(elsewhere.alias, HOST=host)
    assert warning_ids() == ids


def test_hint_contains_settings_that_pass(elsewhere: QueueDatabase) -> None:
    point(elsewhere.alias, OPTIONS={})
    (found,) = checks.run_checks(tags=["sqlqueue"])
    assert all(f'"{name}": {value!r}' in str(found.hint) for name, value in ADVISED.items())


def test_sqlite_needs_no_hint(sqlite_database: QueueDatabase) -> None:
    del sqlite_database
    assert warning_ids() == []


def test_settings_of_the_server_count(
    postgresql_database: QueueDatabase, postgresql_server: ThrowAwayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connect over TCP on the loopback interface, with 127.0.0.1 declared to be another host."""
    alias = postgresql_database.alias
    before = {name: connections.settings[alias][name] for name in ("HOST", "PASSWORD", "OPTIONS")}
    monkeypatch.setattr(lost_hosts, "_is_elsewhere", lambda host: host == "127.0.0.1")

    def found() -> list[tuple[str | None, str]]:
        messages = checks.run_checks(tags=[checks.Tags.database], databases=[alias])
        return [(each.id, each.msg) for each in messages if each.id == lost_hosts.NO_BOUND_OF_SERVER]

    try:
        assert found() == [], "a socket has both ends on one machine"
        point(alias, HOST="127.0.0.1", PASSWORD=postgresql_server.password, OPTIONS={"options": "-c tcp_keepalives_idle=7200"})
        ((_, text),) = found()
        assert "only after 7" in text
        point(alias, OPTIONS=ADVISED)
        assert found() == []
        with postgresql_database.connection.cursor() as cursor:
            cursor.execute("SELECT current_setting('tcp_keepalives_idle'), current_setting('tcp_user_timeout')")
            assert cursor.fetchone() == ("5", "10000")
    finally:
        point(alias, **before)


def test_bound_is_the_measured_one() -> None:
    """benchmarks/lost_host.py measured 10.5 and 10.6 seconds; the defaults of Linux are 7200, 75 and 9."""
    names = ("keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout")
    assert seconds_until_given_up(*(ADVISED[name] for name in names)) == 11
    assert seconds_until_given_up(7200, 75, 9, 0) == 7875
    assert psycopg.conninfo.conninfo_to_dict(psycopg.conninfo.make_conninfo(**ADVISED)).keys() == ADVISED.keys()
