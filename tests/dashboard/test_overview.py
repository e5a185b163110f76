"""The list of queues: correct numbers, every object named, every state in words."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from sqlqueue_app.status.overview import read_status
from tests.support.databases import QueueDatabase
from tests.support.filling import HOSTILE, count, install, instance, message, now_of, row, table
from tests.support.pages import OVERVIEW, Markup, client_of, numbers_of


def overview() -> str:
    answer = client_of("viewer").get(OVERVIEW)
    assert answer.status_code == 200
    return answer.content.decode()


def test_numbers_equal_those_of_sql(queue_database: QueueDatabase) -> None:
    install(queue_database)
    lifetimes = [None] * 4 + [3_600_000] * 2 + [-60_000]
    table(queue_database, "Sales").send([message(lifetime_ms=lifetime) for lifetime in lifetimes])
    table(queue_database, "error").send([message()])
    table(queue_database, "Sales.here").send([message(), message()])
    instance()

    html = overview()

    for name in ("Sales", "Sales.Priority", "error", "Sales.here", "Sales.here-2"):
        by_sql = [
            count(queue_database, name),
            count(queue_database, name, "Expires IS NOT NULL"),
            count(queue_database, name, f"Expires <= {now_of(queue_database)}"),
        ]
        assert numbers_of(html, name)[:3] == by_sql


def test_numbers_above_ten_thousand_are_estimated(queue_database: QueueDatabase) -> None:
    install(queue_database)
    sales = table(queue_database, "Sales")
    sales.send([row(body=b"") for _ in range(10_000)])

    counted = overview()
    sales.send([row(body=b"")])
    estimated = overview()

    assert numbers_of(counted, "Sales")[0] == 10_000
    assert "≈" not in counted
    assert numbers_of(estimated, "Sales")[0] == 10_001
    assert "≈ 10,001" in estimated
    assert "estimated from the first and the last message" in estimated


def test_every_state_has_a_label(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    table(sqlite_database, "Sales").send([message()])
    table(sqlite_database, "error").send([message()])
    table(sqlite_database, "Sales.here-2").send([message()])
    instance(silent=timedelta(minutes=5))
    with sqlite_database.connection.cursor() as cursor:
        cursor.execute('DROP TABLE "Sales.Priority"')

    text = Markup(overview()).text()

    for word in ("No live worker", "Failed messages", "No receiver", "Missing", "Dead", "tables with errors: 1"):
        assert word in text
    assert "python manage.py sqlqueue_install" in text
    assert 'CREATE TABLE "Sales.Priority"' in text


def test_error_queue_of_servicecontrol_is_marked(sqlite_database: QueueDatabase, settings: Settings) -> None:
    install(sqlite_database)
    table(sqlite_database, "error").send([message()])
    settings.SQLQUEUE = {**settings.SQLQUEUE, "ERROR_QUEUE_OWNER": "servicecontrol"}

    html = overview()

    assert "Belongs to ServiceControl" in Markup(html).text()
    # As a state; links of that name exist.
    assert "Failed messages</span>" not in html


def test_live_instance_is_shown_with_its_callback_queue(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    instance(threads={"Sales": 3, "Sales.Priority": 1, "Sales.here": 1})
    table(sqlite_database, "Sales").send([message()])

    markup = Markup(overview())

    text = markup.text()
    assert "Alive" in text
    assert "No live worker" not in text
    assert "Leased" in text
    assert f"{OVERVIEW}Sales.here/" in markup.links


@pytest.mark.parametrize(
    ("age", "words"), [(timedelta(hours=5, minutes=2), "5 h 2 min"), (timedelta(seconds=-130), "\N{MINUS SIGN}2 min")]
)
def test_head_age_is_shown_including_negative_ages(sqlite_database: QueueDatabase, age: timedelta, words: str) -> None:
    install(sqlite_database)
    table(sqlite_database, "Sales").send([message(age=age)])

    text = Markup(overview()).text()

    assert words in text
    assert "from the header NServiceBus.TimeSent" in text
    assert ("in the future by the clock of this site" in text) == (age < timedelta())


def test_page_without_endpoints_shows_how_to_start(sqlite_database: QueueDatabase) -> None:
    sqlite_database.configure(ENDPOINTS={})

    text = Markup(overview()).text()

    assert 'SQLQUEUE["ENDPOINTS"]' in text
    assert "python manage.py migrate" in text
    assert "python manage.py run_sqlqueue_worker" in text


def test_page_adds_few_statements_to_the_status(queue_database: QueueDatabase) -> None:
    install(queue_database)
    instance()
    client = client_of("viewer")
    client.get(OVERVIEW)
    with CaptureQueriesContext(queue_database.connection) as captured:
        read_status(others=True, with_schedules=False)
    # Sessions, users and instances are in the default database; the queues may be, too.
    with CaptureQueriesContext(queue_database.connection) as page:
        client.get(OVERVIEW)

    own = [query["sql"] for query in page if "auth_" not in query["sql"] and "django_" not in query["sql"]]
    # and one each for the rates, for growing queues, and for the badges of the navigation
    assert len(own) == len(captured) + 3


def test_hostile_names_are_shown_as_text(queue_database: QueueDatabase) -> None:
    install(queue_database, ENDPOINTS={HOSTILE: {"CALLBACKS": False}})
    instance(endpoint=HOSTILE, name=HOSTILE, host=HOSTILE, callback_queue=HOSTILE + "2", threads={HOSTILE: 1}, version=HOSTILE)

    html = overview()

    assert HOSTILE not in html
    assert HOSTILE in Markup(html).text()


def test_invalid_settings_are_reported(sqlite_database: QueueDatabase) -> None:
    sqlite_database.configure(ENDPOINTS={"Sales": {"MAX_CONCURRENCY": "many"}})

    answer = client_of("viewer").get(OVERVIEW)

    assert answer.status_code == 500
    assert "MAX_CONCURRENCY" in answer.content.decode()
