"""Values of charts by pointer and keyboard, at any width and during refreshes of the page."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import Page
from pytest_django import Settings

from sqlqueue_app.models import QueueSample
from tests.browser.conftest import Site
from tests.support.databases import QueueDatabase
from tests.support.filling import install, instance
from tests.support.pages import Markup, client_of

SALES = "/admin/sqlqueue_app/queue/Sales/"
PLOT = "figure.sq-chart >> nth=0 >> svg[data-plot]"


@pytest.fixture
def sampled(sqlite_database: QueueDatabase) -> QueueDatabase:
    """A queue that grew by one message every ten seconds for five minutes, with a live worker."""
    install(sqlite_database)
    instance()
    now = datetime.fromtimestamp(datetime.now(UTC).timestamp() // 10 * 10, UTC)
    for ago in range(31):
        taken_at, waiting = now - timedelta(seconds=10 * ago), 3_000 - ago
        QueueSample.objects.create(queue="Sales", taken_at=taken_at, seconds=10, waiting=waiting, most_waiting=waiting)
    return sqlite_database


def reading(window: Page) -> list[str]:
    return [each.inner_text() for each in window.query_selector_all(".sq-reading:not([hidden]) p")]


@pytest.mark.parametrize("phone", [False, True])
def test_pointer_and_keys_show_the_same_values(sampled: QueueDatabase, site: Site, phone: bool) -> None:
    window = site.window("viewer", phone=phone)
    window.goto(f"{SALES}?period=1h")
    plot = window.locator(PLOT)
    assert plot.get_attribute("role") == "slider"
    assert plot.get_attribute("aria-label") == "Waiting"
    assert (plot.get_attribute("aria-valuetext") or "").endswith("messages: 3,000")
    assert reading(window) == []

    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    assert box is not None
    # Inside the plot, to the right of its last point.
    window.mouse.move(box["x"] + box["width"] - 3, box["y"] + box["height"] / 2)
    time, *lines = reading(window)
    assert lines == ["messages: 3,000"]
    shown = window.locator(".sq-reading").bounding_box()
    assert shown is not None
    assert 0 <= shown["x"] <= window.evaluate("document.documentElement.clientWidth") - shown["width"]
    window.mouse.move(box["x"] + 1, 1)
    assert reading(window) == []

    plot.focus()
    assert reading(window) == [time, "messages: 3,000"]
    for _ in range(3):
        window.keyboard.press("ArrowLeft")
    assert reading(window)[1] == "messages: 2,997"
    assert plot.get_attribute("aria-valuetext") == ", ".join(reading(window))
    assert window.eval_on_selector(f"{PLOT} >> .sq-cursor", "path => path.getAttribute('d')").startswith("M4")
    window.keyboard.press("Home")
    assert reading(window)[1] == "messages: 2,970"
    window.keyboard.press("End")
    assert reading(window)[1] == "messages: 3,000"
    window.keyboard.press("Escape")
    assert reading(window) == []
    assert site.complaints == []


def test_labels_of_the_scale_are_beside_the_plot_in_arabic(sampled: QueueDatabase, site: Site, settings: Settings) -> None:
    settings.LANGUAGE_CODE = "ar"
    window = site.window("viewer")
    window.goto(SALES)

    assert window.locator("html").get_attribute("dir") == "rtl"
    labels = "texts => texts.map(text => [text.textContent, text.getBBox().x + text.getBBox().width])"
    ends = dict(window.eval_on_selector_all(f"{PLOT} >> [text-anchor=end]", labels))
    assert len(ends) == 3
    assert all(end <= 0 for end in ends.values()), ends


def test_refresh_keeps_the_cursor_and_the_focus(sampled: QueueDatabase, site: Site) -> None:
    window = site.window("viewer")
    window.add_init_script(
        "const wait = window.setTimeout; window.setTimeout = (work, ms, ...more) => wait(work, (ms ?? 0) / 10, ...more);"
    )
    window.goto(f"{SALES}?period=1h")
    window.focus(PLOT)
    window.keyboard.press("ArrowLeft")
    before = reading(window)
    QueueSample.objects.filter(waiting=3_000).update(waiting=7_000, most_waiting=7_000)
    window.wait_for_selector("text=messages: 7,000", timeout=60_000, state="attached")
    assert reading(window) == before
    assert window.evaluate("document.activeElement.getAttribute('role')") == "slider"
    window.keyboard.press("End")
    assert reading(window)[1] == "messages: 7,000"


def test_table_has_the_values_without_scripts(sampled: QueueDatabase, site: Site) -> None:
    window = site.window("viewer", scripts=False)
    window.goto(f"{SALES}?period=1h")
    window.click("text=As a table")
    assert window.locator("figure.sq-chart table tbody tr").first.inner_text().split("\t")[1].strip() == "3,000"
    assert window.locator(PLOT).get_attribute("tabindex") is None


@pytest.mark.parametrize("phone", [False, True])
def test_chart_labels_are_not_cut(sampled: QueueDatabase, site: Site, phone: bool) -> None:
    QueueSample.objects.update(waiting=123_456_789_012, most_waiting=123_456_789_012)
    window = site.window("viewer", phone=phone)
    for period in ("5m", "1h", "7d"):
        window.goto(f"{SALES}?period={period}")
        outside = window.evaluate(
            """[...document.querySelectorAll('figure.sq-chart > svg[data-plot]')].flatMap((svg) => {
                const frame = svg.getBoundingClientRect();
                return [...svg.querySelectorAll('text')].filter((text) => {
                    const box = text.getBoundingClientRect();
                    return box.left < frame.left - 1 || box.right > frame.right + 1 || box.bottom > frame.bottom + 1;
                }).map((text) => text.textContent);
            })"""
        )
        assert outside == []


def test_stale_chart_shows_the_time_of_its_last_sample(sampled: QueueDatabase) -> None:
    for sample in QueueSample.objects.all():
        QueueSample.objects.filter(pk=sample.pk).update(taken_at=sample.taken_at - timedelta(minutes=20))
    text = Markup(client_of("viewer").get(f"{SALES}?period=1h").content.decode()).text()
    assert "No samples since" in text
    assert "messages: last 3,000" in text
    assert "messages: now" not in text


@pytest.mark.parametrize("phone", [False, True])
def test_row_of_sparklines_has_one_cursor(sampled: QueueDatabase, site: Site, phone: bool) -> None:
    window = site.window("viewer", phone=phone)
    window.goto("/admin/sqlqueue_app/dashboard/")
    window.click(".sq-live button")
    lines = window.locator("tr[data-plot=Sales] svg.sq-spark")
    assert lines.count() == 4
    assert [lines.nth(place).get_attribute("role") for place in range(4)] == ["slider", None, None, None]
    waiting = lines.nth(2)
    # The newest minute may have just begun.
    values = str(waiting.locator("[data-values]").get_attribute("data-values")).split("|")
    assert "3,000" in values[-2:]
    waiting.scroll_into_view_if_needed()
    box = waiting.bounding_box()
    assert box is not None
    window.mouse.move(box["x"] + box["width"] - 1, box["y"] + 5)
    time, *words = reading(window)
    assert [each.split(":")[0] for each in words] == ["In", "Out", "Waiting", "Failed"]
    assert words[2] == f"Waiting: {values[-1]}"
    window.mouse.move(0, 0)
    assert reading(window) == []
    lines.first.focus()
    assert reading(window) == [time, *words]
    window.keyboard.press("ArrowLeft")
    assert reading(window)[3] == f"Waiting: {values[-2]}"
    assert all(str(lines.nth(place).locator(".sq-cursor").get_attribute("d")).startswith("M1") for place in range(4))
    assert site.complaints == []
