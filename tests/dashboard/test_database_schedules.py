"""The pages that define schedules in the database: the form with its errors and preview, changing, deleting, the last runs."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from sqlqueue_app import schedule
from sqlqueue_app.conf import get_settings
from sqlqueue_app.models import OperatorAction, Schedule, ScheduleTick
from sqlqueue_app.status.schedules import Schedules, last_runs
from tests.support.databases import QueueDatabase
from tests.support.delayed_rows import put
from tests.support.failing import fail, failed_row
from tests.support.filling import install, instance, table
from tests.support.pages import Markup, client_of, page_at

LIST = "/admin/sqlqueue_app/schedule/"
MAKE = f"{LIST}make/"
NIGHTLY = f"{LIST}nightly/Sales.CloseDay/"
HOUR = timedelta(hours=1)
FIELDS = {
    "name": "nightly", "message_type": "Sales.CloseDay", "body": '{"book": true}', "destination": "", "kind": "cron",
    "cron": "0 2 * * *", "every_seconds": "", "at": "", "time_zone": "Europe/Berlin", "starts_at": "", "ends_at": "",
    "missed": "send",
}  # fmt: skip


@pytest.fixture
def installed(queue_database: QueueDatabase, settings: Any) -> QueueDatabase:
    settings.TIME_ZONE = "UTC"
    install(queue_database, ROUTES={"Sales.*": "Sales"})
    return queue_database


def post(address: str, button: str = "confirmed", **fields: str) -> tuple[int, str]:
    answer = client_of("admin").post(address, {**FIELDS, button: "1", **fields}, follow=True)
    found = Markup(answer.content.decode())
    assert found.inline == []
    return answer.status_code, found.text()


def row() -> Schedule:
    return Schedule.objects.get(name="nightly")


def recorded() -> list[tuple[str, str, str]]:
    return [(each.action, each.target, each.result) for each in OperatorAction.objects.order_by("id")]


def test_schedule_is_created_changed_and_deleted(installed: QueueDatabase) -> None:
    assert MAKE in page_at(LIST, "admin").links
    assert "Create the schedule Preview" in page_at(MAKE, "admin").text()
    status, text = post(MAKE)
    assert (status, "The schedule nightly is stored." in text) == (200, True)
    stored = row()
    assert (stored.kind, stored.cron, stored.time_zone, stored.body) == ("cron", "0 2 * * *", "Europe/Berlin", {"book": True})
    assert stored.next_at is not None
    assert "nightly Sales.CloseDay Database 0 2 * * * Europe/Berlin OK" in page_at(LIST).text()
    found = page_at(NIGHTLY, "admin")
    assert "Next ten times" in found.text()
    assert {f"{NIGHTLY}change/", f"{NIGHTLY}delete/", f"{NIGHTLY}run/", f"{NIGHTLY}disable/"} <= set(found.links)
    (name,) = page_at(f"{NIGHTLY}change/", "admin").find("input", name="name")
    assert (name["value"], "disabled" in name) == ("nightly", True)

    status, text = post(f"{NIGHTLY}change/", kind="interval", every_seconds="900", name="other", starts_at="2026-01-01T00:00:00")
    assert (status, "The schedule nightly is stored." in text) == (200, True)
    changed = row()
    assert (changed.kind, changed.cron, changed.every_seconds) == ("interval", "", 900)
    assert changed.starts_at == datetime(2025, 12, 31, 23, tzinfo=UTC), "in the zone of the schedule"
    (starts_at,) = page_at(f"{NIGHTLY}change/", "admin").find("input", name="starts_at")
    assert starts_at["value"] == "2026-01-01T00:00:00"
    assert "every 15 min" in page_at(LIST).text()

    assert "The record of its runs is deleted too." in page_at(f"{NIGHTLY}delete/", "admin").text()
    assert "The schedule nightly is deleted." in post(f"{NIGHTLY}delete/")[1]
    assert not Schedule.objects.exists()
    assert recorded() == [
        (action, "nightly (Sales.CloseDay)", "done") for action in ("create schedule", "change schedule", "delete schedule")
    ]


def test_change_of_another_operator_is_not_overwritten_unseen(installed: QueueDatabase) -> None:
    post(MAKE)
    (opened,) = page_at(f"{NIGHTLY}change/", "admin").find("input", name="version")
    version = {"version": str(opened["value"])}
    assert post(f"{NIGHTLY}change/", cron="0 3 * * *", **version)[0] == 200, "the other operator"

    status, text = post(f"{NIGHTLY}change/", button="preview", body="{}", **version)
    assert (status, "It was changed" in text) == (200, False)
    answer = client_of("admin").post(f"{NIGHTLY}change/", {**FIELDS, "body": "{}", "confirmed": "1", **version})
    shown = Markup(answer.content.decode())
    assert answer.status_code == 409
    assert "It was changed after you opened this page. Confirm again to replace these changes" in shown.text()
    assert (row().cron, row().body) == ("0 3 * * *", {"book": True})

    (now,) = shown.find("input", name="version")
    assert post(f"{NIGHTLY}change/", body="{}", version=str(now["value"]))[0] == 200
    assert (row().cron, row().body) == ("0 2 * * *", {})


@pytest.mark.parametrize("use_tz", [True, False])
def test_one_off_is_at_its_time_in_its_zone(installed: QueueDatabase, settings: Any, use_tz: bool) -> None:
    settings.USE_TZ = use_tz
    assert post(MAKE, kind="once", at="2096-07-01T12:00:00")[0] == 200
    assert (row().at, row().next_at) == (datetime(2096, 7, 1, 10, tzinfo=UTC),) * 2
    assert "once 2096-07-01 10:00:00" in page_at(LIST).text()
    (at,) = page_at(f"{NIGHTLY}change/", "admin").find("input", name="at")
    assert at["value"] == "2096-07-01T12:00:00"


def test_preview_shows_ten_times_and_stores_nothing(installed: QueueDatabase) -> None:
    year = datetime.now(UTC).year + 1
    # The clock of Berlin goes forward on the last Sunday of March, always between these days.
    status, text = post(MAKE, button="preview", cron="30 3 24-31 3 *", starts_at=f"{year}-03-24T00:00:00")
    assert (status, Schedule.objects.exists(), recorded()) == (200, False, [])
    assert f"{year}-03-24 03:30:00 CET (+0100) {year}-03-24 02:30:00" in text
    assert f"{year}-03-31 03:30:00 CEST (+0200) {year}-03-31 01:30:00" in text
    assert text.count(" (+0") == 10
    assert "nightly" in str(client_of("admin").post(MAKE, {**FIELDS, "preview": "1"}).content), "the form keeps its values"
    status, text = post(MAKE, button="preview", kind="once", at="2096-07-01T12:00:00")
    assert text.count(" (+0") == 1


@pytest.mark.parametrize(
    "fields", [{"kind": "interval", "every_seconds": "x"}, {"kind": "once", "at": "2027-03-28T02:30:00"}], ids=["interval", "once"]
)
def test_field_with_an_invalid_value_is_not_called_missing(sqlite_database: QueueDatabase, fields: dict[str, str]) -> None:
    install(sqlite_database)
    assert "This field is required." not in post(MAKE, button="preview", **fields)[1]


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"name": ""}, "This field is required."),
        ({"cron": ""}, "This field is required."),
        ({"cron": "0 25 * * *"}, "Expected 0 to 23 for the hour, not '25'."),
        ({"kind": "interval"}, "This field is required."),
        ({"kind": "interval", "every_seconds": "0"}, "Expected a number of seconds from 1 to 31622400."),
        ({"kind": "interval", "every_seconds": "x"}, "Enter a whole number."),
        ({"kind": "once", "at": "2001-01-01T00:00:00"}, "The schedule has no time in the future."),
        ({"kind": "once", "at": "yesterday"}, "Enter a valid date/time."),
        # This time does not exist in Berlin.
        ({"kind": "once", "at": "2027-03-28T02:30:00"}, "couldn’t be interpreted in time zone Europe/Berlin"),
        ({"kind": "never"}, "Select a valid choice."),
        ({"time_zone": "Europe/Atlantis"}, "There is no time zone Europe/Atlantis"),
        ({"starts_at": "2096-01-01T00:00:00", "ends_at": "2095-01-01T00:00:00"}, "The end is before the start."),
        ({"starts_at": "0001-01-01T00:00:00"}, "Ensure this value is greater than or equal to 0001-01-02"),
        (
            {"ends_at": "9999-12-31T23:59:59", "time_zone": "America/New_York"},
            "Ensure this value is less than or equal to 9999-12-30",
        ),
        ({"ends_at": "2001-01-01T00:00:00"}, "The schedule has no time in the future."),
        ({"body": "[1]"}, "Expected a JSON object"),
        ({"body": "{"}, "Enter a valid JSON."),
        ({"message_type": "Nobody.Knows"}, "No route leads to a queue for this type"),
        ({"message_type": "Sales.One;Sales.Two", "destination": "Sales"}, "'Sales.One;Sales.Two' names several types"),
        ({"name": "of the settings"}, "The settings have a schedule of this name."),
    ],
)
@pytest.mark.parametrize("button", ["confirmed", "preview"])
def test_wrong_form_names_the_mistake(sqlite_database: QueueDatabase, fields: dict[str, str], wanted: str, button: str) -> None:
    install(
        sqlite_database, ROUTES={"Sales.*": "Sales"}, SCHEDULES={"of the settings": {"CRON": "0 2 * * *", "SEND": "Sales.CloseDay"}}
    )
    status, text = post(MAKE, button=button, **fields)
    assert status == (400 if button == "confirmed" else 200)
    assert wanted in text
    assert not Schedule.objects.exists()


def test_nul_is_refused_by_the_form(installed: QueueDatabase) -> None:
    for name in ("name", "message_type", "destination", "cron"):
        status, text = post(MAKE, **{name: "a\0b"})
        assert (status, "Null characters are not allowed." in text) == (400, True), name


def test_name_is_unique(installed: QueueDatabase) -> None:
    post(MAKE)
    status, text = post(MAKE, message_type="Sales.Other")
    assert (status, "There is a schedule of this name." in text) == (400, True)


def test_schedule_of_the_settings_is_not_edited(installed: QueueDatabase) -> None:
    installed.configure(SCHEDULES={"nightly": {"CRON": "0 2 * * *", "SEND": "Sales.CloseDay"}})
    assert f"{NIGHTLY}change/" not in page_at(NIGHTLY, "admin").links
    for action in ("change", "delete"):
        assert "It is not defined in the database: change the settings." in page_at(f"{NIGHTLY}{action}/", "admin").text()
        assert post(f"{NIGHTLY}{action}/")[0] == 409


@pytest.mark.parametrize("address", [MAKE, f"{NIGHTLY}change/", f"{NIGHTLY}delete/"])
def test_denied_user_is_refused(installed: QueueDatabase, address: str) -> None:
    schedule("nightly", "Sales.CloseDay", cron="0 2 * * *")
    for kind in ("viewer", "reader", "writer"):
        assert client_of(kind).get(address).status_code == 403
        assert client_of(kind).post(address, {**FIELDS, "confirmed": "1"}).status_code == 403
        assert client_of(kind).post(address, {**FIELDS, "preview": "1"}).status_code == 403
    assert row().body is None
    assert [result for *_, result in recorded()] == ["denied"] * 3


def test_runs_show_their_outcome(installed: QueueDatabase) -> None:
    schedule("nightly", "Sales.CloseDay", every=60)
    assert "It has not sent a message yet." in page_at(NIGHTLY).text()
    (failure,) = fail(installed, [failed_row()])
    put(installed, HOUR, **{"NServiceBus.MessageId": "00000000-0000-0000-0000-00000000dead", "SqlQueue.Schedule": "nightly"})
    begin = datetime.now(UTC).replace(microsecond=0) - timedelta(days=1)
    for minute, message_id in enumerate(["gone", failure.message_id, "00000000-0000-0000-0000-00000000dead"]):
        at = begin + timedelta(minutes=minute)
        ScheduleTick.objects.create(
            schedule="nightly", message_type="Sales.CloseDay", tick=at, sent_at=at, message_id=message_id, endpoint="Sales",
            manual_run=message_id if message_id == "gone" else "",
        )  # fmt: skip
    Schedule.objects.update(next_at=begin + HOUR)
    assert Schedules(get_settings(), "Sales").send_due() == 1
    (sent,) = table(installed, "Sales").peek(10)
    found = page_at(NIGHTLY)
    outcomes = [word for word in found.text().split("Outcome")[1].split() if word in ("done", "failed", "delayed", "waiting")]
    assert outcomes == ["waiting", "delayed", "failed", "done"]
    assert "run manually" in found.text()
    (link,) = [each for each in found.links if f"id={last_runs(('nightly', 'Sales.CloseDay'))[0].message_id}" in each]
    assert f"/queue/Sales/{sent.row_version}/" in client_of("viewer").get(link).headers["Location"]
    (link,) = [each for each in found.links if each.endswith("id=gone")]
    assert "it was handled or deleted" in page_at(link).text()


def test_pages_take_few_statements(installed: QueueDatabase) -> None:
    for number in range(60):
        schedule(f"s{number}", "Sales.CloseDay", cron="0 2 * * *")
    schedule("nightly", "Sales.CloseDay", every=60)
    for number in range(30):
        at = datetime(2026, 1, 1, tzinfo=UTC) + number * HOUR
        ScheduleTick.objects.create(
            schedule="nightly", message_type="Sales.CloseDay", tick=at, sent_at=at, message_id=f"m-{number}", endpoint="Sales"
        )
    client = client_of("viewer")
    for address in (LIST, NIGHTLY):
        client.get(address)
        with CaptureQueriesContext(installed.connection) as queues, CaptureQueriesContext(connection) as managed:
            assert client.get(address).status_code == 200
        others = 0 if connection.alias == installed.alias else len(managed)
        assert len(queues) + others <= 15
    text = page_at(NIGHTLY).text()
    assert "m-29" in text
    assert "m-9" not in text.split(), "only the last twenty runs are shown"


def test_state_of_a_schedule_that_is_over_or_late(installed: QueueDatabase) -> None:
    instance()
    schedule("nightly", "Sales.CloseDay", at=datetime(2026, 1, 1, tzinfo=UTC))
    assert "Finished" in page_at(LIST).text()
    Schedule.objects.update(next_at=datetime(2026, 1, 1, tzinfo=UTC))
    assert "Late The message of 2026-01-01 00:00:00 was not sent" in page_at(LIST).text()
    overview = page_at("/admin/sqlqueue_app/dashboard/").text()
    assert "The recurring message nightly that was due at 2026-01-01" in overview


def test_list_is_exported(installed: QueueDatabase) -> None:
    schedule("nightly", "Sales.CloseDay", every=60)
    answer: Any = client_of("writer").get(f"{LIST}?format=json")
    (exported,) = json.loads(answer.getvalue())
    wanted = {"schedule": "nightly", "cron": None, "when": "every 60 s", "defined_in": "database", "in_settings": False}
    assert wanted.items() <= exported.items()
