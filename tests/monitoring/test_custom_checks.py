"""Checks of a project run once for the whole cluster at their own interval and may return or raise anything."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connections, transaction

from sqlqueue_app import health_check
from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard.history import text_of_event
from sqlqueue_app.health_checks import HealthCheck, registry
from sqlqueue_app.messages.errors import ConfigurationError, DatabaseError
from sqlqueue_app.models import CheckResult, Event
from sqlqueue_app.monitoring.check_results import MAX_TEXT_LENGTH, ProjectChecks, custom_check_jobs, run_check
from sqlqueue_app.monitoring.health import Level, read_health
from sqlqueue_app.monitoring.metrics import read_metrics
from sqlqueue_app.tables.connections import ConnectionPool
from tests.support.databases import QueueDatabase
from tests.support.filling import install, instance
from tests.support.waiting import run_in_threads

START = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
Register = Callable[..., None]


class Answering:
    """A check with an answer set by the test; counts its calls."""

    def __init__(self) -> None:
        self.answer: Any = None
        self.calls = 0

    def __call__(self) -> Any:
        self.calls += 1
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


def watching(database: QueueDatabase, *checks: HealthCheck) -> tuple[ProjectChecks, list[datetime]]:
    install(database)
    clock = [START]
    return ProjectChecks(checks, now=lambda: clock[0]), clock


def recorded_events() -> list[tuple[str, str]]:
    return [(each.kind, text_of_event(each)) for each in Event.objects.order_by("id")]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("no answer", "no answer"),
        (ValueError("odd"), "ValueError: odd"),
        (SystemExit(3), "SystemExit: 3"),
        ("a\0b\ud800", "a\0b\ud800"),
        (True, "Answering has returned True: expected None if all is well, otherwise a text that describes the problem"),
        ("x" * 9_999, "x" * MAX_TEXT_LENGTH),
    ],
)
def test_answer_of_a_check_is_its_result(queue_database: QueueDatabase, answer: object, text: str) -> None:
    check = Answering()
    checks, clock = watching(queue_database, HealthCheck("gateway", 60, check))
    assert checks.run_due() == ["gateway"]
    row = CheckResult.objects.get()
    assert (row.name, row.subject, row.failing, row.every_seconds) == ("gateway", "", False, 60)
    check.answer = answer
    clock[0] += MINUTE
    assert checks.run_due() == ["gateway"]

    row = CheckResult.objects.get()
    assert row.failing
    assert row.details["text"].endswith(text)
    assert (row.since, row.checked_at) == (START + MINUTE, START + MINUTE)
    assert [kind for kind, _ in recorded_events()] == ["check_failed"]
    assert recorded_events()[0][1].startswith("The check “gateway” fails: ")
    for well in (None, "", "  "):
        check.answer = well
        clock[0] += MINUTE
        checks.run_due()
        assert not CheckResult.objects.get().failing
    assert [kind for kind, _ in recorded_events()] == ["check_failed", "check_passed"]


def test_check_that_returns_a_coroutine_fails() -> None:
    assert "expected None if all is well" in run_check(HealthCheck("gateway", 60, lambda: asynchronous()))


def test_each_check_has_its_own_interval(sqlite_database: QueueDatabase) -> None:
    often, seldom = Answering(), Answering()
    checks, clock = watching(sqlite_database, HealthCheck("often", 10, often), HealthCheck("seldom", 300, seldom))
    for _ in range(61):
        checks.run_due()
        clock[0] += timedelta(seconds=10)
    assert (often.calls, seldom.calls) == (61, 3)


def test_only_one_of_many_workers_runs_a_check(queue_database: QueueDatabase) -> None:
    check = Answering()
    install(queue_database)
    begin = threading.Barrier(5)

    def work() -> None:
        mine = ProjectChecks([HealthCheck("gateway", 60, check)], now=lambda: START)
        try:
            begin.wait(60)
            for _ in range(3):
                try:
                    mine.run_due()
                except DatabaseError:
                    continue  # SQLite: another process holds the lock
        finally:
            connections.close_all()

    run_in_threads(work, 5)
    assert check.calls == 1


def test_check_that_breaks_its_connection_stops_no_other(queue_database: QueueDatabase) -> None:
    def broken() -> None:
        with connections[queue_database.alias].cursor() as cursor:
            cursor.execute("SELECT nothing FROM nowhere")

    other = Answering()
    checks, _ = watching(queue_database, HealthCheck("broken", 60, broken), HealthCheck("other", 60, other))
    assert checks.run_due() == ["broken", "other"]
    assert other.calls == 1
    assert CheckResult.objects.get(name="broken").failing


@pytest.mark.parametrize(
    "leave", [lambda alias: transaction.atomic(alias).__enter__(), lambda alias: transaction.set_autocommit(False, alias)]
)
def test_check_that_leaves_a_transaction_open_has_its_result(queue_database: QueueDatabase, leave: Callable[[str], object]) -> None:
    def careless() -> str:
        leave(queue_database.alias)
        CheckResult.objects.count()
        return "bad"

    def in_a_worker() -> None:
        with pool.checkout():
            checks.run_due()

    pool = ConnectionPool()
    checks, _ = watching(queue_database, HealthCheck("careless", 10, careless))
    run_in_threads(in_a_worker, 1)
    pool.close()

    assert [(row.name, row.failing) for row in CheckResult.objects.all()] == [("careless", True)]


def test_failing_check_is_in_health_and_metrics_unless_muted(queue_database: QueueDatabase) -> None:
    check = Answering()
    check.answer = "no answer"
    checks, _ = watching(queue_database, HealthCheck("gateway", 60, check))
    instance()
    checks.run_due()

    health = read_health(get_settings())
    assert [(each.level, each.check, each.subject, each.text) for each in health.findings] == [
        (Level.CRITICAL, "check", "gateway", "check gateway: no answer")
    ]
    assert read_health(get_settings(), endpoints=["Sales"]).findings == ()

    def in_metrics() -> float:
        (family,) = [each for each in read_metrics(get_settings()) if each.name == "sqlqueue_check_failing"]
        return {sample.labels["check"]: sample.value for sample in family.samples}["gateway"]

    assert in_metrics() == 1
    CheckResult.objects.update(muted_until=datetime.now(UTC) + MINUTE)
    assert (in_metrics(), read_health(get_settings()).findings) == (0, ())
    CheckResult.objects.update(muted_until=datetime.now(UTC) - MINUTE)
    assert in_metrics() == 1


def test_health_includes_stored_findings_of_built_in_checks(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    instance()
    now = datetime.now(UTC)
    for name in ("clocks", "schedules", "instances"):
        CheckResult.objects.create(
            name=f"sqlqueue.{name}",
            subject="mill",
            failing=True,
            details={"seconds": 9, "tick": "noon", "error": "no route"},
            since=now,
            checked_at=now,
        )
    found = {each.text: each.level for each in read_health(get_settings()).findings}
    assert found == {
        "The clock of the machine mill differs from that of the database by 9 seconds.": Level.WARNING,
        "The recurring message mill that was due at noon was not sent. no route": Level.CRITICAL,
    }


def test_decorated_function_is_registered(registered: Register) -> None:
    assert custom_check_jobs() == []
    registered("of a test", every=timedelta(minutes=2))
    (check,) = registry.all()
    assert (check.name, check.every_seconds, check.function()) == ("of a test", 120, None)
    assert [each.name for each in custom_check_jobs()] == ["checks of the project"]


async def asynchronous() -> None:
    pass


def generator() -> Any:
    yield "x"


@pytest.mark.parametrize(
    ("arguments", "function", "match"),
    [
        (("x",), asynchronous, "is async or a generator"),
        (("x",), generator, "is async or a generator"),
        (("x",), lambda needed: None, "must be callable without arguments"),
        (("x",), "no function", "expected a function without arguments"),
        (("",), Answering(), "check name '' is invalid"),
        ((7,), Answering(), "check name 7 is invalid"),
        (("x" * 101,), Answering(), "at most 100 printable characters"),
        (("a\0b",), Answering(), "at most 100 printable characters"),
        (("sqlqueue.clocks",), Answering(), "are reserved for sqlqueue"),
        (("x", 9), Answering(), "cannot run every 9: expected 10 seconds or more"),
        (("x", True), Answering(), "cannot run every True"),
        (("x", "60"), Answering(), "cannot run every '60'"),
        (("x", float("nan")), Answering(), "cannot run every nan"),
        (("x", timedelta(0)), Answering(), "cannot run every datetime"),
    ],
)
def test_invalid_check_is_refused(arguments: tuple[Any, ...], function: Any, match: str) -> None:
    name, *every = arguments
    with pytest.raises(ConfigurationError, match=match):
        health_check(name, **({"every": every[0]} if every else {}))(function)
    assert registry.all() == []


def test_two_functions_of_one_name_are_refused(registered: Register) -> None:
    registered("of a test")
    registered("of a test")
    assert len(registry.all()) == 1
    with pytest.raises(ConfigurationError, match="two checks are called 'of a test'"):
        health_check("of a test")(Answering())
