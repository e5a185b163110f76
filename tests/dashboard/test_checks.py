"""The page of checks: failures first with their remedy; muting, unmuting, requesting a run; the overview."""

from __future__ import annotations

import csv
import io
import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test.utils import CaptureQueriesContext

from sqlqueue_app.models import ActionResult, CheckResult, Claim, OperatorAction
from sqlqueue_app.monitoring.check_results import claim_of_custom, is_muted
from sqlqueue_app.monitoring.checks import BUILT_IN, MOVER
from tests.support.databases import QueueDatabase
from tests.support.delayed_rows import put
from tests.support.filling import HOSTILE, install, instance, row, table
from tests.support.pages import Markup, client_of, page_at

ADMIN = "/admin/sqlqueue_app/"
CHECKS = f"{ADMIN}checkresult/"
HOUR = timedelta(hours=1)


def result(name: str = "payment gateway", **fields: Any) -> CheckResult:
    now = datetime.now(UTC)
    return CheckResult.objects.create(**{"name": name, "since": now, "checked_at": now, **fields})


def failing(name: str = "payment gateway", **fields: Any) -> CheckResult:
    return result(name, failing=True, **{"details": {"text": "no answer"}, **fields})


def page(kind: str = "viewer", query: str = "") -> Markup:
    return page_at(f"{CHECKS}?{query}", kind)


def test_failing_checks_come_first_with_their_remedy(queue_database: QueueDatabase) -> None:
    install(queue_database)
    instance()
    now = datetime.now(UTC)
    result("aaa passes")
    result("stale one", checked_at=now - 1.5 * HOUR)
    failing("aab muted", muted_until=now + HOUR, muted_by="anna")
    failing("sqlqueue.purging", subject="Elsewhere", details={"limit": 1_234, "minutes": 15})
    failing("zzz fails")

    found = page()

    text = found.text()
    sentence = "More than 1,234 expired messages have been waiting for 15 minutes. The logs of the workers"
    places = [text.find(each) for each in (sentence, "zzz fails", "aab muted", "stale one", "aaa passes")]
    assert -1 not in places, text
    assert places == sorted(places)
    assert "by anna" in text
    assert re.search("It has not run for 1 h (29|30) min: its result may be outdated.", text)
    assert "No worker is alive" not in text
    assert found.inline == []


def test_failure_is_shown_with_its_severity(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    failing("sqlqueue.purging", subject="Elsewhere", details={"limit": 1_234, "minutes": 15})
    failing("zzz of the project")
    failing("zzz muted", muted_until=datetime.now(UTC) + HOUR)
    html = client_of("viewer").get(CHECKS).content.decode()

    def grade(key: str) -> str:
        row = html.partition(f'data-key="check {key}"')[2].partition("</tr>")[0]
        return re.findall(r'class="sq-state sq-(\w+)"', row)[0]

    assert grade("sqlqueue.purging Elsewhere") == "warning"
    assert grade("zzz of the project ") == "error"
    assert grade("zzz muted ") == "info"


def test_problem_explained_by_another_check_is_not_shown_as_passing(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    instance(silent=timedelta(minutes=2))
    put(sqlite_database, -HOUR)
    result(MOVER.name, subject="Sales")
    result(MOVER.name, subject="Billing")

    found = page()

    assert not found.find("tr", **{"data-key": f"check {MOVER.name} Sales"})
    assert found.find("tr", **{"data-key": f"check {MOVER.name} Billing"})
    assert "Sales" in found.text()


def test_page_without_results_or_workers_shows_a_hint(queue_database: QueueDatabase) -> None:
    install(queue_database)
    assert "No check has run yet" in page().text()
    assert "No worker is alive: no checks run" in page().text()
    failing(muted_until=datetime.now(UTC) - HOUR)
    assert "Fails, muted" not in page().text()


def test_begin_that_nobody_has_stored_is_not_known(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database, ENDPOINTS={"Sales": {}, "Billing": {"CALLBACKS": False}})
    instance(callback_queue=None)
    with sqlite_database.connection.cursor() as cursor:
        cursor.execute('DROP TABLE "Billing"')
    result("sqlqueue.tables", since=datetime.now(UTC) - HOUR)
    html = client_of("viewer").get(CHECKS).content.decode()
    cells = html.partition('data-key="check sqlqueue.tables &quot;Billing&quot;')[2].partition("</tr>")[0]
    since = cells.partition('data-label="Since"')[2].partition("</td>")[0]
    assert "not known" in since
    assert "<time" not in since


def test_current_findings_are_those_of_the_overview(queue_database: QueueDatabase) -> None:
    install(queue_database)
    sales = table(queue_database, "Sales")
    sales.send([row(body=b"") for _ in range(10_001)])
    expected = "No live worker; messages waiting: ≈ 10,001"
    assert expected in Markup(client_of("viewer").get(f"{ADMIN}dashboard/").content.decode()).text()
    assert expected in page().text()
    sales.purge()
    instance(silent=timedelta(minutes=5))
    assert re.search(r"Sales on here \(4711\) .*No heartbeat for 5 min( \d+ s)?: it ended without signing off\.", page().text())


def test_rows_of_any_content_are_shown(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    for number, name in enumerate((*BUILT_IN, HOSTILE)):
        for details in ({}, [HOSTILE], {"text": HOSTILE, "sql": HOSTILE, "seconds": HOSTILE}, {"text": None}):
            failing(name, subject=f"{HOSTILE} {number} {details}", details=details)
    for path in (CHECKS, f"{ADMIN}dashboard/"):
        answer = client_of("viewer").get(path)
        assert answer.status_code == 200
        assert HOSTILE not in answer.content.decode()
    assert len(json.loads(client_of("writer").get(f"{CHECKS}?format=json").getvalue())) == CheckResult.objects.count()


def test_check_is_muted_and_unmuted(queue_database: QueueDatabase) -> None:
    install(queue_database)
    row = failing()
    client = client_of("admin")
    assert "1 week" in client.get(f"{CHECKS}{row.pk}/mute/").content.decode()
    before = datetime.now(UTC)

    assert client.post(f"{CHECKS}{row.pk}/mute/", {"confirmed": "1", "hours": "24"}).status_code == 302

    row.refresh_from_db()
    assert row.muted_by == "admin"
    assert row.muted_until is not None
    assert abs(row.muted_until - before - timedelta(days=1)) < timedelta(minutes=5)
    assert "Fails, muted" in page().text()
    assert client.post(f"{CHECKS}{row.pk}/unmute/", {"confirmed": "1"}).status_code == 302
    row.refresh_from_db()
    assert not is_muted(row, datetime.now(UTC))
    assert row.muted_by == ""
    recorded = OperatorAction.objects.order_by("id").values_list("user_name", "action", "target", "result")
    assert list(recorded) == [
        ("admin", "mute_check", "payment gateway", ActionResult.DONE),
        ("admin", "unmute_check", "payment gateway", ActionResult.DONE),
    ]


@pytest.mark.parametrize("hours", ["", "0", "-1", "9999999999999", "x", "٣"])
def test_invalid_mute_time_is_refused(sqlite_database: QueueDatabase, hours: str) -> None:
    install(sqlite_database)
    row = failing()

    answer = client_of("admin").post(f"{CHECKS}{row.pk}/mute/", {"confirmed": "1", "hours": hours})

    assert answer.status_code == 400
    expected = "Select a valid choice." if hours else "This field is required."
    assert expected in answer.content.decode()
    assert CheckResult.objects.get().muted_until is None


@pytest.mark.parametrize("action", ["mute", "unmute", "run"])
def test_denied_user_sees_the_reason(sqlite_database: QueueDatabase, action: str) -> None:
    install(sqlite_database)
    row = failing(muted_until=datetime.now(UTC) + HOUR)
    assert client_of("writer").post(f"{CHECKS}{row.pk}/{action}/", {"confirmed": "1"}).status_code == 403
    assert OperatorAction.objects.get().result == ActionResult.DENIED
    found = page("writer")
    assert "You need the permission “Can manage notes, schedules, subscriptions and notifications”." in found.text()
    assert CheckResult.objects.get().muted_until is not None
    assert client_of("writer").get(f"{CHECKS}77/{action}/").status_code == 403
    for key in ("77", "9" * 30):
        assert client_of("admin").get(f"{CHECKS}{key}/{action}/").status_code == 404


def test_run_of_a_check_is_requested(queue_database: QueueDatabase) -> None:
    install(queue_database)
    row, own, clocks = failing(), failing("sqlqueue.mover", subject="Sales"), failing("sqlqueue.clocks", subject="mill")
    later = datetime.now(UTC) + HOUR
    for name in (claim_of_custom("payment gateway"), "checks every 60 s abc", "checks every 20 s abc", "another"):
        Claim.objects.create(name=name, until=later)
    client = client_of("admin")
    assert client.post(f"{CHECKS}{row.pk}/run/", {"confirmed": "1"}).status_code == 409, "no worker is alive"
    instance()

    assert client.post(f"{CHECKS}{row.pk}/run/", {"confirmed": "1"}).status_code == 302
    assert client.post(f"{CHECKS}{own.pk}/run/", {"confirmed": "1"}).status_code == 302
    assert client.post(f"{CHECKS}{clocks.pk}/run/", {"confirmed": "1"}).status_code == 409

    assert set(Claim.objects.values_list("name", flat=True)) == {"checks every 20 s abc", "another"}


def test_list_is_exported(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    failing("=1+1", subject="٣")
    (row,) = csv.DictReader(io.StringIO(client_of("writer").get(f"{CHECKS}?format=csv").getvalue().decode("utf-8-sig")))
    (entry,) = json.loads(client_of("writer").get(f"{CHECKS}?format=json").getvalue())

    assert (row["check"], row["subject"], row["text"]) == ("'=1+1", "٣", "no answer")
    assert (entry["failing"], entry["stale"], entry["every_seconds"]) == (True, False, 60)


def test_overview_shows_failing_unmuted_checks(queue_database: QueueDatabase) -> None:
    install(queue_database)
    instance()
    failing()
    failing("quiet", muted_until=datetime.now(UTC) + HOUR)
    failing("sqlqueue.clocks", subject="mill", details={"seconds": 9})
    failing("sqlqueue.instances", subject="said elsewhere")

    text = Markup(client_of("viewer").get(f"{ADMIN}dashboard/").content.decode()).text()
    first = text.partition("Needs attention")[2].partition(" Now ")[0]

    assert "Check payment gateway : no answer" in first
    assert first.index("payment gateway") < first.index("The clock of the machine mill differs")
    assert "quiet" not in first
    assert "said elsewhere" not in first
    assert "Checks 2 failing and not muted" in text, "the number of alerts"


def test_many_results_take_few_statements(postgresql_database: QueueDatabase) -> None:
    # With the error queue and the delayed tables these are 199 tables.
    endpoints = {f"Endpoint{number}": {"CALLBACKS": False} for number in range(99)}
    install(postgresql_database, ENDPOINTS=endpoints, SCHEDULES={"hourly": {"CRON": "0 * * * *", "SEND": "Shop.Count"}})
    instance(endpoint="Endpoint1", callback_queue=None, threads={"Endpoint1": 1})
    for number in range(400):
        failing("sqlqueue.tables", subject=f"queue {number}")
    client = client_of("admin")
    for path, most in ((CHECKS, 11), (f"{ADMIN}dashboard/", 13)):
        client.get(path)
        with CaptureQueriesContext(postgresql_database.connection) as own:
            assert client.get(path).status_code == 200
        assert len(own) <= most, [each["sql"][:80] for each in own.captured_queries]
    assert "Showing the first 300" in page("admin").text()
