"""Every page in a real browser: no complaint under a strict policy, no accessibility barrier, no page wider than a phone."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from urllib.parse import urljoin

import pytest
from playwright.sync_api import Page

from sqlqueue_app.models import ConversationEdge, FailureGroup, Instance, LakeBatch, QueueSample
from sqlqueue_app.status.samples import MINUTE
from sqlqueue_app.status.traffic import GROWN_IN
from tests.browser.conftest import Site
from tests.browser.filling import GROUP, ONE, PENDING, fill
from tests.support.databases import QueueDatabase
from tests.support.directories import ROOT
from tests.support.error_rows import failed
from tests.support.failing import fail
from tests.support.filling import ENDPOINTS, install, instance, message, table
from tests.support.pages import client_of
from tests.support.tables import execute

ADMIN = "/admin/sqlqueue_app/"
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
    "schedule/make/",
    "schedule/nightly/Sales.CloseDay/",
    "schedule/weekly report/Sales.Report/",
    "schedule/weekly report/Sales.Report/change/",
    "schedule/nightly/Sales.CloseDay/run/",
    "schedule/nightly/Sales.CloseDay/disable/",
    "schedule/nightly/Sales.CloseDay/message/",
    "taskresult/",
    f"taskresult/{ONE}/",
    "distributedtransaction/",
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
    "search/",
    "search/?q=order",
    "search/?q=nothing",
    "conversation/c-1/",
    "conversation/nothing/",
    "analytics/",
    "analytics/groups/",
    "analytics/map/",
    "analytics/usage/",
    "analytics/notable/",
    "lakesearch/",
    "lakesearch/?text=anything&period=all",
    "pipelinerun/",
    "notificationrule/",
    "notificationrule/1/",
    "notificationrule/1/edit/",
    "notificationrule/1/secret/",
    "notificationrule/1/test/",
    "notificationrule/make/",
    "notificationrule/deliveries/",
)
# Splits the pages: on a busy machine a page takes seconds, and a test has a limit of minutes.
PARTS = 4


@pytest.fixture
def filled(sqlite_database: QueueDatabase) -> QueueDatabase:
    fill(sqlite_database)
    return sqlite_database


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("phone", [False, True], ids=["desktop", "phone"])
def test_every_page_is_accessible_and_fits_the_screen(filled: QueueDatabase, site: Site, phone: bool, part: int) -> None:
    """On the desktop in light and dark colours."""
    window = site.window("superuser", phone=phone)
    barriers = {}
    for page in PAGES[part::PARTS]:
        window.emulate_media(color_scheme="light")
        window.goto(ADMIN + page)
        found = site.barriers(window)
        if not phone:
            found += barriers_of_dark_colours(window, site)
        # the page of a missing queue is a 404, which the browser logs
        site.complaints[:] = [each for each in site.complaints if "404" not in each]
        wider = window.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        if found or wider or site.complaints:
            barriers[page] = (found, wider, site.complaints.copy())
            site.complaints.clear()
    assert barriers == {}


def barriers_of_dark_colours(window: Page, site: Site) -> list[str]:
    """The findings of the rules about colours: a dark page differs from a light one only in its colours."""
    window.emulate_media(color_scheme="dark")
    # The admin changes the colours of links within 150 ms.
    window.evaluate("document.getAnimations().filter(each => each instanceof CSSTransition).forEach(each => each.finish())")
    assert window.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    return [f"dark: {each}" for each in site.barriers(window, runOnly=["color-contrast", "link-in-text-block"])]


@pytest.mark.parametrize("kind", ["reader", "writer", "admin"])
def test_every_link_leads_to_a_page(filled: QueueDatabase, site: Site, kind: str) -> None:
    window = site.window(kind, scripts=False)
    client = client_of(kind)
    dead = []
    statuses: dict[str, int] = {}
    notifications = ("notificationrule/", "notificationrule/1/", "notificationrule/deliveries/")
    for page in (*PAGES[:7], "endpoint/", "endpoint/Sales/", "conversation/", "conversation/c-1/", *notifications):
        window.goto(ADMIN + page)
        links = window.eval_on_selector_all("#content a[href]", "all => all.map(each => each.getAttribute('href'))")
        addresses = {urljoin(ADMIN + page, link) for link in links if not link.startswith("#")}
        # Many pages have the same links.
        statuses |= {address: client.get(address).status_code for address in sorted(addresses - statuses.keys())}
        dead += [(page, address) for address in sorted(addresses) if statuses[address] != 200]
    assert dead == []


def test_list_of_instances_fits_a_phone(filled: QueueDatabase, site: Site) -> None:
    window = site.window("superuser", phone=True)
    window.goto(f"{ADMIN}instance/")
    assert "ago" in (window.text_content("#result_list") or "")
    assert window.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0


def test_long_name_of_an_endpoint_keeps_the_state_of_its_instance_on_the_page(filled: QueueDatabase, site: Site) -> None:
    instance(endpoint="Company.With.A.Very.Long.Department.Name.Shipping.International.Express", pid=77, callback_queue=None)
    window = site.window("superuser")
    window.goto(f"{ADMIN}instance/")
    assert broken_words(window, "#result_list .sq-long") == []
    cells = window.eval_on_selector_all(
        "#result_list :is(.field-state, .field-heartbeat)", "all => all.map(each => each.getBoundingClientRect().right)"
    )
    page = window.eval_on_selector("#changelist .results", "each => each.getBoundingClientRect().right")
    assert cells
    assert max(cells) <= page


def test_map_is_readable_on_a_phone(filled: QueueDatabase, site: Site) -> None:
    """The CSS rules for phones do not disable the rules after them."""
    LakeBatch.objects.create(id=uuid.uuid4(), kind="audit", lake_id=uuid.uuid4(), committed_at=datetime.now(UTC))
    hour = datetime.fromtimestamp(datetime.now(UTC).timestamp() // 3_600 * 3_600, UTC)
    ConversationEdge.objects.create(sender="Web", receiver="Sales", message_type="A", seconds=3_600, at=hour, count=1)
    window = site.window("viewer", phone=True)
    window.goto(f"{ADMIN}analytics/map/")
    colour = window.eval_on_selector(".sq-map circle", "circle => getComputedStyle(circle).fill")
    assert colour == window.evaluate(
        "(() => { const box = document.createElement('p'); box.style.color = 'var(--darkened-bg)';"
        " document.querySelector('.sq').append(box); return getComputedStyle(box).color })()"
    )
    assert window.eval_on_selector(".sq-edge", "edge => getComputedStyle(edge).fill") == "none"
    assert window.is_visible("text=The diagram is wider than the page")


def broken_words(window: Page, selector: str) -> list[str]:
    """The words in these elements that continue on another line."""
    found: list[str] = window.evaluate(
        """(selector) => [...document.querySelectorAll(selector)].flatMap((each) => {
            const walker = document.createTreeWalker(each, NodeFilter.SHOW_TEXT), found = [];
            for (let node = walker.nextNode(); node; node = walker.nextNode()) {
                for (const word of node.data.matchAll(/[A-Za-z]{2,40}/g)) {
                    const range = document.createRange();
                    range.setStart(node, word.index);
                    range.setEnd(node, word.index + word[0].length);
                    if (range.getClientRects().length > 1) {
                        found.push(word[0]);
                    }
                }
            }
            return found;
        })""",
        selector,
    )
    return found


def test_words_in_tables_are_not_broken(filled: QueueDatabase, site: Site) -> None:
    window = site.window("viewer")
    for page in ("failedmessage/", "failedmessage/messages/", "event/"):
        window.goto(ADMIN + page)
        assert broken_words(window, ".sq-table .sq-long") == [], page


def test_names_of_ordinary_length_do_not_widen_tables(filled: QueueDatabase, site: Site) -> None:
    """Names of .NET break after their dots, so the columns after them fit on the page."""
    namespace = "Contoso.Fulfilment.Shipping"
    row = failed(
        "m-9",
        NServiceBus_EnclosedMessageTypes=f"{namespace}.Messages.Commands.ScheduleShipmentWithCarrier, Contoso.Messages",
        NServiceBus_ExceptionInfo_ExceptionType=f"{namespace}.Infrastructure.Carriers.CarrierUnavailableException",
        NServiceBus_ProcessingEndpoint=f"{namespace}.International.Dispatching",
    )
    fail(filled, [row])
    window = site.window("superuser")
    window.goto(f"{ADMIN}failedmessage/messages/")
    (table_width, page_width) = window.eval_on_selector(
        ".sq-scroll:has(> table:has-text('ScheduleShipment'))", "each => [each.scrollWidth, each.clientWidth]"
    )
    assert table_width <= page_width
    assert broken_words(window, ".sq-table .sq-long") == []


def test_long_names_fit_a_phone(filled: QueueDatabase, site: Site) -> None:
    """A name has the full width below its label, and a title breaks only between words."""
    name = "project.shop.handlers.shipping.OutOfStock"
    trace = f"{name}: none\n   at project.shop.handlers.shipping.ship_order() in /shop.py:line 7\n"
    row = failed("m-9", NServiceBus_ExceptionInfo_ExceptionType=name, NServiceBus_ExceptionInfo_StackTrace=trace)
    (found,) = fail(filled, [row])
    window = site.window("writer", phone=True)
    for page in (f"failedmessage/group/{found.exception_group}/", "failedmessage/messages/"):
        window.goto(ADMIN + page)
        assert window.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0, page
        assert broken_words(window, "#content h1") == [], page
        shown = window.locator("#content-main td").get_by_text(name, exact=True)
        assert shown.evaluate("each => each.getClientRects().length") == 1, page


def test_long_name_of_a_queue_fits_a_phone(filled: QueueDatabase, site: Site) -> None:
    """It fits in the breadcrumbs, in the title, and in the label of the text that confirms an action."""
    name = "Company.With.A.Very.Long.Department.Name.Shipping.International.Express"
    execute(filled, f'CREATE TABLE "{name}" AS SELECT * FROM "Sales"')
    window = site.window("superuser", phone=True)
    for page in (f"queue/{name}/", f"queue/{name}/purge/"):
        window.goto(ADMIN + page)
        assert name in (window.text_content("#content") or "")
        assert window.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0, page
    assert broken_words(window, ".breadcrumbs") == []


def test_long_names_without_dots_fit_the_page(filled: QueueDatabase, site: Site) -> None:
    """No page scrolls sideways on a phone, and a desktop shows the state of a queue beside its name and endpoint."""
    name = "CompanyWithAVeryLongDepartmentNameForShippingInternationalExpressParcel"
    install(filled, ENDPOINTS={**ENDPOINTS, name: {"CALLBACKS": False}})
    process = instance(endpoint=name, pid=77, callback_queue=None)
    (found,) = fail(filled, [failed("m-9", NServiceBus_FailedQ=name)])
    window = site.window("superuser", phone=True)
    pages = ("queue/", "endpoint/", f"endpoint/{name}/", f"failedmessage/retry/?ids={found.pk}", f"instance/{process.pk}/change/")
    for page in pages:
        window.goto(ADMIN + page)
        assert name in (window.text_content("#content") or ""), page
        assert window.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0, page
    window = site.window("superuser")
    window.goto(f"{ADMIN}queue/")
    state = window.locator(f'tr:has(th:has-text("{name}")) td[data-label="State"] .sq-state').first
    assert state.evaluate("each => each.getBoundingClientRect().right <= each.closest('.sq-scroll').getBoundingClientRect().right")


def test_threads_of_an_instance_are_not_indented(filled: QueueDatabase, site: Site) -> None:
    """The style sheet of the admin indents lists; in a form, by a fifth of the page width."""
    window = site.window("superuser")
    process = Instance.objects.filter(name="here").get()
    for page in ("instance/", f"instance/{process.pk}/change/"):
        window.goto(ADMIN + page)
        indents = window.locator("#content ul.sq-plain").evaluate_all("all => all.map(each => getComputedStyle(each).marginLeft)")
        assert set(indents) == {"0px"}, page


def test_note_of_a_user_with_a_long_name_fits_a_phone(filled: QueueDatabase, site: Site) -> None:
    FailureGroup.objects.filter(pk=GROUP).update(noted_by="anna" * 35)
    window = site.window("writer", phone=True)
    window.goto(f"{ADMIN}failedmessage/group/{GROUP}/")
    assert "annaanna" in (window.text_content("#content") or "")
    assert window.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0


# Phones, the widths with the narrowest content beside the sidebar of the admin, and a desktop.
WIDTHS = (320, 375, 767, 768, 820, 870, 1024, 1280)


def test_navigation_and_its_menus_fit_the_screen(filled: QueueDatabase, site: Site) -> None:
    window = site.window("superuser")
    window.goto(f"{ADMIN}dashboard/")
    wider = []
    for width in WIDTHS:
        window.set_viewport_size({"width": width, "height": 800})
        menus = window.query_selector_all(".sq-tabs summary")
        assert len(menus) == 5
        for menu in menus:
            menu.click()
            left, right = window.eval_on_selector(
                ".sq-tabs details[open] ul", "each => (({left, right}) => [left, right])(each.getBoundingClientRect())"
            )
            page = window.evaluate("document.documentElement.scrollWidth")
            if not (0 <= left < right <= width) or page > width:
                wider.append((width, menu.inner_text(), left, right, page))
    assert wider == []


def grow(database: QueueDatabase) -> None:
    """The queue Sales has grown by a thousand messages in ten minutes."""
    before = MINUTE.start_of(datetime.now(UTC) - GROWN_IN)
    for minute in range(-1, 3):  # up to 2: time passes before the page is loaded
        at = before + timedelta(minutes=minute)
        QueueSample.objects.create(queue="Sales", taken_at=at, seconds=MINUTE.seconds, waiting=0, most_waiting=0)
    table(database, "Sales").send(message() for _ in range(1_000))


def test_growth_of_a_queue_fits_a_phone(filled: QueueDatabase, site: Site) -> None:
    grow(filled)
    window = site.window("viewer", phone=True)
    window.goto(f"{ADMIN}dashboard/")
    growth = window.locator("#content-main td").get_by_text("in 10 min")
    assert growth.evaluate("each => each.getBoundingClientRect().right <= each.closest('tr').getBoundingClientRect().right")


def test_growth_of_a_queue_does_not_hide_its_failed_messages(filled: QueueDatabase, site: Site) -> None:
    grow(filled)
    window = site.window("viewer")
    window.goto(f"{ADMIN}dashboard/")
    assert window.locator("#content-main td").get_by_text("in 10 min").count() == 1
    width, shown = window.eval_on_selector(".sq-scroll:has(> .sq-traffic)", "each => [each.scrollWidth, each.clientWidth]")
    assert width <= shown


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


def test_all_controls_are_reached_by_keyboard(filled: QueueDatabase, site: Site) -> None:
    window = site.window("admin")
    window.goto(f"{ADMIN}queue/Sales/")
    reached = set()
    for _ in range(120):
        window.keyboard.press("Tab")
        reached.add(window.evaluate("document.activeElement.textContent.trim()"))
    assert {"Purge the queue", "Save all messages as a file", "5 minutes", "As a table", "#1"} <= reached


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("system", ["light", "dark"])
def test_colours_are_readable_in_a_theme_without_the_variables_of_the_admin(site: Site, theme: str, system: str) -> None:
    css = (ROOT / "sqlqueue_app/static/sqlqueue_app/dashboard.css").read_text(encoding="utf-8")
    window = site.window("superuser", dark=system == "dark")
    window.set_content(
        f"""<html class="{theme}" lang="en"><title>x</title><style>{css}</style><body class="sq-bare" style="background: Canvas">
        <main class="sq"><h1>x</h1><p class="sq-quiet">quiet</p><button class="sq-button" disabled>off</button></main>"""
    )

    assert site.barriers(window, runOnly=["color-contrast"]) == []
    button = "getComputedStyle(document.querySelector('button'))"
    assert window.evaluate(f"{button}.backgroundColor === getComputedStyle(document.body).backgroundColor")
    line = window.evaluate("getComputedStyle(document.querySelector('.sq')).getPropertyValue('--sq-line-1')")
    assert line == {"light": "#1f6f8b", "dark": "#6fc3df"}[theme]
