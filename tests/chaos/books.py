"""Accounting by id: each message of a committed transaction was handled once or is in the error queue, and there are no others."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from django.db import connections, transaction

from sqlqueue_app.conf import get_settings
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.headers import read_headers
from sqlqueue_app.tables.delayed import DelayedTable
from sqlqueue_app.tables.installation import delayed_address
from tests.chaos.load import ENDPOINTS
from tests.support.bench import Bench
from tests.support.waiting import poll_until

_PORTION = 1_000
UUID_LENGTH = 36


@dataclass
class Account:
    """The outcome of the units of work. A unit is an effect that a message must have once, named by its id."""

    sent: dict[str, str]
    """Message id → way, for committed transactions only."""
    handled: int = 0
    in_error_queue: int = 0
    failed: frozenset[str] = frozenset()
    """The units in the error queue."""
    why_failed: Counter[str] = field(default_factory=Counter)
    """Way and kind of error of the messages in the error queue; the second message of a chain has the way of the first."""
    lost: list[str] = field(default_factory=list)
    """Neither an effect nor in the error queue."""
    twice: list[str] = field(default_factory=list)
    """More than one effect, an effect and a row in the error queue, or more than one row there."""
    strangers: list[str] = field(default_factory=list)
    """Effects or failed messages that were never sent because their transaction was rolled back."""
    wrongly_handled: list[str] = field(default_factory=list)
    """Messages that were handled although their handler always fails."""
    waiting: int = 0
    """Rows that are still in a queue or in a delayed table."""

    @property
    def faults(self) -> dict[str, list[str]]:
        """All violations by kind; empty if there are none."""
        found = {"lost": self.lost, "twice": self.twice, "strangers": self.strangers, "wrongly handled": self.wrongly_handled}
        return {name: units for name, units in found.items() if units}


def account(bench: Bench) -> Account:
    """Compare the sent messages with their outcomes; call it when no message is in progress."""
    alias = bench.database.alias
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT id, way FROM sent")
        found = Account({str(name): str(way) for name, way in cursor.fetchall()})
        cursor.execute("SELECT id FROM effects")
        effects = Counter(str(name) for (name,) in cursor.fetchall())
    errors = failed_units(bench)
    failed = Counter(unit for unit, _ in errors)
    expected = {unit for name, way in found.sent.items() for unit in units_of(name, way)}
    # The first message of a chain sends the second, if it is handled.
    expected -= {f"{name}/chain" for name, way in found.sent.items() if way == "chain" and name in failed}
    ends = effects + failed
    found.handled, found.in_error_queue = sum(effects.values()), sum(failed.values())
    found.failed = frozenset(failed)
    found.why_failed = Counter(f"{found.sent.get(unit[:UUID_LENGTH], '?')}, {why}" for unit, why in errors)
    found.lost = sorted(expected - set(ends))
    found.twice = sorted(unit for unit, count in ends.items() if count > 1)
    found.strangers = sorted(set(ends) - expected)
    found.wrongly_handled = sorted(name for name, way in found.sent.items() if way == "never" and name in effects)
    found.waiting = waiting(bench)
    return found


def units_of(name: str, way: str) -> list[str]:
    """The expected effects of a message."""
    if way == "event":
        return [f"{name}@{endpoint}" for endpoint in ENDPOINTS]
    return [name, f"{name}/chain"] if way == "chain" else [name]


def failed_units(bench: Bench) -> list[tuple[str, str]]:
    """The units of the messages in the error queue, each with the kind of its error."""
    table, after = bench.table("error"), -1
    found: list[tuple[str, str]] = []
    while rows := table.peek(_PORTION, after=after, body_limit=10_000):
        for row in rows:
            headers = read_headers(row.headers)
            why = str(headers[names.EXCEPTION_TYPE]).rpartition(".")[2]
            found.append((_unit_of(json.loads(row.body or b""), headers), why))
        after = rows[-1].row_version
    return found


def _unit_of(body: dict[str, Any], headers: dict[str, Any]) -> str:
    if headers[names.MESSAGE_INTENT] == "Publish":
        return f"{body['id']}@{headers[names.PROCESSING_ENDPOINT]}"
    return str(body["id"])


def waiting(bench: Bench) -> int:
    """The number of messages in the queues and delayed tables of all endpoints at one moment."""
    alias, book = bench.database.alias, get_settings().address_book(bench.database.vendor)
    # One snapshot: between two counts, a message may move from the table counted second to the one counted first.
    with transaction.atomic(using=alias):
        if bench.database.vendor == "postgresql":
            with connections[alias].cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        delayed = [DelayedTable(alias, delayed_address(book, name)) for name in (*ENDPOINTS, "Web")]
        return sum(bench.table(name).depth().waiting for name in ENDPOINTS) + sum(each.count(1_000_000)[0] for each in delayed)


def handled_more(bench: Bench, messages: int) -> None:
    """Wait until this many more messages are handled."""

    def handled() -> int:
        with bench.database.connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM effects")
            return int(cursor.fetchone()[0])

    before = handled()
    poll_until(lambda: handled() >= before + messages, what=f"{messages} more handled messages")


def assert_accounted(bench: Bench) -> Account:
    """Assert that nothing is in progress, lost or done twice."""
    found = account(bench)
    assert found.waiting == 0
    assert found.faults == {}
    return found


def assert_no_lock(bench: Bench) -> None:
    """Assert that no lock and no prepared transaction is left in the database."""
    with bench.database.connection.cursor() as cursor:
        if bench.database.vendor == "sqlite":
            # Take the only write lock. A process that was just killed may take a moment to end.
            cursor.execute("BEGIN IMMEDIATE")
            cursor.execute("ROLLBACK")
        elif bench.database.vendor == "postgresql":
            cursor.execute(
                "SELECT locktype, relation::regclass::text, mode, pid FROM pg_locks WHERE pid IS DISTINCT FROM pg_backend_pid()"
                " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
            )
            assert cursor.fetchall() == []
            cursor.execute("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")
            assert cursor.fetchall() == []
