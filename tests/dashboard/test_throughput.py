"""The traffic of endpoints on the overview: current numbers, lines of an hour, growth, no old value shown as current."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test.utils import CaptureQueriesContext
from django.utils.html import escape

from sqlqueue_app.messages.failure_groups import CLASSIFIERS
from sqlqueue_app.models import EndpointSample, FailedMessage, FailureStatus, QueueSample
from sqlqueue_app.status.overview import read_status
from sqlqueue_app.status.traffic import read_traffic, traffic_of
from tests.support.databases import QueueDatabase
from tests.support.filling import HOSTILE, install, instance, message, table
from tests.support.pages import Markup, client_of

DASHBOARD = "/admin/sqlqueue_app/dashboard/"
ENDPOINTS: dict[str, Any] = {name: {"CALLBACKS": False} for name in ("Sales", "Billing", "Idle")}
SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)


def now() -> datetime:
    """The start of the present samples, also if this clock is slightly ahead of the database's."""
    return datetime.fromtimestamp((datetime.now(UTC) - 2 * SECOND).timestamp() // 10 * 10, UTC)


def sampled(queue: str, at: datetime, waiting: int, written: int | None, seconds: int = 10) -> None:
    """Take every ``at`` of one test from one ``now()``: the period may end between two calls."""
    at = datetime.fromtimestamp(at.timestamp() // seconds * seconds, UTC)
    QueueSample.objects.create(
        queue=queue, taken_at=at, seconds=seconds, waiting=waiting, most_waiting=waiting, written=written
    )  # fmt: skip


def moved(at: datetime, number: int, seconds: int = 10) -> None:
    EndpointSample.objects.create(
        endpoint="Sales", instance="here", message_type="A", taken_at=at, seconds=seconds, moved_to_error=number
    )  # fmt: skip


def failed(endpoint: str, number: int) -> None:
    FailedMessage.objects.create(
        id=f"00000000-0000-0000-0000-0000000000{number:02}", status=FailureStatus.UNRESOLVED, status_at=now(), queue="error",
        message_id=str(number), first_failed_at=now(), failed_at=now(), endpoint=endpoint,
        endpoint_group=CLASSIFIERS["endpoint"].group_id(endpoint),
    )  # fmt: skip


def shown() -> tuple[str, Markup]:
    answer = client_of("viewer").get(DASHBOARD)
    assert answer.status_code == 200
    html = answer.content.decode()
    part = html[html.index('id="sq-traffic"') : html.index('id="sq-charts"')]
    return Markup(part).text(), Markup(part)


def rows(markup: Markup) -> list[str]:
    return [str(each["data-plot"]) for each in markup.find("tr") if each.get("data-plot")]


def test_each_endpoint_has_numbers_and_lines(queue_database: QueueDatabase) -> None:
    install(queue_database, ENDPOINTS=ENDPOINTS)
    instance(callback_queue=None)
    table(queue_database, "Sales").send([message() for _ in range(3)])
    newest = now()
    for ago, written in ((60, 1_000), (30, 1_060), (0, 1_120)):
        sampled("Sales", newest - ago * SECOND, 3, written)
    sampled("Billing", newest, 0, None)
    failed("Billing", 1)
    text, markup = shown()
    assert re.search(r"Endpoint In .{0,20} Out .{0,20} Waiting Failed", text), text
    assert rows(markup) == ["Billing", "Sales", "Idle"], "failures first, then the longest queue"
    assert re.search(r"Sales In: .* 2\.0 Out: .* 2\.0 Waiting: last 3, between 3 and 3, 3 on average. 3 Failed: nothing", text), (
        text
    )
    assert re.search(
        r"Billing In: nothing was measured in this time. – Out: .*? – Waiting: last 0.*? 0 Failed: .*? 1 Sales", text
    ), text
    assert any("endpoint%3ABilling" in link or "endpoint=Billing" in link for link in markup.links)
    assert markup.inline == []
    (times,) = {str(each["data-times"]) for each in markup.find("table")}
    lines = [each for each in markup.find("path") if each.get("data-name")]
    assert [each["data-name"] for each in lines[:4]] == ["In", "Out", "Waiting", "Failed"]
    assert {len(str(each["data-values"]).split("|")) for each in lines} == {len(times.split("|"))} == {60}


def test_messages_moved_to_the_error_queue_are_counted_once(queue_database: QueueDatabase) -> None:
    install(queue_database, ENDPOINTS=ENDPOINTS)
    instance(callback_queue=None)
    minute = datetime.fromtimestamp((now() - 3 * MINUTE).timestamp() // 60 * 60, UTC)
    common: dict[str, Any] = {"endpoint": "Sales", "instance": "here", "moved_to_error": 4}
    for kind in ("A", "B"):
        EndpointSample.objects.create(taken_at=minute, seconds=60, message_type=kind, **common)
        EndpointSample.objects.create(taken_at=minute + 50 * SECOND, seconds=10, message_type=kind, **common)
        EndpointSample.objects.create(taken_at=minute + MINUTE, seconds=10, message_type=kind, **common)
    _text, markup = shown()
    failures = [str(each["data-values"]) for each in markup.find("path") if each.get("data-name") == "Failed"]
    # Without the current minute, and in its first ten seconds without the one before.
    values = failures[rows(markup).index("Sales")].removesuffix("|–").removesuffix("|–").split("|")
    assert [each for each in values if each != "0"] == ["8", "8"]
    assert len(values) in {58, 59}


def test_lines_of_a_steady_queue_are_level_at_every_second(queue_database: QueueDatabase) -> None:
    """Samples are rolled up meanwhile: one of a minute has the start of the minute and the counts of its end.

    The number of failures is that of whole minutes.
    """
    install(queue_database, ENDPOINTS=ENDPOINTS)
    begin = datetime.fromtimestamp(now().timestamp() // 60 * 60, UTC) - 10 * MINUTE
    for second in range(0, 660, 10):
        sampled("Sales", begin + second * SECOND, 0, 7 * second)
        moved(begin + second * SECOND, 1)
    for number in range(10):
        sampled("Sales", begin + number * MINUTE, 0, 7 * (60 * number + 50), seconds=60)
        moved(begin + number * MINUTE, 6, seconds=60)
    queues = [each for each in read_status().queues if each.name == "Sales"]
    for second in range(60):
        at = begin + 9 * MINUTE + second * SECOND
        traffic = read_traffic(queue_database.alias, ["Sales"], [["Sales"], ["error"]], timedelta(hours=1), ["Sales"], at)
        found = traffic_of("Sales", queues, traffic, at)
        assert (found.in_rate, found.out_rate) == (7.0, 7.0), second
        assert set(found.came.values()) == set(found.went.values()) == {7.0}, second
        assert len(found.came) >= 8
        assert list(found.failed.values())[-8:] == [6.0] * 8, second


def test_growing_queue_is_visible_on_the_overview(queue_database: QueueDatabase) -> None:
    install(queue_database, ENDPOINTS=ENDPOINTS)
    instance(callback_queue=None)
    newest = now()
    for name, before in (("Sales", 5), ("Billing", 40)):
        table(queue_database, name).send([message() for _ in range(42)])
        for ago in range(1, 20):
            sampled(name, newest - ago * MINUTE, before, None, seconds=60)
    text, _markup = shown()
    assert re.search(r"Sales In: .*? 42 \+37 in 10 min Failed", text), text
    assert text.count("in 10 min") == 1, "Billing has hardly grown"


def test_old_rates_are_not_shown_as_current(queue_database: QueueDatabase) -> None:
    install(queue_database, ENDPOINTS=ENDPOINTS)
    instance(callback_queue=None)
    newest = now()
    for ago, written in ((70, 1_000), (50, 1_060)):
        sampled("Sales", newest - ago * SECOND, 3, written)
    text, _markup = shown()
    assert re.search(r"Sales In: .*? – Out: .*? – Waiting:", text), text
    queues = Markup(client_of("viewer").get("/admin/sqlqueue_app/queue/").content.decode()).text()
    assert "3.0 / 3.0" not in queues


def test_page_takes_the_samples_without_a_worker(queue_database: QueueDatabase) -> None:
    install(queue_database, ENDPOINTS=ENDPOINTS)
    instance(callback_queue=None, silent=timedelta(hours=1))
    table(queue_database, "Sales").send([message() for _ in range(3)])
    sampled("Sales", now() - 10 * MINUTE, 7, None)
    text = Markup(client_of("viewer").get(DASHBOARD).content.decode()).text()
    assert "messages: now 3, between 3 and 7" in text
    assert "No samples since" not in text
    assert QueueSample.objects.filter(queue="Sales", waiting=3).count() == 1


@pytest.mark.parametrize("page", ["queue/", "queue/Sales/", "endpoint/Sales/"])
def test_every_page_with_samples_takes_them_without_a_worker(queue_database: QueueDatabase, page: str) -> None:
    install(queue_database, ENDPOINTS=ENDPOINTS)
    sampled("Sales", now() - 5 * MINUTE, 7, None)
    assert client_of("viewer").get(f"/admin/sqlqueue_app/{page}").status_code == 200
    assert QueueSample.objects.filter(queue="Billing", seconds=10).count() == 1


def test_many_endpoints_add_no_statements(postgresql_database: QueueDatabase) -> None:
    many = {f"Endpoint.{number}": {"CALLBACKS": False} for number in range(60)}
    install(postgresql_database, ENDPOINTS=many)
    instance(callback_queue=None)
    client = client_of("viewer")
    client.get(DASHBOARD)
    with CaptureQueriesContext(postgresql_database.connection) as own:
        html = client.get(DASHBOARD).content.decode()
    assert len(own) <= 15
    assert html.count('data-plot="Endpoint.') == 20
    assert "40 endpoints with fewer failed and waiting messages are not shown." in Markup(html).text()


def test_longest_queue_is_shown_beside_many_endpoints_with_failures(sqlite_database: QueueDatabase) -> None:
    names = [f"Endpoint.{number}" for number in range(30)]
    install(sqlite_database, ENDPOINTS={name: {"CALLBACKS": False} for name in names})
    for number, name in enumerate(names[:-2]):
        failed(name, number)
    table(sqlite_database, names[-1]).send([message() for _ in range(3)])
    table(sqlite_database, names[0]).send([message()])
    text, markup = shown()
    assert rows(markup)[:2] == [names[0], names[-1]]
    assert "10 endpoints with fewer failed and waiting messages are not shown." in text


def test_page_without_a_worker_takes_few_statements(postgresql_database: QueueDatabase) -> None:
    install(postgresql_database, ENDPOINTS=ENDPOINTS)
    instance(callback_queue=None, silent=timedelta(hours=1))
    client = client_of("viewer")
    costs = []
    for _ in range(4):
        with CaptureQueriesContext(postgresql_database.connection) as own:
            client.get(DASHBOARD)
        costs.append(len(own))
    # Four pages do not each start a new sample interval.
    assert min(costs) <= 15


def test_hostile_name_is_shown_as_text(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database, ENDPOINTS={HOSTILE: {"CALLBACKS": False}})
    answer = client_of("viewer").get(DASHBOARD).content.decode()
    assert HOSTILE not in answer
    assert f'data-plot="{escape(HOSTILE)}"' in answer
