"""From the overview through a search and a result to its conversation."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.browser.conftest import Site
from tests.browser.filling import fill
from tests.support.conversations import sent_headers
from tests.support.databases import QueueDatabase
from tests.support.delayed_rows import put
from tests.support.filling import install, row, table
from tests.support.lakes import time_to_search, write

__all__ = ["time_to_search"]
pytestmark = pytest.mark.usefixtures("time_to_search")
OVERVIEW = "/admin/sqlqueue_app/dashboard/"


@pytest.mark.parametrize("scripts", [True, False])
@pytest.mark.parametrize("phone", [False, True])
def test_search_leads_to_the_conversation_of_an_order(
    sqlite_database: QueueDatabase, site: Site, scripts: bool, phone: bool
) -> None:
    fill(sqlite_database)
    table(sqlite_database, "Sales").send(
        [row(sent_headers("place-order", conversation="c-42"), b'{"order": 42, "key": "order 42"}')]
    )
    headers = {"NServiceBus.MessageId": "remind", "NServiceBus.ConversationId": "c-42"}
    put(sqlite_database, timedelta(hours=1), body={"note": "order 42"}, **headers)
    window = site.window("writer", scripts=scripts, phone=phone)
    window.goto(OVERVIEW)
    window.get_by_label("Message id, conversation, type, endpoint or text").fill("order 42")
    window.keyboard.press("Enter")
    window.wait_for_url("**/search/?q=order+42")
    results = window.locator("#content-main table")
    assert [each.locator("caption").inner_text().strip() for each in results.all()] == ["Queues", "Delayed"]
    assert "waiting" in results.nth(0).inner_text()
    assert "until" in results.nth(1).inner_text()
    assert window.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
    results.nth(0).get_by_role("link", name="c-42").click()
    window.wait_for_url("**/conversation/c-42/")
    assert {"place-order", "remind"} <= set(window.locator("#content-main").inner_text().split())
    assert site.complaints == []


def test_search_finds_an_archived_message(sqlite_database: QueueDatabase, site: Site, tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    install(sqlite_database, PIPELINE={"LAKE": str(tmp_path)})
    headers = json.dumps({**sent_headers("bill", conversation="c-7"), "Invoice": "2026-0815"})
    known = {"message_id": "bill", "conversation_id": "c-7", "message_type": "Shop.Bill", "endpoint": "Billing", "headers": headers}
    write(tmp_path, [{"at": datetime.now(UTC) - timedelta(days=7), **known}])
    window = site.window("reader")
    window.goto(OVERVIEW)
    window.get_by_label("Message id, conversation, type, endpoint or text").fill("2026-0815")
    window.get_by_role("button", name="Search").first.click()
    archive = window.locator("#content-main table", has=window.locator("caption", has_text="Archive"))
    assert "Shop.Bill" in archive.inner_text()
    assert "handled" in archive.inner_text()
    archive.get_by_role("link", name="c-7").click()
    window.wait_for_url("**/conversation/c-7/")
    assert "Shop.Bill" in window.locator("#content-main").inner_text()
    assert site.complaints == []


def test_search_form_is_one_row(sqlite_database: QueueDatabase, site: Site) -> None:
    fill(sqlite_database)
    for phone in (False, True):
        window = site.window("viewer", phone=phone)
        window.goto(OVERVIEW)
        field, button = window.locator("#sq-search").bounding_box(), window.locator("form.sq-search button").bounding_box()
        assert field is not None
        assert button is not None
        assert abs(field["y"] + field["height"] / 2 - button["y"] - button["height"] / 2) < 4, "not in one row"
        assert field["width"] > 150
