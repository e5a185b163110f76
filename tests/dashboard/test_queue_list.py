"""The list of queues: every queue table of the database, delayed tables, rates, export."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from sqlqueue_app.conf import get_settings
from sqlqueue_app.models import CheckResult, QueueSample
from sqlqueue_app.status.queues import address_book_of
from sqlqueue_app.tables.delayed import DelayedTable
from sqlqueue_app.tables.installation import delayed_address
from sqlqueue_app.tables.rows import NewRow
from tests.support.databases import QueueDatabase
from tests.support.filling import install, instance, message, table
from tests.support.pages import OVERVIEW, Markup, client_of
from tests.support.tables import make_table, row

SECOND = timedelta(seconds=1)


def page_of(kind: str = "viewer") -> Markup:
    return Markup(client_of(kind).get(OVERVIEW).content.decode())


def text_of(response: Any) -> str:
    return str(response.getvalue().decode("utf-8-sig"))


def test_other_queues_of_the_database_are_listed_and_have_pages(queue_database: QueueDatabase) -> None:
    install(queue_database)
    made = make_table(queue_database, name="Left/over")
    made.send([row(b"{}")])

    found = page_of().find("tr", **{"data-key": "queue Left/over"})
    assert len(found) == 1
    text = page_of().text()
    assert "Other queues of the database" in text
    (link,) = [url for url in page_of().links if "Left" in url]
    answer = client_of("viewer").get(link)
    assert answer.status_code == 200
    assert "Left/over" in Markup(answer.content.decode()).text()


def test_delayed_and_overdue_messages_are_counted(queue_database: QueueDatabase) -> None:
    install(queue_database)
    delayed = DelayedTable(queue_database.alias, delayed_address(address_book_of(get_settings()), "Sales"))
    delayed.insert([NewRow("1", "{}", b"", delay_ms=3_600_000)])
    assert "Overdue 1" not in page_of().text()
    delayed.insert([NewRow("2", "{}", b"", due=datetime(2026, 1, 1, tzinfo=UTC))])
    text = page_of().text()
    assert "Delayed messages" in text
    assert "Sales Overdue" in text


def test_first_endpoints_of_an_error_queue_are_named(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database, ENDPOINTS={f"E{number}": {"CALLBACKS": False} for number in range(60)})
    assert "error error E0, E1, E2, E3, E4 and 55 more" in page_of().text()


def test_growing_queue_is_not_ok(queue_database: QueueDatabase) -> None:
    install(queue_database)
    instance(threads={"Sales": 2})
    now = datetime.now(UTC)
    details = {"waiting": 70, "grown": 30, "threads": 2}
    found = CheckResult.objects.create(
        name="sqlqueue.growing", subject="Sales", failing=True, since=now, checked_at=now, details=details
    )

    def row_and_page() -> list[str]:
        return [page_of().text(), Markup(client_of("viewer").get(f"{OVERVIEW}Sales/").content.decode()).text()]

    cause = "Growing: messages waiting: 70, 30 more than 10 minutes ago; receiving threads: 2."
    assert not any(cause in each for each in row_and_page()), "the queue is empty"
    table(queue_database, "Sales").send([message()])
    assert all(f"Growing {cause}" in each for each in row_and_page())
    exported = csv.DictReader(io.StringIO(text_of(client_of("writer").get(f"{OVERVIEW}?format=csv"))))
    assert {each["queue"]: each["state"] for each in exported}["Sales"] == "Growing"

    found.muted_until = now + timedelta(hours=1)
    found.save()
    assert not any(cause in each for each in row_and_page())


@pytest.mark.parametrize("use_tz", [True, False])
def test_muted_growth_is_not_shown(queue_database: QueueDatabase, settings: Any, use_tz: bool) -> None:
    settings.USE_TZ = use_tz
    install(queue_database)
    now = datetime.now(UTC)
    values = {"failing": True, "since": now, "checked_at": now, "muted_until": now + timedelta(hours=1)}
    CheckResult.objects.create(name="sqlqueue.growing", subject="Sales", **values)

    assert "Growing" not in page_of().text()


def test_rates_of_the_last_minute_are_shown(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    now = datetime.now(UTC).replace(microsecond=0)
    common = {"queue": "Sales", "seconds": 10, "samples": 1, "most_waiting": 0, "exact": True}
    for age, waiting, written in ((50, 100, 1000), (0, 40, 1250)):
        QueueSample.objects.create(taken_at=now - age * SECOND, waiting=waiting, written=written, **common)
    # 250 messages arrived in 50 seconds, and 60 more left
    assert "5.0 / 6.2" in page_of().text()


def test_rate_into_a_long_queue_is_shown(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    instance()
    now = datetime.now(UTC).replace(microsecond=0)
    for age, written in ((50, 1000), (0, 1250)):
        common = {"queue": "Sales", "seconds": 10, "samples": 1, "most_waiting": 0, "exact": False}
        QueueSample.objects.create(taken_at=now - age * SECOND, waiting=20_000, written=written, **common)
    assert "5.0 / –" in page_of().text()
    found = {each["queue"]: each for each in json.loads(text_of(client_of("writer").get(f"{OVERVIEW}?format=json")))}
    assert (found["Sales"]["in_per_second"], found["Sales"]["out_per_second"]) == (5.0, None)


def test_list_is_exported_as_csv_and_json(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database, ENDPOINTS={"=cmd()": {"CALLBACKS": False}, "Sales": {"CALLBACKS": False}})
    table(sqlite_database, "Sales").send([message() for _ in range(3)])

    answer = client_of("writer").get(f"{OVERVIEW}?format=json")
    assert answer["Content-Type"] == "application/json"
    found = {each["queue"]: each for each in json.loads(text_of(answer))}
    assert (found["Sales"]["kind"], found["Sales"]["messages"], found["Sales"]["exact"]) == ("main", 3, True)
    answer = client_of("writer").get(f"{OVERVIEW}?format=csv")
    rows = list(csv.DictReader(io.StringIO(text_of(answer))))
    assert {each["queue"] for each in rows} == {"Sales", "'=cmd()", "error"}
    assert answer["Content-Disposition"] == 'attachment; filename="queues.csv"'


def test_file_has_the_queues_of_the_page(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    table(sqlite_database, "Sales").send([message(lifetime_ms=-60_000)])
    found = json.loads(text_of(client_of("writer").get(f"{OVERVIEW}?expired=1&format=json")))
    assert [each["queue"] for each in found] == ["Sales"]


@pytest.mark.parametrize("requested", ["csv", "json"])
@pytest.mark.parametrize("page", ["", "Sales/"])
def test_export_needs_the_permission(sqlite_database: QueueDatabase, page: str, requested: str) -> None:
    install(sqlite_database)
    assert client_of("reader").get(f"{OVERVIEW}{page}?format={requested}").status_code == 403
    assert "format=csv" not in client_of("reader").get(f"{OVERVIEW}{page}").content.decode()
    assert "format=csv" in client_of("writer").get(f"{OVERVIEW}{page}").content.decode()


@pytest.mark.parametrize("requested", ["xml", "", "csv%00", "[]"])
def test_unknown_format_returns_the_page(sqlite_database: QueueDatabase, requested: str) -> None:
    install(sqlite_database)
    assert client_of("writer").get(f"{OVERVIEW}?format={requested}").status_code == 200


def test_two_hundred_queues_take_few_statements(postgresql_database: QueueDatabase) -> None:
    install(postgresql_database, ENDPOINTS={"Sales": {"SATELLITES": {f"Sales.{number}": {} for number in range(200)}}})
    # While a worker is alive, no page takes samples.
    instance(callback_queue=None)
    client = client_of("viewer")
    client.get(OVERVIEW)
    with CaptureQueriesContext(postgresql_database.connection) as queues, CaptureQueriesContext(connection) as managed:
        assert client.get(OVERVIEW).status_code == 200
    # Includes four for the session and permissions of the user and one for the badges of the navigation.
    assert len(queues) + len(managed) <= 14


def test_queue_links_to_its_endpoint(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database, ENDPOINTS={"Sales": {"CALLBACKS": False}, "Bills": {"CALLBACKS": False}})
    table(sqlite_database, "Sales").send([message(age=timedelta(hours=2))])
    endpoints = "/admin/sqlqueue_app/endpoint/"
    links = [link for link in page_of().links if link.startswith(endpoints) and link != endpoints]
    assert sorted(links) == [f"{endpoints}Bills/", f"{endpoints}Sales/"]
    page = Markup(client_of("viewer").get(f"{OVERVIEW}Sales/").content.decode())
    assert f"{endpoints}Sales/" in page.links
    assert "Oldest message 2 h 0 min" in page.text()
    assert f"{endpoints}Sales/" not in Markup(client_of("viewer").get(f"{OVERVIEW}error/").content.decode()).links
