"""Every page in a real browser: no complaint under a strict policy, nothing that keeps anybody out, no page wider than a phone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from urllib.parse import urljoin

import pytest

from sqlqueue_app.conf import get_settings
from sqlqueue_app.models import (
    CheckResult,
    EndpointSample,
    FailedAttempt,
    FailedMessage,
    FailureGroup,
    FailureStatus,
    NotificationRule,
    QueueSample,
    ScheduleTick,
)
from sqlqueue_app.operations.actions import Actor, record_action
from sqlqueue_app.operations.events import EventKind, tell_event
from sqlqueue_app.operations.failure_groups import deterministic_guid
from sqlqueue_app.operations.failure_index import catch_up
from sqlqueue_app.operations.minimums import set_minimum
from sqlqueue_app.operations.notifications.evaluation import new_delivery
from sqlqueue_app.operations.notifications.webhooks import new_secret
from sqlqueue_app.operations.schedule_state import request_run, set_enabled
from sqlqueue_app.tables.chosen_rows import remove_rows
from tests.browser.conftest import Site
from tests.dashboard.pages import client_of
from tests.operations.delayed_rows import put
from tests.operations.error_rows import failed
from tests.operations.filling import install, instance, message, row, subscribe, table
from tests.operations.talks import sent
from tests.support.databases import QueueDatabase

ADMIN = "/admin/sqlqueue_app/"
ONE, PENDING = deterministic_guid("m-1", "Sales"), deterministic_guid("m-2", "Sales")
GROUP = deterministic_guid("Message Type", "Shop.PlaceOrder")
PAGES = (
    "dashboard/",
    "queue/",
    "queue/Sales/",
    "queue/Sales/?header=Tenant",
    "queue/Sales/1/",
    "queue/Sales/2/",
    "queue/Sales/purge/",
    "queue/Sales/1/move/",
    "queue/Sales.Priority/",
    "queue/nothing/",
    "endpoint/",
    "endpoint/Sales/",
    "endpoint/Sales/pause/",
    "endpoint/Sales/minimum/",
    "endpoint/nothing/",
    "delayedmessage/",
    "delayedmessage/Sales.Delayed/",
    "delayedmessage/Sales.Delayed/1/",
    "delayedmessage/Sales.Delayed/deliver/?ids=1&ids=2",
    "delayedmessage/Sales.Delayed/cancel/?ids=1",
    "subscription/",
    "subscription/?orphans=1&q=x",
    "subscription/Sales.OrderPlaced/Sales/unsubscribe/",
    "schedule/",
    "schedule/nightly/Sales.CloseDay/run/",
    "schedule/nightly/Sales.CloseDay/disable/",
    "schedule/nightly/Sales.CloseDay/message/",
    "operation/",
    "operatoraction/",
    "event/",
    "checkresult/",
    "checkresult/1/mute/",
    "event/?subject=nothing",
    "failedmessage/",
    "failedmessage/messages/",
    "failedmessage/messages/?q=status:odd",
    "failedmessage/pending/",
    "failedmessage/unreadable/",
    f"failedmessage/{ONE}/",
    f"failedmessage/group/{GROUP}/",
    f"failedmessage/group/{GROUP}/note/",
    f"failedmessage/retry/?ids={ONE}",
    f"failedmessage/{PENDING}/",
    "conversation/",
    "conversation/?id=nothing",
    "conversation/c-1/",
    "conversation/nothing/",
    "notificationrule/",
    "notificationrule/1/",
    "notificationrule/1/edit/",
    "notificationrule/1/secret/",
    "notificationrule/1/test/",
    "notificationrule/make/",
    "notificationrule/deliveries/",
)
FAILED = {
    "NServiceBus.FailedQ": "Sales",
    "NServiceBus.ExceptionInfo.ExceptionType": "shop.OutOfStock",
    "NServiceBus.ExceptionInfo.StackTrace": "   at shop.place() in /app/shop.py:line 4\n" * 30,
}


@pytest.fixture
def filled(sqlite_database: QueueDatabase) -> QueueDatabase:
    nightly = {"CRON": "0 2 * * *", "SEND": "Sales.CloseDay"}
    install(sqlite_database, SCHEDULES={"nightly": nightly, "a schedule with a long name": {**nightly, "SEND": "Sales.Other"}})
    instance()
    instance(name="there", host="there", callback_queue="Sales.here-2", silent=timedelta(hours=1))
    table(sqlite_database, "Sales").send([message(headers=FAILED), row("null", b"\x00"), *(message() for _ in range(30))])
    now = datetime.now(UTC).replace(microsecond=0)
    for number in range(60):
        QueueSample.objects.create(
            queue="Sales", taken_at=now - timedelta(seconds=10 * number), seconds=10, waiting=number, most_waiting=number,
            head_age_seconds=number, expired=number // 2, written=1000 - number,
        )  # fmt: skip
        EndpointSample.objects.create(
            endpoint="Sales", instance="here", message_type="Shop.PlaceOrder", taken_at=now - timedelta(seconds=10 * number),
            seconds=10, handled=number, processing_seconds=1, processing_max=1, critical_measured=1, critical_seconds=-1,
            critical_max=-1, failures=1,
        )  # fmt: skip
    table(sqlite_database, "error").send([failed(), failed("m-2"), row("no json", b"x")])
    table(sqlite_database, "Sales.Priority").send(
        [sent("late", "m-1", by="Sales", intent="Publish"), sent("self", "late", by="Sales")]
    )
    catch_up(get_settings(), limit=10, now=now)
    FailureGroup.objects.filter(pk=GROUP).update(note="known", noted_by="anna", noted_at=now)
    remove_rows(table(sqlite_database, "error"), [FailedMessage.objects.get(pk=PENDING).row_version or 0])
    FailedAttempt.objects.filter(failure=PENDING).update(row_version=None)
    FailedMessage.objects.filter(pk=PENDING).update(status=FailureStatus.RETRY_ISSUED, row_version=None, retried_to="Sales")
    record_action(Actor("anna"), "purge", "Sales")
    ticked = {"message_type": "Sales.CloseDay", "tick": now - timedelta(days=2), "sent_at": now, "endpoint": "Sales"}
    ScheduleTick.objects.create(schedule="nightly", message_id=str(ONE), **ticked)
    ScheduleTick.objects.create(schedule="theirs", message_id=str(ONE), **ticked)
    set_enabled("theirs", "Sales.CloseDay", enabled=False, actor=Actor("anna"))
    request_run("nightly", "Sales.CloseDay")
    _notifications(now)
    subscribe(sqlite_database, "Sales", "Sales.OrderPlaced")
    set_minimum("Sales", 3, actor=Actor("anna"))
    subscribe(sqlite_database, "An.Endpoint.With.A.Long.Name.That.Is.Gone", "Sales.OrderPlaced", "Nowhere.With.A.Long.Name@here")
    tell_event(EventKind.QUEUE_PURGED, "Sales", {"count": 7})
    put(sqlite_database, timedelta(hours=1), **{"NServiceBus.IsSagaTimeoutMessage": "True"})
    put(sqlite_database, -timedelta(hours=1), to="A.Queue.That.Does.Not.Exist.And.Has.A.Very.Long.Name@nowhere")
    check = {"failing": True, "since": now, "checked_at": now}
    CheckResult.objects.create(id=1, name="payment gateway", details={"text": "x" * 300}, **check)
    CheckResult.objects.create(name="sqlqueue.tables", subject="Sales", details={"sql": "x" * 300}, **check)
    return sqlite_database


def _notifications(now: datetime) -> None:
    """A rule that has told something, not all of which went well."""
    values = {"name": "long", "kind": "queue_longer", "threshold": 5, "channel": "webhook", "target": "https://hooks.example.com/"}
    rule = NotificationRule.objects.create(
        pk=1, secret=new_secret(), raised={"Sales": {}}, notified_at=now, changed_at=now, **values
    )
    changes = [{"change": "raised", "subject": name, "value": 9, "threshold": 5, "at": now.isoformat()} for name in ("A", "B")]
    for state, told in (("sent", changes[:1]), ("waiting", []), ("failed", changes)):
        delivery = new_delivery(rule, {"changes": told}, now, is_test=not told)
        delivery.state, delivery.error = state, "" if state == "sent" else "HTTP 500 " + "x" * 200
        delivery.save(force_insert=True)


@pytest.mark.parametrize("look", ["light", "dark", "phone"])
def test_every_page_is_open_to_everybody(filled: QueueDatabase, site: Site, look: str) -> None:
    window = site.window("superuser", phone=look == "phone", dark=look == "dark")
    barriers = {}
    for page in PAGES:
        window.goto(ADMIN + page)
        found = site.barriers(window)
        # the page for a queue that there is not is a 404, of which the browser tells
        site.complaints[:] = [each for each in site.complaints if "404" not in each]
        wider = window.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        if found or wider or site.complaints:
            barriers[page] = (found, wider, site.complaints.copy())
            site.complaints.clear()
    assert barriers == {}


@pytest.mark.parametrize("kind", ["reader", "writer", "admin"])
def test_every_link_of_a_page_leads_to_a_page(filled: QueueDatabase, site: Site, kind: str) -> None:
    window = site.window(kind, scripts=False)
    client = client_of(kind)
    dead = []
    notifications = ("notificationrule/", "notificationrule/1/", "notificationrule/deliveries/")
    for page in (*PAGES[:7], "endpoint/", "endpoint/Sales/", "conversation/", "conversation/c-1/", *notifications):
        window.goto(ADMIN + page)
        links = [link.get_attribute("href") or "" for link in window.query_selector_all("#content a[href]")]
        addresses = {urljoin(ADMIN + page, link) for link in links if not link.startswith("#")}
        dead += [(page, address) for address in sorted(addresses) if client.get(address).status_code != 200]
    assert dead == []


def test_a_purge_works_without_scripts(filled: QueueDatabase, site: Site) -> None:
    window = site.window("admin", scripts=False)
    window.goto(f"{ADMIN}queue/Sales/")
    window.click("text=Purge the queue")
    window.fill("#sq-typed", "Sales")
    window.click("text=Delete all messages")
    assert "32 messages were deleted." in window.inner_text("body")
    assert table(filled, "Sales").depth().waiting == 0


def test_messages_of_a_diagram_are_links_in_their_order(filled: QueueDatabase, site: Site) -> None:
    window = site.window("reader")
    window.goto(f"{ADMIN}conversation/c-1/")
    nodes = window.query_selector_all("svg.sq-flow a")
    words = [str(each.get_attribute("aria-label")) for each in nodes]
    nodes[0].focus()
    reached = []
    for _ in words:
        reached.append(window.evaluate("document.activeElement.getAttribute('aria-label')"))
        window.keyboard.press("Tab")
    assert len(words) == 4
    assert reached == words
    window.query_selector_all("svg.sq-sequence a")[words.index(next(each for each in words if "Late" in each))].focus()
    window.keyboard.press("Enter")
    window.wait_for_url(f"**{ADMIN}queue/Sales.Priority/1/")


def test_everything_is_reached_by_the_keyboard(filled: QueueDatabase, site: Site) -> None:
    window = site.window("admin")
    window.goto(f"{ADMIN}queue/Sales/")
    reached = set()
    for _ in range(120):
        window.keyboard.press("Tab")
        reached.add(window.evaluate("document.activeElement.textContent.trim()"))
    assert {"Purge the queue", "Save all messages as a file", "5 minutes", "As a table", "#1"} <= reached


def test_a_rule_is_made_and_tested_without_scripts(filled: QueueDatabase, site: Site) -> None:
    window = site.window("admin", scripts=False)
    window.goto(f"{ADMIN}notificationrule/")
    window.click("text=Make a rule")
    window.fill("#sq-name", "old messages")
    window.select_option("#sq-kind", "queue_older")
    window.fill("#sq-threshold", "90")
    window.fill("#sq-target", "ops@example.com")
    window.click("text=Make the rule")
    assert "The rule is made." in window.inner_text("body")
    window.click("text=Send a test")
    window.click("text=Send the test")
    assert "The test waits in the list below" in window.inner_text("body") or "A worker sends the test" in window.inner_text("body")
    assert NotificationRule.objects.get(name="old messages").threshold == 90
    window.click("text=Delete")
    window.click("text=Delete the rule")
    assert not NotificationRule.objects.filter(name="old messages").exists()
