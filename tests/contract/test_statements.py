"""What a message costs the database: round trips on PostgreSQL, statements on SQLite.

The table in docs/internals/performance.md#statements has the same numbers, which this test reads. Those of SQL Server are counted
on the line, in test_round_trips.py.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db.backends.signals import connection_created

from sqlqueue_app import handles
from tests.support.bench import MODES, Bench, Calls, write_instance
from tests.support.filling import subscribe
from tests.support.provisioning import point

PAGE = Path(__file__).parents[2] / "docs/internals/performance.md"
MESSAGES = 12
STEADY = slice(4, MESSAGES - 2)
"""The messages between the first, which fill caches, and the last, behind which the queue is empty."""


class Sent:
    """Counts what each thread sends to the database."""

    def __init__(self) -> None:
        self._by_thread: Counter[int] = Counter()

    def watch(self, connection: Any, **_: object) -> None:
        """Watch a new connection of Django."""
        if connection.vendor == "sqlite":
            connection.connection.set_trace_callback(lambda _text: self._add())
        elif connection.vendor == "postgresql":
            connection.connection.add_notice_handler(lambda notice: self._note(notice.message_primary or ""))

    def _note(self, text: str) -> None:
        # The server reports several statements in one string once.
        if text.startswith(("statement: ", "execute ")):
            self._add()

    def _add(self) -> None:
        self._by_thread[threading.get_ident()] += 1

    def of_this_thread(self) -> int:
        return self._by_thread[threading.get_ident()]


@pytest.fixture
def sent(bench: Bench) -> Iterator[Sent]:
    if bench.database.vendor == "postgresql":
        options = dict(bench.database.connection.settings_dict["OPTIONS"])
        point(bench.database.alias, OPTIONS={**options, "options": "-c log_statement=all -c client_min_messages=log"})
    counted = Sent()
    connection_created.connect(counted.watch)
    yield counted
    connection_created.disconnect(counted.watch)
    if bench.database.vendor == "postgresql":
        point(bench.database.alias, OPTIONS=options)


def nothing(bench: Bench, context: Any) -> None:
    pass


def row(bench: Bench, context: Any) -> None:
    write_instance(bench, context.message_id)


def send(bench: Bench, context: Any) -> None:
    context.send("Test.Other", {})


def publish(bench: Bench, context: Any) -> None:
    context.publish("Test.Event", {})


def delayed(bench: Bench, context: Any) -> None:
    context.send("Test.Other", {}, delay=60)


WORK: dict[str, Callable[[Bench, Any], None]] = {
    "does nothing": nothing, "writes a row": row, "sends a message": send, "publishes to two": publish,
    "sends a delayed one": delayed,
}  # fmt: skip


def numbers_of_the_page() -> dict[tuple[str, str, str], int]:
    """The table of the page: the number of statements by what the handler does, the database and the mode."""
    section = PAGE.read_text(encoding="utf-8").partition("## Statements")[2].partition("\n## ")[0]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("|")]
    head, _, *table = lines
    columns = [re.fullmatch(r"(PostgreSQL|SQLite), `(\w+)`", name) for name in head[1:]]
    return {
        (line[0], column[1].lower(), column[2]): int(cell)
        for line in table
        for column, cell in zip(columns, line[1:], strict=True)
        if column is not None
    }


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("work", WORK)
def test_message_takes_the_documented_number_of_statements(bench: Bench, calls: Calls, sent: Sent, work: str, mode: str) -> None:
    if bench.database.vendor == "sqlserver":
        pytest.skip("its round trips are counted on the line")
    bench.configure(routes={"Test.Other": "Other"}, TRANSACTION_MODE=mode, MAX_CONCURRENCY=1)
    bench.install_queues("Other", "First", "Second")
    for name in ("First", "Second"):
        subscribe(bench.database, name, "Test.Event")

    @handles("Test.Message")
    def handle(message: Any, context: Any) -> None:
        calls.add(sent.of_this_thread())
        WORK[work](bench, context)

    for number in range(MESSAGES):
        bench.put_message_of(number, "Test.Message")
    bench.run()
    counts = calls.seen
    assert len(counts) == MESSAGES
    each = {after - before for before, after in zip(counts[STEADY], counts[STEADY][1:], strict=False)}
    assert each == {numbers_of_the_page()[work, bench.database.vendor, mode]}
