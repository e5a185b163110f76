"""Checks for hosts that vanish without a word: how long rows stay with a lost worker, and a worker waits for a lost server."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any, Final

from django.core import checks
from django.db import Error as DjangoDatabaseError
from django.db import connections

from sqlqueue_app.checks.settings import TAG, usable_settings
from sqlqueue_app.conf import dialect_of
from sqlqueue_app.databases.dialect import dialect
from sqlqueue_app.databases.lost_hosts import options_for, seconds_until_given_up
from sqlqueue_app.messages.errors import ConfigurationError, DatabaseError
from sqlqueue_app.tables.connections import connection_of, fetch_all

NO_BOUND_OF_WORKER: Final = "sqlqueue.W006"
NO_BOUND_OF_SERVER: Final = "sqlqueue.W036"
LONGEST_SECONDS: Final = 120
"""Who is given up later than this is reported."""


def register() -> None:
    """Register the checks of this module."""
    checks.register(check_worker_side, TAG)
    checks.register(check_server_side, checks.Tags.database)


def check_worker_side(**_: Any) -> list[checks.CheckMessage]:
    """Warn where a worker would wait for minutes or hours for a PostgreSQL whose host has vanished; touches no database."""
    alias = _alias_on_postgresql()
    if alias is None:
        return []
    entry = connections.settings[alias]
    options = entry.get("OPTIONS", {})
    # A service file may say it all.
    if not _is_elsewhere(str(entry.get("HOST") or "")) or "service" in options or _gives_up_in_time(options):
        return []
    message = (
        f'DATABASES["{alias}"]["OPTIONS"] has no bound for a server whose host vanishes: by the defaults of Linux a worker '
        "waits for 15 minutes, and for two hours where it has nothing to send"
    )
    return [checks.Warning(message, hint=_hint(alias), id=NO_BOUND_OF_WORKER)]


def check_server_side(databases: Sequence[str] | None = None, **_: Any) -> list[checks.CheckMessage]:
    """Warn where PostgreSQL would keep the rows of a worker whose host has vanished for minutes or hours.

    Looks only if the alias of the queues is among `databases`; one that cannot be reached is reported by the check of the tables.
    """
    alias = _alias_on_postgresql()
    if alias is None or alias not in (databases or ()):
        return []
    try:
        (row,) = fetch_all(connection_of(alias), dialect(dialect_of(alias)).statement("server_keepalives"))
    except (DatabaseError, DjangoDatabaseError):
        return []  # check_tables reports it
    client, *kernel = row
    if not _is_elsewhere(client or "") or (seconds := seconds_until_given_up(*kernel)) <= LONGEST_SECONDS:
        return []
    message = (
        f"the server of the database {alias!r} gives up a worker whose host vanishes only after {seconds:.0f} s: "
        "so long its rows stay locked, and nobody else receives those messages"
    )
    return [checks.Warning(message, hint=_hint(alias), id=NO_BOUND_OF_SERVER)]


def _alias_on_postgresql() -> str | None:
    """The alias of the queues if that is on PostgreSQL and the settings are right."""
    settings = usable_settings()
    if settings is None:
        return None
    try:
        return settings.database if dialect_of(settings.database) == "postgresql" else None
    except ConfigurationError:
        return None


def _is_elsewhere(host: str) -> bool:
    """Whether one of the hosts of a setting is another machine; a socket and the loopback interface end with this one."""
    return any(_is_other(each.strip()) for each in host.split(","))


def _is_other(host: str) -> bool:
    if not host or host.startswith(("/", "@")) or host == "localhost":
        return False
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return True


def _gives_up_in_time(options: Mapping[str, Any]) -> bool:
    try:
        user_timeout = int(options.get("tcp_user_timeout") or 0)
        idle, interval, count = (int(options.get(f"keepalives_{name}") or 0) for name in ("idle", "interval", "count"))
        is_on = bool(int(options.get("keepalives", 1)))
    except (TypeError, ValueError):
        return False  # libpq says what is wrong
    # The user timeout alone bounds a worker that waits for an acknowledgement, keepalives one that waits for an answer.
    bound = seconds_until_given_up(idle, interval, count, user_timeout)
    return is_on and user_timeout > 0 and idle > 0 and bound <= LONGEST_SECONDS


def _hint(alias: str) -> str:
    wanted = ", ".join(f'"{name}": {value!r}' for name, value in options_for().items())
    return f'for a bound of about ten seconds on both sides add to DATABASES["{alias}"]["OPTIONS"]: {wanted}'
