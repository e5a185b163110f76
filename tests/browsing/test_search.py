"""Messages are found in every place and database by ids, type, endpoint, headers and bodies, within limits."""

from __future__ import annotations

import itertools
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from sqlqueue_app.browsing import conversations
from sqlqueue_app.browsing.conversations import MessageOutcome
from sqlqueue_app.browsing.search import MAX_FROM_TABLES, Place, SearchResult, search_messages
from sqlqueue_app.conf import get_settings
from sqlqueue_app.messages.failure_groups import deterministic_guid
from sqlqueue_app.models import FailedMessage, FailureStatus, TaskResult
from sqlqueue_app.tables.row_selection import remove_rows
from tests.support.conversations import audited, failed_one, sent, sent_headers
from tests.support.databases import QueueDatabase
from tests.support.delayed_rows import put
from tests.support.failing import fail
from tests.support.filling import install, row, table
from tests.support.lakes import time_to_search, write

ENDPOINTS: dict[str, Any] = {"Sales": {"CALLBACKS": False, "AUDIT_QUEUE": "audit"}, "Billing": {"CALLBACKS": False}}
__all__ = ["time_to_search"]
pytestmark = pytest.mark.usefixtures("time_to_search")
QUEUES, DELAYED, FAILED, ARCHIVE = Place


@pytest.fixture
def shop(queue_database: QueueDatabase) -> QueueDatabase:
    install(queue_database, ENDPOINTS=ENDPOINTS)
    return queue_database


def find(text: str, *, bodies: bool = True, **more: Any) -> SearchResult:
    return search_messages(get_settings(), text, bodies=bodies, **more)


def found(text: str, *, bodies: bool = True) -> dict[Place, list[tuple[str, str]]]:
    result = find(text, bodies=bodies)
    assert result.problems == ()
    return {place: [(each.message_id, each.outcome.value) for each in rows] for place, rows in result.messages.items()}


def test_business_key_is_found_in_every_place(shop: QueueDatabase) -> None:
    order = {"Order": "order 42"}
    table(shop, "Sales").send([row({**sent_headers("waits"), **order}), row({**sent_headers("other"), "Order": "order 43"})])
    put(shop, timedelta(hours=1), **{"NServiceBus.MessageId": "later", "NServiceBus.ConversationId": "c-1", **order})
    table(shop, "audit").send([audited("done", Order="order 42")])
    fail(shop, [failed_one("bill", "waits"), failed_one("bill-42", "waits")])
    table(shop, "Billing").send([row(sent_headers("body"), b'{"order": "ORDER 42"}')])
    assert found("Order 42") == {
        QUEUES: [("done", "handled"), ("waits", "waiting"), ("body", "waiting")],
        DELAYED: [("later", "delayed")],
    }
    assert found("Order 42", bodies=False)[QUEUES] == [("done", "handled"), ("waits", "waiting")]
    assert found("bill-42") == {FAILED: [("bill-42", "failed")]}
    assert found("order 4242") == {}


def test_results_link_to_their_message_and_conversation(shop: QueueDatabase) -> None:
    table(shop, "Sales").send([sent("waits")])
    key = put(shop, timedelta(hours=2), **{"NServiceBus.MessageId": "later", "NServiceBus.ConversationId": "c-2"})
    fail(shop, [failed_one("bill", "waits", conversation="c-3")])
    (waits,) = find("waits").messages[QUEUES]
    assert (waits.conversation, waits.queue, waits.row_version, waits.receiving) == ("c-1", "Sales", 1, "Sales")
    (later,) = find("later").messages[DELAYED]
    assert (later.conversation, later.delayed, later.outcome) == ("c-2", key, MessageOutcome.DELAYED)
    assert later.due is not None
    assert timedelta(hours=1) < later.due - datetime.now(UTC) < timedelta(hours=3)
    (bill,) = find("bill").messages[FAILED]
    assert (bill.conversation, bill.failure, bill.receiving) == ("c-3", deterministic_guid("bill", "Billing"), "Billing")


def test_messages_are_found_by_id_conversation_type_and_endpoint(shop: QueueDatabase) -> None:
    table(shop, "Sales").send([sent("order", conversation="talk-9"), sent("other", by="Web.Shop"), row("no json odd-1")])
    assert found("order")[QUEUES] == found("talk-9")[QUEUES] == [("order", "waiting")]
    assert found("shop.other")[QUEUES] == found("Web.Shop")[QUEUES] == [("other", "waiting")]
    (odd,) = find("odd-1").messages[QUEUES]
    assert (odd.row_version, odd.conversation, odd.message_type) == (3, "", "")


def test_failure_without_its_row_is_found_by_its_ids(shop: QueueDatabase) -> None:
    fail(shop, [failed_one("bill", "order", conversation="c-3")])
    for each in FailedMessage.objects.all():
        remove_rows(table(shop, "error"), [each.row_version or 0])
    FailedMessage.objects.update(row_version=None, status=FailureStatus.RETRY_ISSUED)
    for text in ("bill", "c-3", str(deterministic_guid("bill", "Billing"))):
        assert found(text) == {FAILED: [("bill", "retried")]}
    FailedMessage.objects.update(status=FailureStatus.ARCHIVED)
    assert found("bill") == {FAILED: [("bill", "archived")]}


def test_failure_that_is_not_indexed_is_found_in_its_queue(shop: QueueDatabase) -> None:
    table(shop, "error").send([failed_one("bill", "order")])
    (bill,) = find("bill").messages[FAILED]
    assert (bill.failure, bill.queue, bill.row_version) == (None, "error", 1)


@pytest.mark.parametrize("text", ["o'c\"x", "a/b", "\u0639\u0631", "</>", "100%", "_2F", "\U0001f600", "a+b", "a b", "\\", "Zoë"])
def test_texts_of_any_shape_are_found(shop: QueueDatabase, text: str) -> None:
    dotnet = "".join(f"\\u{ord(each):04X}" if each in "\"&'+<>" or not each.isascii() else each for each in text)
    written = [row({"NServiceBus.MessageId": "python", "X": f"a {text} b"})]
    if "\\" not in text and "\U0001f600" not in text:
        written.append(row(f'{{"NServiceBus.MessageId":"dotnet","X":"a {dotnet} b"}}'))
    table(shop, "Sales").send([*written, row({"NServiceBus.MessageId": "body"}, f"<a>{text}</a>".encode())])
    ids = {message_id for message_id, _outcome in found(text)[QUEUES]}
    assert ids == {"python", "body"} | ({"dotnet"} if len(written) > 1 else set())
    assert "body" not in {message_id for message_id, _outcome in found(text, bodies=False).get(QUEUES, [])}


def test_bodies_are_not_read_without_the_permission(shop: QueueDatabase) -> None:
    table(shop, "Sales").send([row(sent_headers("order"), b"secret")])
    with CaptureQueriesContext(connections[shop.alias]) as statements:
        assert found("secret", bodies=False) == {}
    searches = [each["sql"] for each in statements if "Sales" in each["sql"]]
    assert not any("body" in each.lower().replace("somebody", "") for each in searches), searches


def test_newest_rows_are_searched_first_and_older_ones_on_request(shop: QueueDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations, "SCAN_ROWS_TOTAL", 4)
    monkeypatch.setattr(conversations, "MIN_SCAN_ROWS", 4)
    table(shop, "Sales").send([row({"NServiceBus.MessageId": f"m-{number}", "X": "needle"}) for number in range(10)])
    first = find("needle")
    assert [each.row_version for each in first.messages[QUEUES]] == [10, 9, 8, 7]
    assert (first.extent.rows, dict(first.extent.longer)) == (4, {"Sales": 6})
    second = find("needle", queue="Sales", before=6)
    assert [each.row_version for each in second.messages[QUEUES]] == [6, 5, 4, 3]
    assert (second.archive, dict(second.extent.longer)) == (None, {"Sales": 2})
    last = find("needle", queue="Sales", before=2)
    assert [each.row_version for each in last.messages[QUEUES]] == [2, 1]
    assert last.extent.longer == {}
    assert find("needle", queue="nothing").messages == {}


def test_newest_results_are_shown_first_and_the_rest_page_by_page(shop: QueueDatabase) -> None:
    table(shop, "Sales").send([sent(f"m-{number}") for number in range(MAX_FROM_TABLES + 10)])
    first = find("Shop.")
    shown = [each.row_version or 0 for each in first.messages[QUEUES]]
    assert shown == [MAX_FROM_TABLES + 10 - number for number in range(len(shown))]
    assert 1 < len(shown) < MAX_FROM_TABLES
    before = first.extent.longer["Sales"]
    while before:
        further = find("Shop.", queue="Sales", before=before)
        shown += [each.row_version or 0 for each in further.messages.get(QUEUES, [])]
        before = further.extent.longer.get("Sales", 0)
    assert shown == list(range(MAX_FROM_TABLES + 10, 0, -1)), "a row is missing or repeated"
    for _number in range(MAX_FROM_TABLES):
        put(shop, timedelta(hours=1), **{"NServiceBus.EnclosedMessageTypes": "Shop.Later"})
    assert find("Shop.Later").extent.longer["Sales.Delayed"] == 0


def test_exceeded_time_limit_reports_the_unread_queues(shop: QueueDatabase) -> None:
    table(shop, "Sales").send([sent("order")])
    readings = itertools.count(step=1_000)
    result = find("order", clock=lambda: float(next(readings)))
    assert result.messages == {}
    assert {"Sales", "Billing", "audit"} <= set(result.extent.late)


def test_two_hundred_queues_take_few_statements(postgresql_database: QueueDatabase) -> None:
    satellites: dict[str, Any] = {f"Sales.{number}": {} for number in range(200)}
    install(postgresql_database, ENDPOINTS={"Sales": {"SATELLITES": satellites, "AUDIT_QUEUE": "audit"}})
    table(postgresql_database, "Sales.199").send([sent("order")])
    with CaptureQueriesContext(connections[postgresql_database.alias]) as statements:
        assert found("order") == {QUEUES: [("order", "waiting")]}
    assert len(statements) <= 12


def test_failure_search_uses_the_indexes(postgresql_database: QueueDatabase) -> None:
    """No plan scans the whole table."""
    install(postgresql_database, ENDPOINTS=ENDPOINTS)
    connection = connections[postgresql_database.alias]
    with CaptureQueriesContext(connection) as statements:
        find("order")
    (query,) = [each["sql"] for each in statements if 'FROM "sqlqueue_app_failedmessage"' in each["sql"]]
    with connection.cursor() as cursor:
        cursor.execute("SET enable_seqscan = off")
        cursor.execute(f"EXPLAIN {query}")
        plan = "\n".join(line for (line,) in cursor.fetchall())
        cursor.execute("RESET enable_seqscan")
    assert "Seq Scan" not in plan, plan


# --- The archive --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def archive(shop: QueueDatabase, tmp_path: Path) -> Path:
    pytest.importorskip("duckdb")
    install(shop, ENDPOINTS=ENDPOINTS, PIPELINE={"LAKE": str(tmp_path)})
    now = datetime.now(UTC)
    headers = '{"NServiceBus.MessageId": "m-1", "NServiceBus.ConversationId": "c-7", "Order": "order 42"}'
    known = {
        "message_id": "m-1", "conversation_id": "c-7", "message_type": "Shop.Bill", "endpoint": "Billing", "headers": headers,
        "body": b'{"a": "secret"}',
    }  # fmt: skip
    write(tmp_path, [{"at": now - timedelta(days=7), **known}, {"at": now - timedelta(days=8)}])
    write(tmp_path, [{"at": now - timedelta(days=9), **known, "exception_type": "E"}], table="failures", queue="error")
    return tmp_path


@pytest.mark.parametrize("text", ["m-1", "c-7", "Shop.Bill", "Bill", "Billing", "ORDER 42", "secret"])
def test_message_of_last_week_is_found_in_the_archive(archive: Path, text: str) -> None:
    result = find(text)
    (handled, failed) = result.messages[ARCHIVE]
    assert (handled.message_id, handled.conversation, handled.outcome.value) == ("m-1", "c-7", "handled")
    assert (failed.message_id, failed.outcome.value, failed.lake) == ("m-1", "failed", "failures")
    assert result.archive is not None
    assert result.archive.results is not None
    assert not result.archive.results.is_partial


def test_archived_bodies_need_the_permission(archive: Path) -> None:
    assert find("secret", bodies=False).messages == {}
    assert len(find("order 42", bodies=False).messages[ARCHIVE]) == 2


def test_search_without_an_archive_returns_no_results_of_it(shop: QueueDatabase) -> None:
    without = find("x").archive
    assert without is not None
    assert (without.lake.lake, without.results) == ("", None)


def test_unreadable_archive_is_reported(shop: QueueDatabase, tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    install(shop, ENDPOINTS=ENDPOINTS, PIPELINE={"LAKE": str(tmp_path)})
    broken = tmp_path / "messages" / "queue=audit" / "day=2026-05-01" / "x-0.parquet"
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"nothing")
    searched = find("x").archive
    assert searched is not None
    assert searched.results is not None
    assert searched.results.problems


# --- Tasks --------------------------------------------------------------------------------------------------------------------


def task(name: str, *, status: str = "SUCCESSFUL", ended: bool = True, **more: Any) -> TaskResult:
    now = datetime.now(UTC)
    known: dict[str, Any] = {"args": [], "kwargs": {}, "errors": [], "worker_ids": [], "queue_name": "default", **more}
    return TaskResult.objects.create(
        id=str(uuid.uuid4()),
        backend="default",
        task=name,
        status=status,
        enqueued_at=now,
        finished_at=now if ended else None,
        **known,
    )


def test_tasks_are_found_by_id_name_and_permitted_arguments(shop: QueueDatabase) -> None:
    shop.settings.TASKS = {"default": {"BACKEND": "sqlqueue_app.tasks.SqlQueueBackend", "QUEUES": ["Sales"]}}
    ended = task("shop.tasks.bill", args=["order 42"])
    waits = task("shop.tasks.remind", status="READY", ended=False, kwargs={"note": "Zoë"})

    def tasks(text: str, *, bodies: bool = True) -> list[str]:
        return [each.pk for each in find(text, bodies=bodies).tasks]

    assert tasks(ended.pk) == tasks("tasks.BILL") == tasks("Order 42") == [ended.pk]
    assert tasks("remind") == tasks("zoë") == [waits.pk]
    assert tasks("shop.tasks") == [waits.pk, ended.pk]
    assert tasks("order 42", bodies=False) == tasks("zoë", bodies=False) == []
    assert tasks("bill", bodies=False) == tasks(ended.pk, bodies=False) == [ended.pk]
