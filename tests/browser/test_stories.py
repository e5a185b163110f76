"""Tasks of operators, each from the overview with a limited number of clicks."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import Page

from sqlqueue_app.conf import get_settings
from sqlqueue_app.models import FailedMessage, FailureStatus, Instance, Operation, OperatorAction
from sqlqueue_app.monitoring.notifying import NotificationSender
from sqlqueue_app.receiving.stopping import StopSignal
from tests.browser.conftest import Site
from tests.support.databases import QueueDatabase
from tests.support.error_rows import FAILED_AT, acknowledgement, failed
from tests.support.failing import fail
from tests.support.filling import install, instance, message, table
from tests.support.mail import mail_server

OVERVIEW = "/admin/sqlqueue_app/dashboard/"
SECONDS = 60_000  # the longest wait, in milliseconds


def test_operator_retries_the_messages_of_a_failing_handler(sqlite_database: QueueDatabase, site: Site) -> None:
    """One click to the group, one to retry; after the confirmation a page counts the outcomes of the messages."""
    install(sqlite_database)
    instance()
    found = fail(sqlite_database, [failed(f"m-{number}") for number in range(3)])
    window = site.window("writer")
    window.goto(OVERVIEW)
    alert = window.locator(".sq-alerts li", has_text="OutOfStock")
    assert alert.count() == 1
    alert.get_by_role("link").first.click()
    window.wait_for_url("**/failedmessage/**")
    content = window.locator("#content-main").inner_text()
    assert "shop.OutOfStock: shop.handlers.place()" in content
    facts = dict(zip(window.locator("dl.sq-facts dt").all_inner_texts(), window.locator("dl.sq-facts dd").all(), strict=True))
    assert facts["Messages"].inner_text() == "3"
    assert [facts[name].locator("time").count() > 0 for name in ("First failure", "Last failure")] == [True, True]
    assert facts["Last 24 hours"].get_by_role("img").count() == 1
    assert facts["Latest exception"].inner_text() == "shop.OutOfStock: no more A-1"
    window.get_by_role("link", name="Retry", exact=True).first.click()
    with window.expect_navigation():
        window.locator("form.sq-form button[name=confirmed]").click()
    operation = Operation.objects.get()
    assert window.url.endswith(f"/operation/{operation.pk}/")
    tiles = window.locator(".sq-tiles li")
    assert [each.split() for each in tiles.all_inner_texts()] == [["Pending", "3"], ["Handled", "0"], ["Failed", "again", "0"]]

    table(sqlite_database, "error").send([acknowledgement(found[0].pk), failed("m-1", at=FAILED_AT + timedelta(hours=1))])

    window.wait_for_selector(".sq-tiles data[value='2'], .sq-tiles li:nth-child(2) data[value='1']", timeout=SECONDS)
    assert [each.split()[-1] for each in tiles.all_inner_texts()] == ["1", "1", "1"]
    tiles.nth(2).get_by_role("link").click()
    window.wait_for_url("**/failedmessage/messages/**")
    assert window.locator("#content-main tbody tr").count() == 1
    assert site.complaints == []


def test_overview_explains_a_queue_behind_a_paused_endpoint(sqlite_database: QueueDatabase, site: Site) -> None:
    """The overview shows the endpoint, the reason, the time and the number of waiting messages without a click."""
    install(sqlite_database)
    instance()
    table(sqlite_database, "Sales").send(message() for _ in range(20))
    window = site.window("writer")
    window.goto(OVERVIEW)
    window.get_by_role("link", name="Sales", exact=True).first.click()
    window.get_by_role("link", name="Pause", exact=True).first.click()
    with window.expect_navigation():
        window.locator("form.sq-form button[name=confirmed]").click()
    # As a process does that follows.
    Instance.objects.update(paused_since=datetime.now(UTC), threads={"Sales": 0, "Sales.here": 1})
    window.goto(OVERVIEW)
    alert = window.locator(".sq-alerts li", has_text="Paused")
    assert alert.count() == 1
    text = alert.inner_text()
    assert "Sales" in text
    assert "writer" in text
    assert "20" in text
    assert alert.locator("time").count() == 1
    grades = {
        each: window.locator(".sq-tile", has_text=each).locator("strong").get_attribute("class") for each in ("Waiting", "Checks")
    }
    assert grades == {"Waiting": "sq-warning", "Checks": "sq-warning"}, "tiles must show the severity of the alert"


def test_audit_log_leads_to_the_operation(sqlite_database: QueueDatabase, site: Site) -> None:
    """The audit log is in the navigation and links to the result of an operation."""
    install(sqlite_database)
    found = fail(sqlite_database, [failed("m-1"), failed("m-2")])
    FailedMessage.objects.update(status=FailureStatus.UNRESOLVED)
    window = site.window("writer")
    window.goto(f"/admin/sqlqueue_app/failedmessage/archive/?ids={found[0].pk}&ids={found[1].pk}")
    with window.expect_navigation():
        window.locator("form.sq-form button[name=confirmed]").click()
    window.goto(OVERVIEW)
    window.get_by_text("Settings & log", exact=True).click()
    window.get_by_role("link", name="Audit log", exact=True).last.click()
    row = window.locator("#content-main tbody tr").first
    assert "writer" in row.inner_text()
    row.get_by_role("link").click()
    window.wait_for_url("**/operation/**")
    assert "completed" in window.locator("#content-main").inner_text()


def test_edited_message_is_resolved_when_its_copy_is_handled(sqlite_database: QueueDatabase, site: Site) -> None:
    """The page of the message links to its copy and shows that it was handled."""
    install(sqlite_database)
    (found,) = fail(sqlite_database, [failed("m-1", NServiceBus_FailedQ="Sales")])
    window = site.window("admin")
    page = f"/admin/sqlqueue_app/failedmessage/{found.pk}/"
    window.goto(page)
    window.get_by_role("link", name="Edit and retry").click()
    for _page in range(2):
        with window.expect_navigation():
            window.locator("form.sq-form button[name=confirmed]").click()
    window.goto(page)
    steps = window.locator("section[aria-labelledby=sq-life] tbody tr")
    assert [each.locator("td").first.inner_text() for each in steps.all()][:2] == ["Retry issued", "Edited and retried"]
    copy = steps.nth(1).get_by_role("link")
    message_id = copy.inner_text()
    copy.click()
    assert message_id in window.locator("#content-main tbody tr").first.inner_text()

    table(sqlite_database, "Sales").purge()
    table(sqlite_database, "error").send([acknowledgement(found.pk)])
    window.goto(page)
    assert steps.first.locator("td").first.inner_text() == "Resolved"
    assert site.complaints == []


@pytest.mark.parametrize("phone", [False, True])
@pytest.mark.parametrize("scripts", [True, False])
def test_callback_queues_of_dead_instances_are_removed_together(
    sqlite_database: QueueDatabase, site: Site, *, scripts: bool, phone: bool
) -> None:
    """Two clicks and one confirmation remove the chosen queues; one is left out, and the audit log names the others."""
    install(sqlite_database)
    for number in (1, 2, 3):
        instance(name=f"gone-{number}", pid=number, callback_queue=f"Sales.gone-{number}", silent=timedelta(minutes=5))
    window = site.window("admin", scripts=scripts, phone=phone)
    window.goto(OVERVIEW)
    window.locator(".sq-tile", has_text="Waiting").get_by_role("link").click()
    window.get_by_role("link", name="Remove the queues of dead instances").click()
    boxes = window.locator("input[name=queues]")
    assert [each.is_checked() for each in boxes.all()] == [True] * boxes.count()
    assert boxes.count() >= 3
    window.uncheck("input[name=queues][value='Sales.gone-3']")
    with window.expect_navigation():
        window.locator("form.sq-form button[name=confirmed]").click()
    assert "callback queues removed." in window.inner_text("body")
    assert set(Instance.objects.filter(name__startswith="gone").values_list("name", flat=True)) == {"gone-3"}
    recorded = OperatorAction.objects.get()
    assert "Sales.gone-1, Sales.gone-2" in recorded.target
    assert "Sales.gone-3" not in recorded.target
    assert site.complaints == []


def test_tile_of_expired_messages_opens_their_queues(sqlite_database: QueueDatabase, site: Site) -> None:
    install(sqlite_database)
    table(sqlite_database, "Sales.Priority").send([message(lifetime_ms=-1_000), message(lifetime_ms=-1_000)])
    window = site.window("admin")
    window.goto(OVERVIEW)
    window.locator(".sq-tile", has_text="Expired").get_by_role("link").click()
    queues = window.locator("#content-main tbody tr")
    assert queues.count() == 1
    queues.get_by_role("link", name="Sales.Priority").click()
    window.get_by_role("link", name="Purge the expired messages").click()
    with window.expect_navigation():
        window.locator("form.sq-form button[name=confirmed]").click()
    assert "2 messages deleted." in window.inner_text("body")


def test_paused_endpoint_is_shown_until_resumed(sqlite_database: QueueDatabase, site: Site) -> None:
    """The pause is shown on the overview, the endpoint and the queue; after resuming only in the events."""
    install(sqlite_database)
    instance()
    window = site.window("writer")

    def press(name: str) -> None:
        window.goto(OVERVIEW)
        window.get_by_role("link", name="Sales", exact=True).first.click()
        window.get_by_role("link", name=name, exact=True).first.click()
        with window.expect_navigation():
            window.locator("form.sq-form button[name=confirmed]").click()

    press("Pause")
    # As a process does that follows.
    Instance.objects.update(paused_since=datetime.now(UTC), threads={"Sales": 0, "Sales.here": 1})
    table(sqlite_database, "Sales").send([message()])
    for page in (
        OVERVIEW,
        "/admin/sqlqueue_app/endpoint/",
        "/admin/sqlqueue_app/endpoint/Sales/",
        "/admin/sqlqueue_app/queue/Sales/",
    ):
        window.goto(page)
        content = " ".join(window.locator("#content-main").inner_text().split())
        assert re.search(r"Paused by writer(; messages waiting: 1\.| since \S)", content), page
    press("Resume")
    Instance.objects.update(paused_since=None, threads={"Sales": 2, "Sales.here": 1})
    window.goto(OVERVIEW)
    assert "Paused by" not in window.locator("#content-main").inner_text()
    window.get_by_text("Settings & log", exact=True).click()
    window.get_by_role("link", name="Events", exact=True).last.click()
    events = window.locator("#content-main tbody tr").all_inner_texts()
    assert ["Sales" in each for each in events[:2]] == [True, True]
    assert site.complaints == []


def test_refused_mail_is_shown_until_a_delivery_succeeds(sqlite_database: QueueDatabase, site: Site) -> None:
    """A failed attempt is not shown as delivered: the page shows the answer of the server and the last delivery."""
    install(sqlite_database)
    instance()
    window = site.window("admin")
    with mail_server() as received:
        window.goto(OVERVIEW)
        window.get_by_text("Settings & log", exact=True).click()
        window.get_by_role("link", name="Notifications", exact=True).last.click()
        window.get_by_role("link", name="Create a rule").click()
        window.get_by_label("Name").fill("long queues")
        window.get_by_label("Condition").select_option("queue_longer")
        window.get_by_label("Alert above").fill("1000")
        window.get_by_label("Recipients").fill("nobody@example.com")
        _confirm(window)
        assert _delivered_by_a_test(window) == "never"
        deliveries = window.locator("#content-main tbody").inner_text()
        assert "no such mailbox" in deliveries
        window.get_by_role("link", name="Change", exact=True).click()
        window.get_by_label("Recipients").fill("ops@example.com")
        _confirm(window)
        assert _delivered_by_a_test(window) != "never"
    assert [each.rcpt_tos for each in received] == [["ops@example.com"]]
    assert site.complaints == []


def _confirm(window: Page) -> None:
    with window.expect_navigation():
        window.locator("form.sq-form button[name=confirmed]").click()


def _delivered_by_a_test(window: Page) -> str:
    """Send a test of the rule on the page; returns the time of the last delivery as the page then shows it."""
    window.get_by_role("link", name="Send a test").click()
    _confirm(window)
    NotificationSender(get_settings()).send_due(StopSignal())
    window.reload()
    return window.locator("dt", has_text="Last delivered").locator("+ dd").inner_text()
