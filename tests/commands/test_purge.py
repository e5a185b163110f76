"""`sqlqueue_purge` deletes what was requested, and nothing by accident."""

from __future__ import annotations

import io
import json
import sys

import pytest
from django.core.management import CommandError, call_command

from sqlqueue_app.browsing.messages import purge_expired
from tests.commands.running import refused, run, run_on_terminal
from tests.support.databases import QueueDatabase
from tests.support.filling import count, install, message, table


def purge(*arguments: str) -> str:
    out = io.StringIO()
    call_command("sqlqueue_purge", *arguments, stdout=out)
    return out.getvalue()


@pytest.fixture
def filled(queue_database: QueueDatabase) -> QueueDatabase:
    install(queue_database)
    table(queue_database, "Sales").send([message(lifetime_ms=each) for each in (None, None, 3_600_000, -60_000, -60_000)])
    table(queue_database, "error").send([message()])
    return queue_database


def test_queue_is_purged_and_counted(filled: QueueDatabase) -> None:
    assert purge("Sales", "--yes").startswith("deleted 5 messages from ")
    assert (count(filled, "Sales"), count(filled, "error")) == (0, 1)


def test_only_expired_messages_are_purged(filled: QueueDatabase) -> None:
    found = json.loads(purge("Sales", "--expired", "--yes", "--format", "json"))

    assert found == {"queue": "Sales", "table": table(filled, "Sales").qualified, "expired_only": True, "deleted": 2}
    assert count(filled, "Sales") == 3


def test_expired_messages_are_purged_in_batches(queue_database: QueueDatabase) -> None:
    install(queue_database)
    table(queue_database, "Sales").send([message(lifetime_ms=-60_000) for _ in range(25)])
    progress: list[int] = []

    assert purge_expired(table(queue_database, "Sales"), batch=10, progress=progress.append) == 25
    assert progress == [10, 20, 25]


def test_progress_has_a_line_of_its_own(sqlite_database: QueueDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    install(sqlite_database)
    table(sqlite_database, "Sales").send([message(lifetime_ms=-60_000)])
    shown = io.StringIO()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)

    call_command("sqlqueue_purge", "Sales", "--expired", "--yes", stdout=shown, stderr=shown)

    assert shown.getvalue() == '\r1 expired message deleted\ndeleted 1 expired message from "Sales"\n'


def test_command_refuses_without_a_terminal(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    table(sqlite_database, "Sales").send([message()])

    assert "--yes" in refused(run(sqlite_database, "sqlqueue_purge", "Sales", stdin=b"Sales\n"))
    assert count(sqlite_database, "Sales") == 1


@pytest.mark.parametrize(("typed", "code", "left"), [("Sales", 0, 0), ("sales", 2, 1), ("y", 2, 1), ("", 2, 1)])
def test_terminal_prompts_for_the_name(sqlite_database: QueueDatabase, typed: str, code: int, left: int) -> None:
    install(sqlite_database)
    table(sqlite_database, "Sales").send([message()])
    ran = run_on_terminal(sqlite_database, "sqlqueue_purge", "Sales", typed=typed)

    assert ran.code == code
    assert "Type the name of the queue (Sales)" in ran.err
    assert count(sqlite_database, "Sales") == left


@pytest.mark.parametrize("name", ["accounts", "Sales.Delayed", "SubscriptionRouting", "sqlqueue_app_instance"])
def test_other_table_keeps_its_rows(queue_database: QueueDatabase, name: str) -> None:
    install(queue_database)
    with queue_database.connection.cursor() as cursor:
        cursor.execute("CREATE TABLE accounts (id int, headers varchar(10), body varchar(10))")
        cursor.execute("INSERT INTO accounts (id) VALUES (1)")

    with pytest.raises(CommandError, match=r"is not a queue table|there is no queue") as refusal:
        purge(name, "--yes")

    assert refusal.value.returncode == 2
    with queue_database.connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM accounts")
        assert cursor.fetchone()[0] == 1


def test_an_unknown_queue_is_one_line(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)

    assert "did you mean 'error'?" in refused(run(sqlite_database, "sqlqueue_purge", "eror", "--yes"))
