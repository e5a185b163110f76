"""The database fixtures: each test gets a clean database, and leftovers are detected."""

from __future__ import annotations

import subprocess
import sys
import threading

import psycopg
import pytest
from django.db import connections, transaction
from django.db.utils import DatabaseError
from pytest_django import DjangoDbBlocker, Settings

from tests.support import databases, leaks
from tests.support.databases import DatabaseSession, QueueDatabase, open_database
from tests.support.postgresql import ThrowAwayServer
from tests.support.waiting import join_all, poll_until, poll_until_zero


@pytest.mark.parametrize("turn", [1, 2])
def test_each_test_finds_a_clean_database(queue_database: QueueDatabase, turn: int) -> None:
    with queue_database.connection.cursor() as cursor:
        cursor.execute("CREATE TABLE left_over (id int)")
        cursor.execute("SELECT count(*) FROM left_over")
        assert cursor.fetchone() == (0,)
        cursor.execute("INSERT INTO left_over VALUES (1)")


def test_the_managed_tables_are_there(queue_database: QueueDatabase) -> None:
    assert "django_migrations" in queue_database.connection.introspection.table_names()


def test_other_threads_see_the_tests_rows(queue_database: QueueDatabase) -> None:
    with queue_database.connection.cursor() as cursor:
        cursor.execute("CREATE TABLE seen (id int)")
    found: list[object] = []

    def read() -> None:
        with queue_database.connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM seen")
            found.append(cursor.fetchone())
        connections.close_all()

    thread = threading.Thread(target=read)
    thread.start()
    join_all([thread])

    assert found == [(0,)]


def test_child_processes_see_the_tests_rows(queue_database: QueueDatabase) -> None:
    with queue_database.connection.cursor() as cursor:
        cursor.execute("CREATE TABLE seen (id int)")
    queue_database.configure(SEND_AS="Web")
    program = (
        "import django; django.setup()\n"
        "from django.conf import settings\n"
        "from django.db import connections\n"
        "alias = settings.SQLQUEUE['DATABASE']\n"
        "print(alias, settings.SQLQUEUE['SEND_AS'], 'seen' in connections[alias].introspection.table_names())"
    )

    answer = subprocess.run(
        [sys.executable, "-c", program],
        env=queue_database.child_environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )

    assert answer.stdout.split() == [queue_database.alias, "Web", "True"]


def test_the_setting_names_the_database(queue_database: QueueDatabase) -> None:
    assert queue_database.settings.SQLQUEUE["DATABASE"] == queue_database.alias


def test_roles_log_in_with_the_rights_they_were_given(postgresql_database: QueueDatabase) -> None:
    with postgresql_database.connection.cursor() as cursor:
        cursor.execute("CREATE TABLE secret (id int)")
    role = postgresql_database.create_role("reader")

    with postgresql_database.as_role(role), postgresql_database.connection.cursor() as cursor:
        cursor.execute("SELECT current_user")
        assert cursor.fetchone() == (role,)
        with pytest.raises(DatabaseError):
            cursor.execute("SELECT * FROM secret")


@pytest.mark.parametrize("vendor", ["sqlite", "postgresql"])
def test_a_failure_of_the_fixture_itself_leaves_nothing_for_the_next_test(
    database_session: DatabaseSession,
    settings: Settings,
    django_db_blocker: DjangoDbBlocker,
    monkeypatch: pytest.MonkeyPatch,
    vendor: str,
) -> None:
    kept = connections.settings["default"]["NAME"]
    with monkeypatch.context() as broken:
        broken.setattr(databases, "configured", dict)
        with pytest.raises(KeyError), open_database(vendor, database_session, settings, django_db_blocker):
            pass
    assert connections.settings["default"]["NAME"] == kept

    with open_database(vendor, database_session, settings, django_db_blocker) as database, database.connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM django_migrations")


def test_a_session_left_open_is_found(postgresql_database: QueueDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    provider = postgresql_database._postgresql()
    monkeypatch.setattr(provider, "seconds_to_vanish", 0.1)
    forgotten = provider.server.connect(provider.database)

    left = provider.discard()

    assert len(left) == 1
    assert "still open" in left[0]
    with pytest.raises(psycopg.OperationalError):
        forgotten.execute("SELECT 1")
    forgotten.close()


def test_a_prepared_transaction_left_over_is_found(postgresql_database: QueueDatabase) -> None:
    with postgresql_database.connection.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("CREATE TABLE half (id int)")
        cursor.execute("PREPARE TRANSACTION 'forgotten'")

    assert postgresql_database._postgresql().discard() == ["a prepared transaction was left: 'forgotten'"]


def test_a_file_left_open_is_found(sqlite_database: QueueDatabase) -> None:
    stop = threading.Event()
    opened = threading.Event()

    def forget() -> None:
        with sqlite_database.connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        opened.set()
        stop.wait(60)
        connections.close_all()

    thread = threading.Thread(target=forget)
    thread.start()
    assert opened.wait(60)
    try:
        assert "still open" in sqlite_database.provider.discard()[0]
    finally:
        stop.set()
        join_all([thread])


def test_a_transaction_left_open_is_found(queue_database: QueueDatabase) -> None:
    with transaction.atomic(using=queue_database.alias), queue_database.connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        assert leaks.open_transactions() == [f"a transaction is still open on {queue_database.alias!r}"]

    assert leaks.open_transactions() == []


@pytest.mark.parametrize(
    ("name", "daemon", "found"),
    [("anyone", False, True), ("anyone", True, False), ("sqlqueue-Sales-receive-1", True, True)],
)
def test_a_thread_left_running_is_found(name: str, daemon: bool, found: bool) -> None:
    before = set(threading.enumerate())
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, args=[60], name=name, daemon=daemon)
    thread.start()

    left = leaks.running_threads(before)
    stop.set()
    join_all([thread])

    assert left == ([f"a thread is still running: {name}"] if found else [])
    assert leaks.running_threads(before) == []


def test_a_server_can_be_stopped_and_started(postgresql_database: QueueDatabase, postgresql_server: ThrowAwayServer) -> None:
    with postgresql_database.connection.cursor() as cursor:
        cursor.execute("CREATE TABLE kept (id int)")
    postgresql_server.stop()
    with pytest.raises(DatabaseError), postgresql_database.connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    postgresql_database.connection.close()

    postgresql_server.start()

    assert "kept" in postgresql_database.connection.introspection.table_names()


def test_poll_until_gives_the_first_true_answer() -> None:
    answers = iter([0, "", 42])
    assert poll_until(lambda: next(answers), 5) == 42


def test_poll_until_names_the_expected_event() -> None:
    with pytest.raises(AssertionError, match="not within 0 s: the queue to be empty"):
        poll_until(lambda: False, 0, what="the queue to be empty")


def test_poll_until_zero_waits_as_long_as_the_number_falls() -> None:
    answers = iter([3, 2, 5, 1, 0])
    poll_until_zero(lambda: next(answers), 5, what="messages")
    assert list(answers) == []

    with pytest.raises(AssertionError, match=r"no fewer than 2 for 0 s: messages \(last answer 3\)"):
        poll_until_zero(iter([4, 2, 3]).__next__, 0, what="messages")


@pytest.mark.django_db
def test_pytest_djangos_own_mark_works_on_the_default_database() -> None:
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT count(*) FROM django_migrations")
        assert cursor.fetchone()[0] > 0
