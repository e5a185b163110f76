"""The state of queues and instances: correct numbers, few statements, no side effects."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connections, transaction
from django.test.utils import CaptureQueriesContext

from sqlqueue_app.browsing.messages import read_page
from sqlqueue_app.conf import get_settings
from sqlqueue_app.messages.errors import ConnectionLost
from sqlqueue_app.messages.times import format_time
from sqlqueue_app.status import queues
from sqlqueue_app.status.overview import Status, read_status
from sqlqueue_app.status.queues import ProblemKind, QueueProblem, QueueStatus
from sqlqueue_app.tables.queue import Depth, forget_tables
from sqlqueue_app.tables.receive_transaction import receive_transaction
from sqlqueue_app.tables.row_selection import remove_rows
from tests.support.databases import QueueDatabase
from tests.support.filling import ENDPOINTS, count, install, instance, message, now_of, row, table
from tests.support.postgresql import ThrowAwayServer
from tests.support.waiting import join_all

PAST = -60_000
FUTURE = 3_600_000


def queue(status: Status, name: str) -> QueueStatus:
    (found,) = [each for each in status.queues if each.name == name]
    return found


def problem_of(found: QueueStatus) -> QueueProblem | None:
    """The problem of the queue, ignoring non-Unicode headers of a classic table on SQL Server."""
    problem = found.problem
    return None if problem is None or problem.kind is ProblemKind.NON_UNICODE_HEADERS else problem


def execute(database: QueueDatabase, *statements: str) -> None:
    with database.connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
    forget_tables()


def test_every_configured_queue_is_listed_with_kind_and_endpoints(queue_database: QueueDatabase) -> None:
    endpoint = {"CALLBACKS": True, "INSTANCE": "here", "CALLBACK_QUEUES": 2}
    install(
        queue_database,
        ENDPOINTS={
            "Sales": {**endpoint, "SATELLITES": {"Sales.Priority": {}}, "AUDIT_QUEUE": "audit"},
            "Billing": {"CALLBACKS": False, "AUDIT_QUEUE": "audit"},
        },
    )

    found = [(each.name, each.queue.kind.value, each.queue.endpoints) for each in read_status().queues]

    assert found == [
        ("Sales", "main", ("Sales",)),
        ("Sales.Priority", "satellite", ("Sales",)),
        ("Billing", "main", ("Billing",)),
        ("error", "error", ("Sales", "Billing")),
        ("audit", "audit", ("Sales", "Billing")),
        ("Sales.here", "callback", ("Sales",)),
        ("Sales.here-2", "callback", ("Sales",)),
    ]


def test_numbers_equal_those_of_sql(queue_database: QueueDatabase) -> None:
    install(queue_database)
    rows = [message(lifetime_ms=lifetime) for lifetime in (None, None, None, FUTURE, FUTURE, PAST)]
    table(queue_database, "Sales").send(rows)
    table(queue_database, "error").send([message()])

    status = read_status()

    for name in ("Sales", "Sales.Priority", "error", "Sales.here"):
        depth = queue(status, name).depth
        assert depth is not None
        assert depth.exact
        assert depth.waiting == count(queue_database, name)
        assert depth.expiring == count(queue_database, name, "Expires IS NOT NULL")
        assert depth.expired == count(queue_database, name, f"Expires <= {now_of(queue_database)}")
    assert queue(status, "Sales").depth is not None
    assert (queue(status, "Sales").depth.waiting, queue(status, "Sales").depth.expired) == (6, 1)  # type: ignore[union-attr]


def test_depth_beyond_the_limit_is_an_estimate(queue_database: QueueDatabase) -> None:
    install(queue_database)
    table(queue_database, "Sales").send([message(lifetime_ms=PAST if number == 11 else None) for number in range(12)])

    at_limit = queue(read_status(limit=12), "Sales").depth
    beyond = queue(read_status(limit=11), "Sales")

    assert at_limit is not None
    assert at_limit.exact
    assert beyond.depth is not None
    assert not beyond.depth.exact
    assert beyond.depth.waiting == 12
    assert beyond.expiry_exact, "the index on Expires finds the row beyond the limit"
    assert (beyond.depth.expiring, beyond.depth.expired) == (1, 1)


def test_many_queues_take_few_statements(queue_database: QueueDatabase) -> None:
    install(queue_database, ENDPOINTS={**ENDPOINTS, "Bills": {"SATELLITES": {f"Bills.{number}": {} for number in range(30)}}})
    instance()
    table(queue_database, "Sales").send([message() for _ in range(12)])

    with CaptureQueriesContext(queue_database.connection) as first:
        read_status()
    with CaptureQueriesContext(queue_database.connection) as long:
        read_status(limit=5)

    # One finds the tables, one reads all queues, two read the instances and their queues, one each reads the delayed tables and
    # the schedules.
    assert len(first) == 1 + 1 + 2 + 1 + 1
    assert len(long) == len(first) + 1, "one more for the expiries of long queues"


def test_long_queues_lower_the_limit_for_exact_counts(queue_database: QueueDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    install(queue_database)
    names = ("Sales", "Sales.Priority", "error")
    for name in names:
        table(queue_database, name).send([message() for _ in range(12)])
    assert {queue(read_status(), name).depth for name in names} == {Depth(12, 0, 0, exact=True)}
    monkeypatch.setattr(queues, "MAX_COUNTED", 30)
    monkeypatch.setattr(queues, "_MIN_LIMIT", 1)
    assert {queue(read_status(), name).depth for name in names} == {Depth(12, 0, 0, exact=False)}


def test_only_long_queue_among_many_is_counted_exactly(queue_database: QueueDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row versions of an error queue have gaps, where messages were retried: an estimate is the range."""
    install(queue_database)
    errors = table(queue_database, "error")
    errors.send([message() for _ in range(40)])
    remove_rows(errors, errors.row_versions(40)[4:30])
    monkeypatch.setattr(queues, "MAX_COUNTED", 30)
    monkeypatch.setattr(queues, "_MIN_LIMIT", 1)
    assert queue(read_status(), "error").depth == Depth(14, 0, 0, exact=True)


@pytest.mark.parametrize(
    ("headers", "seconds", "header", "unknown"),
    [
        ({"NServiceBus.TimeSent": -90}, 90, "NServiceBus.TimeSent", None),
        ({"NServiceBus.TimeSent": -90, "NServiceBus.DeliverAt": -30}, 30, "NServiceBus.DeliverAt", None),
        ({"NServiceBus.TimeSent": 45}, -45, "NServiceBus.TimeSent", None),
        ({}, None, None, "its headers hold no time"),
        ({"NServiceBus.TimeSent": "yesterday"}, None, "NServiceBus.TimeSent", "its time cannot be read"),
        ("null", None, None, "its headers cannot be read"),
        ('{"a": [', None, None, "its headers cannot be read"),
    ],
)
def test_head_age_comes_from_its_headers(
    sqlite_database: QueueDatabase, headers: object, seconds: int | None, header: str | None, unknown: str | None
) -> None:
    now = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
    install(sqlite_database)
    if isinstance(headers, dict):
        texts = {
            name: format_time(now + timedelta(seconds=value)) if isinstance(value, int) else value
            for name, value in headers.items()
        }
        table(sqlite_database, "Sales").send([row(texts), message()])
    else:
        table(sqlite_database, "Sales").send([row(str(headers)), message()])

    age = queue(read_status(now=lambda: now), "Sales").head_age

    assert age is not None
    assert age.age == (None if seconds is None else timedelta(seconds=seconds))
    assert age.header == header
    assert (age.unknown.value if age.unknown else None) == unknown


def test_empty_queue_has_no_head(queue_database: QueueDatabase) -> None:
    install(queue_database)

    assert queue(read_status(), "Sales").head_age is None


def test_missing_and_foreign_tables_are_reported_for_their_queues(queue_database: QueueDatabase) -> None:
    install(queue_database)
    table(queue_database, "Sales").send([message()])
    error = table(queue_database, "error").qualified
    execute(
        queue_database,
        f"DROP TABLE {table(queue_database, 'Sales.Priority').qualified}",
        f"DROP TABLE {error}",
        f"CREATE TABLE {error} (a int)",
    )

    status = read_status()

    missing, foreign = queue(status, "Sales.Priority"), queue(status, "error")
    assert missing.exists is False
    assert missing.problem is not None
    assert missing.problem.kind is ProblemKind.MISSING
    assert missing.problem.command == "python manage.py sqlqueue_install"
    assert foreign.exists is True
    assert foreign.problem is not None
    assert foreign.problem.kind is ProblemKind.MISMATCH
    depth = queue(status, "Sales").depth
    assert depth is not None
    assert depth.waiting == 1
    # PostgreSQL runs all at once; its statements include a function whose lines also end with semicolons.
    whole = [missing.problem.sql] if queue_database.vendor == "postgresql" else missing.problem.sql.split(";\n")
    execute(queue_database, *[statement for statement in whole if statement.strip("; \n")])
    mended = queue(read_status(), "Sales.Priority")
    assert (problem_of(mended), mended.exists) == (None, True)


def test_missing_table_leaves_the_transaction_of_the_caller_usable(queue_database: QueueDatabase) -> None:
    install(queue_database)
    table(queue_database, "Sales").send([message()])
    read_status()
    # The columns are still cached, so the count meets the missing table.
    with queue_database.connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE {table(queue_database, 'Sales.Priority').qualified}")

    with transaction.atomic(using=queue_database.alias):
        status = read_status()
        table(queue_database, "Sales").send([message()])

    assert queue(status, "Sales.Priority").exists is False
    assert count(queue_database, "Sales") == 2


def test_missing_index_is_reported_with_the_sql_to_create_it(postgresql_database: QueueDatabase) -> None:
    install(postgresql_database)
    execute(postgresql_database, 'DROP INDEX "Sales_Expires"')

    problem = queue(read_status(), "Sales").problem

    assert problem is not None
    assert problem.kind is ProblemKind.NO_EXPIRES_INDEX
    assert not problem.stops_work
    with postgresql_database.connection.cursor() as cursor:
        cursor.execute(problem.sql)
    # The cached columns are unchanged; the database is queried again and the problem is gone.
    assert queue(read_status(), "Sales").problem is None


def test_instances_are_alive_until_four_heartbeats_are_missed(queue_database: QueueDatabase) -> None:
    install(queue_database)
    instance()
    instance(name="there", host="there", callback_queue="Sales.there", silent=timedelta(seconds=41))
    table(queue_database, "Sales.here").send([message(), message()])

    status = read_status()

    here, there = sorted(status.instances, key=lambda each: each.name)
    assert (here.alive, there.alive) == (True, False)
    assert here.heartbeat_age < timedelta(seconds=30)
    assert timedelta(seconds=40) < there.heartbeat_age < timedelta(seconds=70)
    assert here.threads == {"Sales": 3, "Sales.here": 1}
    assert here.live_threads == 4
    depth = status.depth_of_callback(here)
    assert depth is not None
    assert depth.waiting == 2
    # it has no callback queue, which is no problem
    assert "Sales.there" not in [each.name for each in status.queues]


def test_reading_status_neither_waits_for_nor_disturbs_a_receive(queue_database: QueueDatabase) -> None:
    install(queue_database)
    table(queue_database, "Sales").send([message()])
    received, checked = threading.Event(), threading.Event()
    seen: list[object] = []

    def receive() -> None:
        try:
            receiving = receive_transaction(table(queue_database, "Sales"))
            seen.append(receiving.receive())
            received.set()
            assert checked.wait(60)
            receiving.commit()
        finally:
            received.set()
            connections.close_all()

    thread = threading.Thread(target=receive)
    thread.start()
    assert received.wait(60)
    status = read_status()
    page = read_page(table(queue_database, "Sales"))
    checked.set()
    join_all([thread])

    assert seen[0] is not None
    assert problem_of(queue(status, "Sales")) is None
    # SQL Server skips the locked row; the others show its state before the receive.
    assert len(page.messages) == (0 if queue_database.vendor == "sqlserver" else 1)
    assert count(queue_database, "Sales") == 0


def test_open_status_transaction_does_not_block_a_receive(postgresql_database: QueueDatabase) -> None:
    """The status is read in a transaction that is still open."""
    install(postgresql_database)
    table(postgresql_database, "Sales").send([message()])
    seen: list[object] = []

    def receive() -> None:
        try:
            receiving = receive_transaction(table(postgresql_database, "Sales"))
            seen.append(receiving.receive())
            receiving.commit()
        finally:
            connections.close_all()

    with transaction.atomic(using=postgresql_database.alias):
        read_status()
        read_page(table(postgresql_database, "Sales"))
        thread = threading.Thread(target=receive)
        thread.start()
        thread.join(60)
        assert seen, "the receive waited for the status transaction"

    assert count(postgresql_database, "Sales") == 0


def test_unavailable_database_is_an_error(postgresql_server: ThrowAwayServer, postgresql_database: QueueDatabase) -> None:
    install(postgresql_database)
    read_status()
    postgresql_server.stop()
    try:
        with pytest.raises(ConnectionLost):
            read_status()
    finally:
        postgresql_server.start()
        connections.close_all()


def test_queues_of_one_name_in_two_schemas_are_distinguished(postgresql_database: QueueDatabase) -> None:
    with postgresql_database.connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA ops")
    install(
        postgresql_database,
        ENDPOINTS={"Sales": {"CALLBACKS": False}, "Billing": {"CALLBACKS": False, "ERROR_QUEUE": '"ops"."error"'}},
    )

    names = [each.name for each in read_status(get_settings()).queues]

    assert names == ["Sales", "Billing", "error", '"ops"."error"']
