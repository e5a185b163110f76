"""The search form of every page and its results."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

import pytest
from django.db import connection
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from sqlqueue_app.browsing import conversations
from sqlqueue_app.models import TaskResult
from tests.support.conversations import failed_one, sent, sent_headers
from tests.support.databases import QueueDatabase
from tests.support.delayed_rows import put
from tests.support.failing import fail
from tests.support.filling import HOSTILE, install, row, table
from tests.support.lakes import time_to_search, write
from tests.support.pages import Markup, client_of, page_at
from tests.support.roles import VIEWS
from tests.support.site_pages import site_paths

SEARCH = "/admin/sqlqueue_app/search/"
ENDPOINTS: dict[str, Any] = {"Sales": {"CALLBACKS": False, "AUDIT_QUEUE": "audit"}, "Billing": {"CALLBACKS": False}}
__all__ = ["time_to_search"]
pytestmark = pytest.mark.usefixtures("time_to_search")
EVERYWHERE = "Enter a message id, a conversation, a type, an endpoint or any text"


def page(query: str = "", kind: str = "viewer") -> Markup:
    with override_settings(LANGUAGE_CODE="en"):
        return page_at(f"{SEARCH}{query}", kind)


@pytest.fixture
def shop(queue_database: QueueDatabase) -> QueueDatabase:
    install(queue_database, ENDPOINTS=ENDPOINTS)
    return queue_database


def test_every_page_has_the_search_form(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database, ENDPOINTS=ENDPOINTS)
    client = client_of("superuser")
    seen = 0
    for name, path in site_paths().items():
        answer = client.get(path)
        if name.removeprefix("sqlqueue_app_") in VIEWS and answer.status_code == 200 and not answer.streaming:
            seen += 1
            found = Markup(answer.content.decode())
            assert found.find("form", action=SEARCH, method="get", role="search"), name
            (box,) = found.find("input", name="q", type="search", id="sq-search")
            assert box.get("value") == "", name
            assert found.find("label", **{"for": "sq-search"}), name
    assert seen > 30


def test_page_without_a_text_lists_the_searched_places(shop: QueueDatabase) -> None:
    for query in ("", "?q=", "?q=+"):
        assert EVERYWHERE in page(query).text()


def test_results_are_grouped_by_place_with_state_and_links(shop: QueueDatabase) -> None:
    order = {"Order": "order 42"}
    table(shop, "Sales").send([row({**sent_headers("waits"), **order})])
    put(shop, timedelta(hours=1), **{"NServiceBus.MessageId": "later", "NServiceBus.ConversationId": "c-2", **order})
    bill = failed_one("bill", "waits", conversation="c-3")
    (failure,) = fail(shop, [bill])
    found = page("?q=order+42")
    assert "Queues Message Time State Endpoint Queue Conversation Shop.Waits waits" in found.text()
    assert "Delayed Message" in found.text()
    assert "delayed until" in found.text()
    assert {"/admin/sqlqueue_app/queue/Sales/1/", "/admin/sqlqueue_app/conversation/c-1/"} <= set(found.links)
    assert any(each.startswith("/admin/sqlqueue_app/delayedmessage/Sales.Delayed/") for each in found.links)
    assert found.find("input", id="sq-search", value="order 42")
    found = page("?q=bill")
    assert "Failed Message" in found.text()
    assert {f"/admin/sqlqueue_app/failedmessage/{failure.pk}/", "/admin/sqlqueue_app/conversation/c-3/"} <= set(found.links)


def test_searching_bodies_needs_the_permission(shop: QueueDatabase) -> None:
    table(shop, "Sales").send([row(sent_headers("order"), b'{"note": "velocipede"}')])
    for kind in ("viewer", "reader"):
        refused = page("?q=velocipede", kind).text()
        assert "Nothing found for “velocipede”." in refused
        assert "In headers. Queues: the newest messages of 4 queues, up to 5,000 of each." in refused
        assert "Bodies. You need the permission “Can see the bodies of messages”." in refused
    for kind in ("writer", "admin", "superuser"):
        found = page("?q=velocipede", kind).text()
        assert "Shop.Order order" in found
        assert "In headers and the first 64 KiB of bodies." in found
        assert "You need the permission" not in found
        assert "note" not in found, "results show no body"


def test_unsearched_messages_are_named_and_can_be_searched(shop: QueueDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations, "SCAN_ROWS_TOTAL", 2)
    monkeypatch.setattr(conversations, "MIN_SCAN_ROWS", 2)
    table(shop, "Sales").send([sent("needle"), *(sent(f"m-{number}") for number in range(3))])
    for _number in range(3):
        put(shop)
    first = page("?q=needle")
    assert "Nothing found for “needle”." in first.text()
    assert "Not searched Older messages of Sales. Search further back" in first.text()
    assert "Messages of Sales.Delayed that are due later. Show the table" in first.text()
    (further,) = [each for each in first.links if "before=" in each]
    assert parse_qs(urlparse(further).query) == {"q": ["needle"], "queue": ["Sales"], "before": ["2"]}
    second = page(further)
    assert "Shop.Needle needle" in second.text()
    assert "Queue Sales: up to 2 older messages." in second.text()
    assert "?q=needle" in second.links
    assert "There is no queue nothing." in page("?q=needle&queue=nothing&before=9").text()
    assert any(each.startswith("/admin/sqlqueue_app/failedmessage/messages/?q=needle") for each in first.links)


def test_archive_shows_its_age_and_links_to_more_results(shop: QueueDatabase, tmp_path: Path) -> None:
    assert "Archive: not configured, or still empty." in page("?q=x").text()
    pytest.importorskip("duckdb")
    install(shop, ENDPOINTS=ENDPOINTS, PIPELINE={"LAKE": str(tmp_path)})
    at = datetime.now(UTC) - timedelta(days=7)
    headers = '{"NServiceBus.MessageId": "m-1", "NServiceBus.ConversationId": "c-9", "Order": "order 42"}'
    write(
        tmp_path, [{"at": at, "headers": headers, "message_id": "m-1", "conversation_id": "c-9", "message_type": "Shop.Old"}] * 60
    )
    found = page("?q=order+42")
    assert "Archive: 1 file." in found.text()
    assert f"/admin/sqlqueue_app/lakesearch/messages/audit/{at:%Y-%m-%d}/60/" in found.links
    assert "/admin/sqlqueue_app/conversation/c-9/" in found.links
    (further,) = [each for each in found.links if "after=" in each]
    assert client_of("viewer").get(further).status_code == 200
    assert "Older messages of the archive. Search further back" in found.text()


def test_tasks_are_shown_with_their_state(shop: QueueDatabase) -> None:
    shop.settings.TASKS = {"default": {"BACKEND": "sqlqueue_app.tasks.SqlQueueBackend", "QUEUES": ["Sales"]}}
    TaskResult.objects.create(
        id="t-1", backend="default", task="shop.bill", queue_name="Sales", status="FAILED", enqueued_at=datetime.now(UTC),
        args=["velocipede"], kwargs={}, errors=[], worker_ids=[],
    )  # fmt: skip
    found = page("?q=t-1")
    assert "Tasks Task Enqueued State Queue shop.bill t-1" in found.text()
    assert "Failed Sales" in found.text()
    assert "/admin/sqlqueue_app/taskresult/t-1/" in found.links
    assert "velocipede" not in page("?q=t-1", "superuser").text()
    assert "shop.bill" in page("?q=velocipede", "superuser").text()
    assert "shop.bill" not in page("?q=velocipede").text()


@pytest.mark.parametrize("query", ["q=%00", "q=" + "x" * 500, "q=x&before=x", "q=x&before=0", f"q=x&before={2**70}"])
def test_invalid_search_text_is_an_error(shop: QueueDatabase, query: str) -> None:
    found = page(f"?{query}")
    assert found.find("ul", **{"class": "errorlist"})
    assert not {"q", "before"}.intersection(found.texts), "names of the query string are no words"


def test_hostile_texts_are_shown_as_text(shop: QueueDatabase) -> None:
    table(shop, "Sales").send([sent(HOSTILE, conversation=HOSTILE)])
    found = page(f"?q={HOSTILE}")
    assert f"Shop.{HOSTILE.title()}" in found.text()


def test_page_takes_few_statements(shop: QueueDatabase) -> None:
    client = client_of("viewer")
    with CaptureQueriesContext(connection) as queries:
        client.get(f"{SEARCH}?q=order")
    assert len(queries) <= 15


def test_id_of_the_former_conversation_form_is_searched(shop: QueueDatabase) -> None:
    answer = client_of("viewer").get("/admin/sqlqueue_app/conversation/?id=a+b")
    assert (answer.status_code, answer.headers["Location"]) == (302, f"{SEARCH}?q=a+b")
