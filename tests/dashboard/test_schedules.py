"""The page of recurring messages: their state, running one, enabling and disabling."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from sqlqueue_app.conf import get_settings
from sqlqueue_app.messages.headers import read_headers
from sqlqueue_app.models import OperatorAction, Schedule, ScheduleTick
from sqlqueue_app.status.schedules import Schedules
from sqlqueue_app.tables.connections import database_now
from tests.support.databases import QueueDatabase
from tests.support.failing import fail, failed_row
from tests.support.filling import HOSTILE, install, instance, message, table
from tests.support.pages import Markup, client_of, page_at

ADMIN = "/admin/sqlqueue_app/"
LIST = f"{ADMIN}schedule/"
NIGHTLY = f"{LIST}nightly/Sales.CloseDay/"
CONFIRMED = {"confirmed": "1"}
ENTRY = {"CRON": "0 2 * * *", "SEND": "Sales.CloseDay"}
HOUR = timedelta(hours=1)


def page(address: str = LIST, kind: str = "viewer", status: int = 200) -> Markup:
    return page_at(address, kind, status)


def post(address: str, kind: str = "admin") -> tuple[int, str]:
    answer = client_of(kind).post(address, CONFIRMED, follow=True)
    return answer.status_code, Markup(answer.content.decode()).text()


def recorded() -> list[tuple[str, str, str, str]]:
    return [(each.user_name, each.action, each.target, each.result) for each in OperatorAction.objects.order_by("id")]


def installed(database: QueueDatabase, **entries: Any) -> None:
    install(database, ROUTES={"Sales.*": "Sales"}, SCHEDULES=entries or {"nightly": ENTRY})


def ticked(database: QueueDatabase, age: timedelta, *, name: str = "nightly", **fields: Any) -> ScheduleTick:
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    known = {"message_type": "Sales.CloseDay", "sent_at": now - age, "message_id": str(uuid.uuid4()), "endpoint": "Sales"}
    return ScheduleTick.objects.using(database.alias).create(**{"schedule": name, "tick": now - age, **known, **fields})


def test_page_shows_the_state_of_each_schedule(queue_database: QueueDatabase, settings: Any) -> None:
    settings.TIME_ZONE = "UTC"
    installed(queue_database, nightly=ENTRY, often={"CRON": "* * * * *", "SEND": "Sales.Often"}, new={**ENTRY, "SEND": "Sales.New"})
    sent = ticked(queue_database, timedelta())
    ticked(queue_database, HOUR, name="often", message_type="Sales.Often")
    ticked(queue_database, HOUR, name="theirs", message_type="Their.Message", endpoint="There")
    found = page()
    text = found.text()
    assert "nightly Sales.CloseDay Settings 0 2 * * * OK" in text
    following = [each for each in found.find("time") if each["datetime"] and "T02:00:00.000Z" in each["datetime"]]
    assert len(following) >= 3
    assert f"by Sales {sent.message_id}" in text
    assert "often Sales.Often Settings * * * * * Late The message of " in text
    assert "new Sales.New Settings 0 2 * * * New No worker has seen it yet" in text
    assert "theirs Their.Message Elsewhere – Not in the settings" in text
    assert found.inline == []
    overview = page(f"{ADMIN}dashboard/")
    assert "The recurring message often that was due at " in overview.text()
    assert LIST in overview.links


def test_schedule_is_run_manually(queue_database: QueueDatabase) -> None:
    installed(queue_database)
    worker = Schedules(get_settings(), "Sales")
    assert worker.send_due() == 0
    assert "No worker is alive: the message is sent when one starts." in page(f"{NIGHTLY}run/", "admin").text()
    instance()
    assert "No worker is alive" not in page(f"{NIGHTLY}run/", "admin").text()
    status, text = post(f"{NIGHTLY}run/")
    assert status == 200
    assert "a worker sends it within 10 seconds" in text
    assert "A run was requested 0 s ago" in text or "A run was requested 1 s ago" in text
    assert f"{NIGHTLY}cancel-run/" in page(kind="admin").links
    assert post(f"{NIGHTLY}run/")[0] == 409, "it is already requested"
    assert worker.send_due() == 1
    assert "run manually:" in page().text()
    (row,) = table(queue_database, "Sales").peek(10)
    (run,) = ScheduleTick.objects.using(queue_database.alias).exclude(manual_run="")
    answer = client_of("viewer").get(f"{NIGHTLY}message/?id={run.message_id}")
    assert answer.headers["Location"] == f"{ADMIN}queue/Sales/{row.row_version}/"
    assert [each[1:] for each in recorded()] == [
        ("run schedule", "nightly (Sales.CloseDay)", "done"),
        ("run schedule", "nightly (Sales.CloseDay)", "failed"),
    ]


def test_schedule_is_disabled_and_enabled(queue_database: QueueDatabase) -> None:
    installed(queue_database)
    ticked(queue_database, timedelta(days=2))
    assert "Late" in page().text()
    assert post(f"{NIGHTLY}disable/")[0] == 200
    text = page().text()
    assert "Disabled disabled by admin, " in text
    assert "Late" not in text
    assert post(f"{NIGHTLY}disable/")[0] == 409
    assert Schedules(get_settings(), "Sales").send_due() == 0
    assert post(f"{NIGHTLY}enable/")[0] == 200
    assert "OK enabled by admin, " in page().text()
    assert Schedules(get_settings(), "Sales").send_due() == 0, "the missed message is not sent later"
    assert [each[:2] for each in recorded() if each[3] == "done"] == [("admin", "disable schedule"), ("admin", "enable schedule")]


@pytest.mark.parametrize("action", ["run", "cancel-run", "enable", "disable"])
def test_denied_user_is_refused(queue_database: QueueDatabase, action: str) -> None:
    installed(queue_database)
    for kind in ("viewer", "writer"):
        assert client_of(kind).get(f"{NIGHTLY}{action}/").status_code == 403
        assert client_of(kind).post(f"{NIGHTLY}{action}/", CONFIRMED).status_code == 403
        assert client_of(kind).get(f"{LIST}no/such/{action}/").status_code == 403
    assert client_of("admin").get(f"{LIST}no/such/{action}/").status_code == 404
    assert [each[3] for each in recorded()] == ["denied", "denied"]
    assert not Schedule.objects.using(queue_database.alias).exists()
    assert "You need the permission" in page().text()


def test_failing_schedule_shows_the_reason(queue_database: QueueDatabase) -> None:
    installed(queue_database)
    queue_database.configure(ROUTES={"Sales.*": "Nowhere"})
    ticked(queue_database, HOUR * 30)
    Schedules(get_settings(), "Sales").send_due()
    text = page().text()
    assert "nightly Sales.CloseDay Settings 0 2 * * * Failing" in text
    assert "Nowhere" in text
    overview = page(f"{ADMIN}dashboard/").text()
    assert "The recurring message nightly that was due at " in overview
    assert "Nowhere" in overview


def test_last_message_is_found_in_every_place(queue_database: QueueDatabase) -> None:
    installed(queue_database)
    install(queue_database, ROUTES={"Sales.*": "Sales"}, ENDPOINTS={"Sales": {"AUDIT_QUEUE": "audit", "CALLBACKS": False}})
    (failure,) = fail(queue_database, [failed_row()])
    ticked(queue_database, HOUR * 3, message_id=failure.message_id)
    assert f"/failedmessage/{failure.pk}/" in client_of("viewer").get(f"{NIGHTLY}message/").headers["Location"]
    sent = message()
    table(queue_database, "Sales").send([message(), sent])
    ticked(queue_database, HOUR * 2, message_id=str(sent.id))
    location = client_of("viewer").get(f"{NIGHTLY}message/").headers["Location"]
    assert location.startswith(f"{ADMIN}queue/Sales/")
    assert sent.id in client_of("viewer").get(location).content.decode()
    handled = message()
    table(queue_database, "audit").send([message(), handled, message()])
    ticked(queue_database, timedelta(minutes=90), message_id=str(handled.id), message_type="Sales.CloseDay")
    assert client_of("viewer").get(f"{NIGHTLY}message/").status_code == 200, "it has another id in its headers"
    ticked(queue_database, timedelta(minutes=80), message_id=read_headers(handled.headers)["NServiceBus.MessageId"])
    location = client_of("viewer").get(f"{NIGHTLY}message/").headers["Location"]
    assert location.startswith(f"{ADMIN}queue/audit/")
    gone = ticked(queue_database, HOUR)
    assert "it was handled or deleted" in page(f"{NIGHTLY}message/").text()
    (link,) = [each for each in page().links if each.startswith(f"{NIGHTLY}message/")]
    assert f"{ADMIN}search/?q={gone.message_id}" in page(link).links, "the archive may have it"
    page(f"{LIST}no/such/message/", status=404)


def test_list_is_exported(queue_database: QueueDatabase) -> None:
    installed(queue_database)
    ticked(queue_database, timedelta())
    answer: Any = client_of("writer").get(f"{LIST}?format=json")
    (row,) = json.loads(answer.getvalue())
    assert (row["schedule"], row["cron"], row["in_settings"], row["enabled"]) == ("nightly", "0 2 * * *", True, True)


@pytest.mark.parametrize("name", ["A/b", "it's", HOSTILE, "שלום", "a_2Fb", "message", "."])
def test_schedule_of_any_name_can_be_disabled(sqlite_database: QueueDatabase, name: str) -> None:
    installed(sqlite_database, **{name: ENTRY})
    found = page(kind="admin")
    assert name in found.text()
    (link,) = [link for link in found.links if link.endswith("/disable/")]
    assert post(link)[0] == 200
    assert Schedule.objects.get().name == name


def test_many_schedules_take_few_statements(postgresql_database: QueueDatabase) -> None:
    installed(postgresql_database, **{f"s{number}": {**ENTRY, "SEND": f"Sales.S{number}"} for number in range(60)})
    for number in range(60):
        ticked(postgresql_database, HOUR, name=f"s{number}", message_type=f"Sales.S{number}")
    client = client_of("viewer")
    client.get(LIST)
    with CaptureQueriesContext(postgresql_database.connection) as queues, CaptureQueriesContext(connection) as managed:
        assert client.get(LIST).status_code == 200
    assert len(queues) + len(managed) <= 15


def test_page_without_the_tables_names_the_remedy(sqlite_database: QueueDatabase) -> None:
    installed(sqlite_database)
    with sqlite_database.connection.cursor() as cursor:
        cursor.execute("ALTER TABLE sqlqueue_app_schedule RENAME TO elsewhere")
    try:
        assert "python manage.py migrate" in page().text()
    finally:
        with sqlite_database.connection.cursor() as cursor:
            cursor.execute("ALTER TABLE elsewhere RENAME TO sqlqueue_app_schedule")
    assert database_now(sqlite_database.alias) <= timezone.now()
