"""The pages of endpoints: their activity, their processes, and requests to these."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from sqlqueue_app import Retry, handles, pause, set_concurrency
from sqlqueue_app.conf import get_settings
from sqlqueue_app.messages.failure_groups import CLASSIFIERS
from sqlqueue_app.models import EndpointExpectation, EndpointSample, FailedMessage, FailureStatus, Instance, OperatorAction
from sqlqueue_app.receiving.handlers import HandlerRegistry
from sqlqueue_app.receiving.instances import lease_instance
from sqlqueue_app.status.endpoints import set_minimum
from sqlqueue_app.status.events import Actor
from sqlqueue_app.status.overview import read_status
from tests.support.databases import QueueDatabase
from tests.support.filling import HOSTILE, install, instance, message, table
from tests.support.pages import Markup, client_of, page_at

LIST = "/admin/sqlqueue_app/endpoint/"
SALES = f"{LIST}Sales/"
CONFIRMED = {"confirmed": "1"}
SECOND = timedelta(seconds=1)


def page(address: str = LIST, kind: str = "viewer") -> Markup:
    return page_at(address, kind)


def sample(age: timedelta = 20 * SECOND, **values: Any) -> EndpointSample:
    """A complete sample, also if this clock is slightly ahead of the database's."""
    known = {"endpoint": "Sales", "instance": "here", "message_type": "Sales.PlaceOrder", "seconds": 10, "handled": 0}
    at = datetime.fromtimestamp((datetime.now(UTC) - age).timestamp() // 10 * 10, UTC)
    return EndpointSample.objects.create(**{**known, "taken_at": at, **values})


def process(**fields: Any) -> Instance:
    return instance(**{"busy": {"Sales": 2}, "version": "0.1.0", **fields})


def recorded() -> list[tuple[str, str, str, str]]:
    return [(each.user_name, each.action, each.target, each.result) for each in OperatorAction.objects.order_by("id")]


def test_list_shows_the_activity_of_each_endpoint(queue_database: QueueDatabase) -> None:
    install(queue_database, ENDPOINTS={"Sales": {"CALLBACKS": False}, "Idle": {"CALLBACKS": False}})
    process(callback_queue=None, started_at=datetime.now(UTC) - timedelta(hours=1))
    process(name="there", pid=2, callback_queue=None, silent=timedelta(minutes=2))
    process(endpoint="Foreign", callback_queue=None)
    table(queue_database, "Sales").send([message(), message()])
    sample(handled=120, processing_seconds=6, processing_max=1, critical_measured=60, critical_seconds=-90, critical_max=3)
    sample(30 * SECOND, handled=60, immediate_retries=5, delayed_retries=1, failures=6, instance="there")
    for number, status in enumerate((FailureStatus.UNRESOLVED, FailureStatus.ARCHIVED)):
        FailedMessage.objects.create(
            id=f"00000000-0000-0000-0000-00000000000{number}", status=status, status_at=datetime.now(UTC), queue="error",
            message_id=str(number), first_failed_at=datetime.now(UTC), failed_at=datetime.now(UTC), endpoint="Sales",
            endpoint_group=CLASSIFIERS["endpoint"].group_id("Sales"),
        )  # fmt: skip
    found = page()
    text = found.text()
    # 180 messages in a minute, 6 s of processing among them, 6 retries
    assert "Sales Dead processes: 1 2 3.0 33.3 ms" in text
    assert "−1.5 s (negative: the clock of a sender is ahead) 0.10 1 1 1 dead version 0.1.0 2 / 4 " in text
    assert "Idle No live worker 0 0 – none – none 0 0 0 – none" in text
    assert "Foreign not in the settings of this site Alive" in text
    assert found.inline == []


def test_replaced_process_is_no_warning(queue_database: QueueDatabase) -> None:
    """The check of processes agrees: it passes once another process has started."""
    install(queue_database)
    process(callback_queue=None, silent=timedelta(minutes=2))
    assert "Sales Dead 0" in page().text()
    process(pid=2, callback_queue=None)
    text = page().text()
    assert "Sales Alive 0" in text
    assert "1 1 dead version 0.1.0" in text
    process(pid=3, callback_queue=None, silent=timedelta(minutes=3))
    assert "Sales Dead processes: 1 0" in page().text()


def test_list_of_instances_shows_results_only_for_a_search(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    process()
    process(name="there", pid=2, callback_queue=None)
    instances = "/admin/sqlqueue_app/instance/"
    assert "Show all" not in page_at(instances, "superuser").text()
    assert "1 result ( 2 total )" in page_at(f"{instances}?q=there", "superuser").text()


def test_list_is_exported(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    process(started_at=datetime.now(UTC) - timedelta(hours=1))
    sample(handled=30)
    answer: Any = client_of("writer").get(f"{LIST}?format=json")
    (row,) = json.loads(answer.getvalue())
    assert (row["endpoint"], row["handled_per_second"], row["alive"], row["busy_threads"], row["limit"]) == ("Sales", 0.5, 1, 2, 4)
    answer = client_of("writer").get(f"{SALES}?format=json&period=5m")
    (row,) = json.loads(answer.getvalue())
    assert (row["message_type"], row["handled"], row["handled_per_second"]) == ("Sales.PlaceOrder", 30, 0.1)


def test_endpoint_is_shown_in_full(queue_database: QueueDatabase) -> None:
    install(queue_database)
    process(callback_queue="Sales.here", started_at=datetime.now(UTC) - timedelta(hours=1))
    table(queue_database, "Sales.here").send([message()])
    sample(handled=10, processing_seconds=1, processing_max=0.5, critical_measured=10, critical_seconds=20, critical_max=4)
    sample(handled=5, processing_seconds=1, message_type="", instance="there", failures=3, delayed_retries=3, moved_to_error=1)
    found = page(f"{SALES}?period=5m")
    text = found.text()
    assert "handled: now 0/s" in text or "handled: now 1.5/s" in text
    assert "between 0/s and 1.5/s" in text
    assert "Sales.PlaceOrder 10 0.03 100 ms 500 ms 2.0 s 4.0 s 0 0 0 0" in text
    assert "no type in the headers 5 0.02 200 ms" in text, text
    assert re.search(r"there 5 0\.\d\d over \d\d s 200 ms", text), (
        "a process that is not registered has lived since its first sample"
    )
    assert "Sales.here messages in it: 1" in text
    assert "Sales : 3, 2 busy" in text
    assert "IMMEDIATE_RETRIES 5" in text
    assert any(link.endswith("/queue/Sales.Priority/") for link in found.links)
    assert found.inline == []
    assert len([path for path in found.find("path") if (path.get("d") or "").startswith("M")]) >= 3


def test_rate_of_a_young_process_covers_its_lifetime(queue_database: QueueDatabase) -> None:
    install(queue_database)
    process(callback_queue=None, started_at=datetime.now(UTC) - timedelta(minutes=4, seconds=20))
    sample(handled=240, processing_seconds=1)
    text = page(SALES).text()
    assert re.search(r"Sales\.PlaceOrder 240 0\.[89]\d over 4 min \d+ s", text), text
    assert re.search(r"Instance .* here 240 0\.[89]\d over 4 min \d+ s", text), text
    Instance.objects.update(started_at=datetime.now(UTC) - timedelta(hours=3))
    assert re.search(r"Sales\.PlaceOrder 240 0\.07 4\.2 ms", page(SALES).text())


def test_site_without_use_tz_shows_paused_processes(queue_database: QueueDatabase, settings: Settings) -> None:
    install(queue_database)
    now = datetime.now(UTC)
    process(callback_queue=None, paused=True, paused_by="anna", asked_at=now, paused_since=now - timedelta(minutes=20))
    sample(handled=240, processing_seconds=1)
    settings.USE_TZ, settings.TIME_ZONE = False, "UTC"

    assert "Paused by anna since" in page(SALES).text()
    assert "Paused by anna" in page("/admin/sqlqueue_app/dashboard/").text()
    (paused,) = (each for each in read_status().instances if each.paused)
    assert (paused.started_at.tzinfo, paused.paused_since) == (UTC, now - timedelta(minutes=20))


def test_endpoint_without_data_has_a_page(queue_database: QueueDatabase) -> None:
    install(queue_database)
    text = page(SALES).text()
    assert "No process is registered: no messages are received." in text
    assert "messages: now 0, between 0 and 0" in text, "the page takes a sample, because no worker does"
    assert "Handled and failed" not in text
    assert client_of("viewer").get(f"{LIST}Nobody/").status_code == 404


@pytest.mark.parametrize("name", ["A/b", "it's", HOSTILE, 'quo"te', "שלום", "a_2Fb", "x@y", "."])
def test_endpoint_of_any_name_has_a_page(sqlite_database: QueueDatabase, name: str) -> None:
    install(sqlite_database)
    made = process(endpoint=name, name=name, callback_queue=None)
    sample(endpoint=name, message_type=name, handled=1)
    found = page()
    (link,) = [link for link in found.links if link.startswith(LIST) and link not in (LIST, SALES)]
    markup = page(link)
    assert name in markup.text()
    assert markup.inline == []
    client = client_of("writer")
    assert client.post(f"{link}instances/{made.pk}/pause/", CONFIRMED).status_code == 302
    made.refresh_from_db()
    assert made.paused


def test_number_of_failed_messages_links_to_them(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database, ENDPOINTS={"Sales & Co": {"CALLBACKS": False}})
    (link,) = [link for link in page(f"{LIST}Sales & Co/").links if "/failedmessage/messages/?" in link]
    assert link.endswith("?endpoint=Sales+%26+Co")
    page(link)


def test_page_takes_few_statements(postgresql_database: QueueDatabase) -> None:
    install(postgresql_database, ENDPOINTS={f"Sales{number}": {"CALLBACKS": False} for number in range(40)})
    client = client_of("viewer")
    for number in range(40):
        process(endpoint=f"Sales{number}", pid=number, callback_queue=None)
        sample(endpoint=f"Sales{number}", handled=1)
    for address in (LIST, f"{LIST}Sales7/"):
        client.get(address)
        with CaptureQueriesContext(postgresql_database.connection) as queues, CaptureQueriesContext(connection) as managed:
            assert client.get(address).status_code == 200
        # Includes four for the session and permissions of the user and one for the badges of the navigation.
        assert len(queues) + len(managed) <= 15


def test_processes_are_paused_and_resumed(queue_database: QueueDatabase) -> None:
    install(queue_database)
    held = lease_instance(
        get_settings().endpoint("Sales"), alias=queue_database.alias, concurrency=4, exists=lambda name: True, make=str
    )
    client = client_of("writer")
    asking = client.get(f"{SALES}pause/").content.decode()
    assert "within 10 seconds" in Markup(asking).text()
    assert not Instance.objects.filter(paused=True).exists()
    done = client.post(f"{SALES}pause/", CONFIRMED, follow=True).content.decode()
    assert "Pause requested for 1 process." in Markup(done).text()
    assert "Pausing at its next heartbeat, within " in Markup(done).text()
    held.write_paused(True)
    assert "Sales Paused" in page().text()
    client.post(f"{SALES}instances/{held.row_id}/resume/", CONFIRMED)
    assert "Resuming at its next heartbeat, within " in page(SALES).text()
    (row,) = Instance.objects.all()
    assert not row.paused
    assert [each[1:] for each in recorded()] == [
        ("pause", "Sales", "done"),
        ("resume", f"Sales on {row.host} ({row.pid})", "done"),
    ]


WRONG_NUMBERS = {
    "x": "Enter a whole number.",
    "1.5": "Enter a whole number.",
    "-1": "Ensure this value is greater than or equal to",
    "1001": "Ensure this value is less than or equal to 1000.",
    "99999999999": "Ensure this value is less than or equal to 1000.",
}


@pytest.mark.parametrize(
    ("wanted", "expected"), [*WRONG_NUMBERS.items(), ("0", WRONG_NUMBERS["-1"]), ("", "This field is required.")]
)
def test_invalid_concurrency_is_refused_with_the_expected_values(
    sqlite_database: QueueDatabase, wanted: str, expected: str
) -> None:
    install(sqlite_database)
    made = process()
    address = f"{SALES}instances/{made.pk}/concurrency/"
    answer = client_of("writer").post(address, {**CONFIRMED, "concurrency": wanted})
    assert answer.status_code == 400
    text = Markup(answer.content.decode()).text()
    assert expected in text
    made.refresh_from_db()
    assert made.concurrency == 4


def test_concurrency_of_one_process_is_changed(queue_database: QueueDatabase) -> None:
    install(queue_database)
    mine, other = process(), process(pid=5, callback_queue=None)
    address = f"{SALES}instances/{mine.pk}/concurrency/"
    assert 'value="4"' in client_of("writer").get(address).content.decode()
    client_of("writer").post(address, {**CONFIRMED, "concurrency": "9"})
    mine.refresh_from_db()
    other.refresh_from_db()
    assert (mine.concurrency, other.concurrency) == (9, 4)
    assert recorded() == [("writer", "concurrency", "Sales on here (4711): 4 → 9", "done")]


def test_only_dead_processes_are_removed(queue_database: QueueDatabase) -> None:
    install(queue_database)
    alive, dead = process(), process(pid=5, callback_queue=None, silent=timedelta(minutes=1))
    client = client_of("writer")
    assert client.post(f"{SALES}instances/{alive.pk}/remove/", CONFIRMED).status_code == 409
    assert client.post(f"{SALES}instances/{dead.pk}/pause/", CONFIRMED).status_code == 409
    assert client.post(f"{SALES}instances/{dead.pk}/remove/", CONFIRMED).status_code == 302
    assert list(Instance.objects.all()) == [alive]
    assert client.post(f"{SALES}instances/{dead.pk}/remove/", CONFIRMED).status_code == 404
    assert recorded() == [("writer", "remove_instance", "Sales on here (5)", "done")]


@pytest.mark.parametrize("action", ["pause", "resume", "instances/{}/pause", "instances/{}/concurrency", "instances/{}/remove"])
@pytest.mark.parametrize("kind", ["viewer", "reader"])
def test_denied_user_is_refused_and_recorded(sqlite_database: QueueDatabase, kind: str, action: str) -> None:
    install(sqlite_database)
    made = process()
    address = f"{SALES}{action.format(made.pk)}/"
    client = client_of(kind)
    assert client.get(address).status_code == 403
    assert client.post(address, {**CONFIRMED, "concurrency": "7"}).status_code == 403
    ((who, _action, _target, result),) = recorded()
    assert (who, result) == (kind, "denied")
    made.refresh_from_db()
    assert (made.paused, made.concurrency) == (False, 4)
    markup = page(SALES, kind)
    assert "You need the permission “Can pause and resume" in markup.text()
    assert not any("pause" in link for link in markup.links)


def test_name_typed_into_the_address_is_found(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database, ENDPOINTS={"Sales Größe": {"CALLBACKS": False}})
    assert "Sales Größe" in page(f"{LIST}{quote('Sales Größe')}/").text()


def test_actions_without_a_live_process_are_refused(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    answer = client_of("writer").post(f"{SALES}pause/", CONFIRMED)
    assert answer.status_code == 409
    assert "No live process." in Markup(answer.content.decode()).text()
    for address in (f"{LIST}Nobody/pause/", f"{SALES}instances/99999999999999999999/remove/"):
        assert client_of("writer").get(address).status_code == 404
        assert client_of("reader").post(address, CONFIRMED).status_code == 403


@pytest.mark.parametrize("handlers", ["tests.nowhere.handlers", "tests.dashboard.broken_handlers"])
def test_handlers_that_cannot_be_imported_are_reported(sqlite_database: QueueDatabase, handlers: str) -> None:
    install(sqlite_database)
    sqlite_database.configure(ENDPOINTS={"Sales": {"HANDLERS": [handlers]}})
    text = page(SALES).text()
    assert handlers.rpartition(".")[2] in text


def test_handlers_of_generic_types_show_their_retries_and_rate_limits(
    sqlite_database: QueueDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sqlqueue_app.receiving.handlers.registry", HandlerRegistry())
    for name in ("Shop.Envelope`1[[Shop.Order, Shop, Version=1.0.0.0]]", "Shop.Pair`2[[Shop.A], [Shop.B]], Shop"):
        handles(name, retry=Retry(immediate=7), rate_limit="9/m")(lambda message, context: None)
    install(sqlite_database, ENDPOINTS={"Sales": {"HANDLERS": [__name__], "CALLBACKS": False}})
    text = page(SALES).text()
    shown = f"Retries: {Retry(immediate=7)} Rate limit: 9/m"
    assert f"Shop.Envelope`1[[Shop.Order, Shop, Version=1.0.0.0]] {shown}" in text
    assert f"Shop.Pair`2[[Shop.A], [Shop.B]] {shown}" in text


def test_minimum_of_processes_is_set_and_shown(queue_database: QueueDatabase) -> None:
    install(queue_database)
    process(), process(pid=5, callback_queue=None)
    assert "Set the minimum of processes" in page(SALES, "writer").text()
    answer = client_of("writer").post(f"{SALES}minimum/", {**CONFIRMED, "minimum": "3"}, follow=True)
    text = Markup(answer.content.decode()).text()
    assert "Sales: at least 3 live processes." in text
    assert "Below minimum" in text
    assert "Processes alive 2 of 3 expected" in text
    assert "Sales Below minimum" in page().text()
    assert "2 of 3 expected" in page().text()
    overview = page("/admin/sqlqueue_app/dashboard/")
    assert "Endpoint Sales : Below its minimum: 2 of 3 expected processes are alive." in overview.text()
    assert SALES in overview.links
    process(pid=6, callback_queue=None)
    assert "Below minimum" not in page().text()
    assert "below its minimum" not in page("/admin/sqlqueue_app/dashboard/").text()
    assert 'value="3"' in client_of("writer").get(f"{SALES}minimum/").content.decode()
    client_of("writer").post(f"{SALES}minimum/", {**CONFIRMED, "minimum": ""})
    assert not EndpointExpectation.objects.exists()
    assert recorded() == [("writer", "minimum", "Sales: 0 → 3", "done"), ("writer", "minimum", "Sales: 3 → 0", "done")]


def test_author_of_a_minimum_is_stored(queue_database: QueueDatabase) -> None:
    install(queue_database)
    for wanted in ("2", "4"):
        client_of("admin").post(f"{SALES}minimum/", {**CONFIRMED, "minimum": wanted})
    (row,) = EndpointExpectation.objects.all()
    assert (row.endpoint, row.minimum, row.changed_by) == ("Sales", 4, "admin")
    client_of("admin").post(f"{SALES}minimum/", {**CONFIRMED, "minimum": "0"})
    assert not EndpointExpectation.objects.exists()


@pytest.mark.parametrize(("wanted", "expected"), WRONG_NUMBERS.items())
def test_invalid_minimum_is_refused(sqlite_database: QueueDatabase, wanted: str, expected: str) -> None:
    install(sqlite_database)
    answer = client_of("writer").post(f"{SALES}minimum/", {**CONFIRMED, "minimum": wanted})
    assert answer.status_code == 400
    assert expected in Markup(answer.content.decode()).text()
    assert not EndpointExpectation.objects.exists()


def test_expected_endpoint_without_processes_is_listed(queue_database: QueueDatabase) -> None:
    install(queue_database)
    set_minimum("Elsewhere", 1, actor=Actor("anna"))
    assert "Elsewhere not in the settings of this site Below minimum" in page().text()
    assert "Processes alive 0 of 1 expected" in page(f"{LIST}Elsewhere/").text()
    client_of("writer").post(f"{LIST}Elsewhere/minimum/", {**CONFIRMED, "minimum": "0"})
    assert client_of("viewer").get(f"{LIST}Elsewhere/").status_code == 404


def test_pending_request_is_shown_with_its_age(queue_database: QueueDatabase) -> None:
    install(queue_database)
    held = lease_instance(
        get_settings().endpoint("Sales"), alias=queue_database.alias, concurrency=4, exists=lambda name: True, make=str
    )
    rows = Instance.objects.filter(pk=held.row_id)
    assert re.search(r"requested \d", page(SALES).text()) is None
    pause("Sales")
    now = datetime.now(UTC)
    rows.update(asked_at=now - 4 * SECOND, heartbeat_at=now - 8 * SECOND)
    assert re.search(r"at its next heartbeat, within \d+ s \(requested \d+ s ago\)", page(SALES).text())
    held.write_paused(True)
    held.heartbeat({})
    assert re.search(r"requested \d", page(SALES).text()) is None
    set_concurrency("Sales", 9)
    rows.update(asked_at=now - 4 * SECOND, heartbeat_at=now - 8 * SECOND)
    assert re.search(r"requested \d+ s ago, not followed yet", page(SALES).text())
    held.heartbeat({})
    assert "not followed yet" not in page(SALES).text()
