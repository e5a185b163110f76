"""A page that refreshes itself keeps the state of its user."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone
from playwright.sync_api import Page, Request
from pytest_django import Settings

from sqlqueue_app.models import FailedMessage, FailureStatus, Operation, OperationState
from tests.browser.conftest import Site
from tests.support.databases import QueueDatabase
from tests.support.failing import fail, failed_row
from tests.support.filling import install, instance, message, table

SALES = "/admin/sqlqueue_app/queue/Sales/"
SECONDS = 60_000  # the longest wait, in milliseconds


@pytest.fixture
def filled(sqlite_database: QueueDatabase) -> QueueDatabase:
    install(sqlite_database)
    instance()
    table(sqlite_database, "Sales").send(message() for _ in range(20))
    return sqlite_database


def quick(window: Page) -> None:
    """Shorten all timeouts of the page to a tenth: it refreshes every second."""
    window.add_init_script(
        "const wait = window.setTimeout; window.setTimeout = (work, ms, ...more) => wait(work, (ms ?? 0) / 10, ...more);"
    )


def test_new_messages_appear_and_the_input_stays(filled: QueueDatabase, site: Site) -> None:
    window = site.window("viewer")
    quick(window)
    window.goto(f"{SALES}#sq-messages")
    window.fill("#sq-header", "typed and not sent")
    window.focus("#sq-at")
    window.evaluate("window.scrollTo(0, 300)")
    before = window.evaluate("window.scrollY")
    table(filled, "Sales").send([message()])
    window.wait_for_selector('[data-key="message 21"]', timeout=SECONDS)
    assert window.input_value("#sq-header") == "typed and not sent"
    assert window.evaluate("document.activeElement.id") == "sq-at"
    assert window.evaluate("window.scrollY") == before
    assert "Up to date as of" in window.inner_text(".sq-live")
    assert site.complaints == []


def test_badges_of_the_navigation_change(filled: QueueDatabase, site: Site) -> None:
    window = site.window("viewer")
    quick(window)
    window.goto(SALES)
    assert window.query_selector('.sq-badge[title*="failure"]') is None
    window.click("summary:has-text('Failures')")
    fail(filled, [failed_row(), failed_row()])
    window.wait_for_selector('.sq-badge[title="2 unresolved failures"]', timeout=SECONDS)
    assert "Failures 2" in window.inner_text("details[open] > summary")
    FailedMessage.objects.update(status=FailureStatus.ARCHIVED)
    window.wait_for_selector('.sq-badge[title*="failure"]', state="detached", timeout=SECONDS)
    assert site.complaints == []


def test_deleted_messages_disappear(filled: QueueDatabase, site: Site) -> None:
    window = site.window("viewer")
    quick(window)
    window.goto(SALES)
    assert window.query_selector('[data-key="message 3"]') is not None
    with filled.connection.cursor() as cursor:
        cursor.execute(f"DELETE FROM {table(filled, 'Sales').qualified} WHERE RowVersion = 3")
    window.wait_for_selector('[data-key="message 3"]', state="detached", timeout=SECONDS)
    assert window.query_selector('[data-key="message 4"]') is not None


def test_processes_appear_in_the_list_of_instances_and_the_search_stays(filled: QueueDatabase, site: Site) -> None:
    window = site.window("superuser")
    quick(window)
    window.goto("/admin/sqlqueue_app/instance/")
    window.fill("#searchbar", "typed and not sent")
    instance(name="there", pid=2, callback_queue=None)
    window.wait_for_selector("#result_list >> text=there", timeout=SECONDS)
    assert window.input_value("#searchbar") == "typed and not sent"
    assert "Up to date as of" in window.inner_text(".sq-live")
    assert site.complaints == []


def test_unchanged_page_is_answered_with_304(filled: QueueDatabase, site: Site) -> None:
    window = site.window("viewer")
    quick(window)
    table(filled, "Sales").purge()
    window.goto("/admin/sqlqueue_app/queue/Sales.Priority/")
    answers: list[int] = []
    window.on("response", lambda answer: answers.append(answer.status))
    while len(answers) < 3:
        window.wait_for_event("response", timeout=SECONDS)
    assert answers[1:3] == [304, 304]


def test_hidden_tab_sends_no_requests(filled: QueueDatabase, site: Site) -> None:
    window = site.window("viewer")
    quick(window)
    window.goto(SALES)
    window.wait_for_event("response", timeout=SECONDS)
    window.evaluate(
        "Object.defineProperty(document, 'hidden', {value: true, configurable: true});"
        " document.dispatchEvent(new Event('visibilitychange'))"
    )
    requests: list[Request] = []
    window.on("request", lambda request: requests.append(request))
    window.wait_for_timeout(2500)
    assert requests == []
    window.evaluate(
        "Object.defineProperty(document, 'hidden', {value: false, configurable: true});"
        " document.dispatchEvent(new Event('visibilitychange'))"
    )
    window.wait_for_event("response", timeout=SECONDS)


def test_updates_can_be_paused_and_resumed(filled: QueueDatabase, site: Site) -> None:
    window = site.window("viewer")
    quick(window)
    window.goto(SALES)
    window.click("text=Pause updates")
    assert f"Updates are paused. Up to date as of {made_at(window)}" in window.inner_text(".sq-live")
    table(filled, "Sales").send([message()])
    window.click("text=Resume updates")
    window.wait_for_selector('[data-key="message 21"]', timeout=SECONDS)


def made_at(window: Page) -> str:
    """The time of the data of the page, on the clock of the tests."""
    made = float(window.get_attribute("#content-main", "data-live-made") or 0)
    return f"{timezone.localtime(datetime.fromtimestamp(made, UTC)):%H:%M:%S}"


def test_failed_update_is_a_warning_with_the_age_of_the_page(filled: QueueDatabase, site: Site) -> None:
    window = site.window("viewer")
    quick(window)
    window.goto(SALES)
    window.route(f"**{SALES}", lambda route: route.abort())
    window.wait_for_selector(".sq-live .sq-warning", timeout=SECONDS)
    shown = window.inner_text(".sq-live .sq-warning")
    assert shown == f"The page could not be updated. Retrying. Up to date as of {made_at(window)}"
    window.unroute_all()
    window.wait_for_selector(".sq-live .sq-warning", state="detached", timeout=SECONDS)
    assert "could not be updated" not in window.inner_text(".sq-live")


def test_signed_out_user_is_asked_to_reload(filled: QueueDatabase, site: Site) -> None:
    window = site.window("viewer")
    quick(window)
    window.goto(SALES)
    window.context.clear_cookies()
    window.wait_for_selector(".sq-live .sq-warning", timeout=SECONDS)
    shown = window.inner_text(".sq-live .sq-warning")
    assert shown == f"You are signed out. Reload the page to sign in. Up to date as of {made_at(window)}"
    assert window.query_selector('[data-key="message 20"]') is not None
    assert site.complaints == []


def test_operation_page_updates_until_the_operation_ends(filled: QueueDatabase, site: Site) -> None:
    now = datetime.now(UTC)
    operation = Operation.objects.create(
        id=uuid.uuid4(), kind="retry", state=OperationState.RUNNING, total=100, done=10, requested_at=now, started_at=now
    )
    window = site.window("viewer")
    quick(window)
    window.goto(f"/admin/sqlqueue_app/operation/{operation.pk}/")
    Operation.objects.filter(pk=operation.pk).update(done=60)
    window.wait_for_selector("data[value='60']", timeout=SECONDS)
    Operation.objects.filter(pk=operation.pk).update(done=100, state=OperationState.COMPLETED, finished_at=datetime.now(UTC))
    window.wait_for_selector("#content-main:not([data-live])", timeout=SECONDS)
    assert window.query_selector(".sq-live") is None
    requests: list[Request] = []
    window.on("request", lambda request: requests.append(request))
    window.wait_for_timeout(2500)
    assert requests == []
    assert site.complaints == []


def test_status_line_uses_the_time_zone_of_the_page(filled: QueueDatabase, site: Site, settings: Settings) -> None:
    settings.TIME_ZONE = "Asia/Kolkata"
    window = site.window("viewer")
    quick(window)
    window.goto(SALES)
    window.wait_for_selector("text=Up to date as of", timeout=SECONDS)
    shown = window.inner_text(".sq-live").split("as of")[1].split()[0]
    made = datetime.fromtimestamp(float(window.get_attribute("#content-main", "data-live-made") or 0), UTC)
    assert shown == f"{made + timedelta(hours=5, minutes=30):%H:%M:%S}"
    assert "Times in Asia/Kolkata" in window.inner_text("#container")
