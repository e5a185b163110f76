"""The pages of operations, actions and redirects."""

from __future__ import annotations

import csv
import io
import json
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard.actions import words_of_actions
from sqlqueue_app.dialects.schema import PlannedTable, TableKind
from sqlqueue_app.models import ActionResult, Operation, OperationState, OperatorAction, Redirect
from sqlqueue_app.status.queues import address_book_of
from sqlqueue_app.tables.installation import install_tables
from tests.support.databases import QueueDatabase
from tests.support.failing import install_sales
from tests.support.filling import HOSTILE, instance
from tests.support.pages import Markup, client_of

OPERATIONS, ACTIONS, REDIRECTS = (f"/admin/sqlqueue_app/{name}/" for name in ("operation", "operatoraction", "redirect"))
AT = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


@pytest.fixture
def shop(sqlite_database: QueueDatabase) -> QueueDatabase:
    install_sales(sqlite_database)
    return sqlite_database


def operation(**fields: Any) -> Operation:
    known = {
        "id": uuid.uuid4(),
        "kind": "retry",
        "requested_at": AT,
        "description": f"group {HOSTILE}",
        "total": 4000,
        "user_name": "anna",
    }
    return Operation.objects.create(**{**known, **fields})


def action(**fields: Any) -> OperatorAction:
    known = {"at": AT, "user_name": "anna", "action": "retry", "target": HOSTILE, "result": ActionResult.DONE}
    return OperatorAction.objects.create(**{**known, **fields})


def running(**fields: Any) -> Operation:
    known = {"state": OperationState.RUNNING, "started_at": AT, "done": 900, "skipped": 90, "failed": 10}
    return operation(**{**known, **fields})


def test_operation_shows_its_progress(shop: QueueDatabase) -> None:
    log = [
        {"what": "skipped", "reason": "no queue", "detail": '"Gone"', "count": 90},
        {"what": "failed", "reason": "of another version", "detail": "x", "count": 10},
        "nonsense",
    ]
    row = running(log=log, worker="host 1 abc")
    instance(threads={"Sales": 2})

    html = client_of("viewer").get(f"{OPERATIONS}{row.pk}/").content.decode()

    markup = Markup(html)
    (progress,) = markup.find("progress")
    assert (progress["value"], progress["max"]) == ("1000", "4000")
    text = markup.text()
    assert "25%" in text
    assert "Requested by anna" in text
    assert 'The queue "Gone" does not exist' in text
    assert "of another version x" in text
    assert "Time left, at this rate" in text
    assert "No worker is alive" not in text
    assert "You need the permission" in text
    assert markup.inline == []
    assert "<script>alert" not in html


@pytest.mark.parametrize(("done", "shown"), [(30, ("30", "30", "30 of 30 (100%)")), (0, ("0", "1", "0 of 0 (0%)"))])
def test_completed_operation_has_processed_all_that_was_left(shop: QueueDatabase, done: int, shown: tuple[str, str, str]) -> None:
    """Another operation took the rest of the messages in the meantime."""
    row = running(state=OperationState.COMPLETED, done=done, skipped=0, failed=0, finished_at=AT)
    markup = Markup(client_of("viewer").get(f"{OPERATIONS}{row.pk}/").content.decode())
    (progress,) = markup.find("progress")
    assert (progress["value"], progress["max"]) == shown[:2]
    assert shown[2] in markup.text()
    assert "Messages when it was requested 4,000" in markup.text()


def test_time_left_needs_a_worker(shop: QueueDatabase) -> None:
    row = running()

    text = Markup(client_of("viewer").get(f"{OPERATIONS}{row.pk}/").content.decode()).text()

    assert "Duration" in text
    assert "No worker is alive" in text
    assert "Time left" not in text


@pytest.mark.parametrize("state", OperationState.values)
def test_every_state_has_a_label(shop: QueueDatabase, state: str) -> None:
    row = operation(state=state, error="what ended it", finished_at=AT, started_at=AT - timedelta(hours=3))

    text = Markup(client_of("viewer").get(f"{OPERATIONS}{row.pk}/").content.decode()).text()

    assert f"State {state}" in text
    assert "what ended it" in text


def test_operations_are_paginated(shop: QueueDatabase) -> None:
    rows = [operation(requested_at=AT + timedelta(minutes=each // 2)) for each in range(120)]
    client = client_of("viewer")
    seen: list[str] = []
    url = OPERATIONS
    while url:
        markup = Markup(client.get(url).content.decode())
        seen += [str(each["data-key"]) for each in markup.find("tr") if each.get("data-key")]
        found = markup.find("a", rel="next")
        url = OPERATIONS + str(found[0]["href"]) if found else ""

    assert len(seen) == 120
    assert set(seen) == {f"operation {each.pk}" for each in rows}
    assert len(client.get(f"{OPERATIONS}?state=failed").content) < len(client.get(OPERATIONS).content)


def test_cancelling_an_operation_needs_the_permission(shop: QueueDatabase) -> None:
    row = running()
    page = f"{OPERATIONS}{row.pk}/cancel/"
    assert client_of("reader").post(page, {"confirmed": "1"}).status_code == 403
    client = client_of("writer")
    assert "Done so far 900" in Markup(client.get(page).content.decode()).text()

    assert client.post(page, {"confirmed": "1"}).status_code == 302

    row.refresh_from_db()
    assert row.cancel_requested
    assert [each.result for each in OperatorAction.objects.order_by("pk")] == [ActionResult.DENIED, ActionResult.DONE]
    assert "being cancelled" in client.get(f"{OPERATIONS}{row.pk}/").content.decode()


def test_finished_operation_cannot_be_cancelled(shop: QueueDatabase) -> None:
    row = operation(state=OperationState.COMPLETED)

    answer = client_of("writer").post(f"{OPERATIONS}{row.pk}/cancel/", {"confirmed": "1"})

    assert answer.status_code == 409
    assert client_of("writer").get(f"{OPERATIONS}3c3c90ba-3dda-41bb-b5ab-460449a8f80e/cancel/").status_code == 404
    assert client_of("writer").get(f"{OPERATIONS}3c3c90ba-3dda-41bb-b5ab-460449a8f80e/").status_code == 404


def test_actions_are_filtered(shop: QueueDatabase) -> None:
    row = operation()
    action(operation=row, user_name="anna")
    action(user_name="ben", action="purge", result=ActionResult.DENIED, reason="may not", at=AT + timedelta(days=1))
    client = client_of("viewer")

    def shown(query: str) -> str:
        return Markup(client.get(f"{ACTIONS}?{query}").content.decode()).text()

    assert all(
        "anna" in shown(query) and "ben" not in shown(query)
        for query in ("user=anna", "action=retry", "result=done", "until=2026-11-21")
    )
    assert all("ben" in shown(query) and "anna" not in shown(query) for query in ("user=ben", "result=denied", "since=2026-11-22"))
    html = client.get(ACTIONS).content.decode()
    assert f"{OPERATIONS}{row.pk}/" in Markup(html).links
    assert Markup(html).inline == []
    assert "<script>alert" not in html


@pytest.mark.parametrize(
    ("name", "target", "words", "page"),
    [
        ("purge_expired", "Sales", "Purge the expired messages", "queue/Sales/"),
        ("move_message", "Sales #12 → Billing", "Move a message", "queue/Sales/"),
        ("remove_callback_queues", "Sales.a, Sales.b", "Remove the queues of dead instances", "queue/"),
        ("pause", "Shop: EU", "Pause an endpoint", "endpoint/Shop:%20EU/"),
        ("concurrency", "Sales on mill (77): 4 → 8", "Set the concurrency", "endpoint/Sales/"),
        ("minimum", "Sales: 0 → 2", "Set the minimum of processes", "endpoint/Sales/"),
        ("cancel_delayed", "Sales.Delayed #5", "Cancel delayed messages", "delayedmessage/Sales.Delayed/"),
        (
            "edit",
            "the message c28c1e44-c251-a215-5b05-d0bc4b653a2b; unresolved",
            "Edit and retry",
            "failedmessage/c28c1e44-c251-a215-5b05-d0bc4b653a2b/",
        ),
        (
            "note",
            "group c28c1e44-c251-a215-5b05-d0bc4b653a2b “OutOfStock”",
            "Write a note",
            "failedmessage/group/c28c1e44-c251-a215-5b05-d0bc4b653a2b/",
        ),
        ("mute_check", "Dead instances: Sales", "Mute a check", "checkresult/"),
        ("of_another_version", "Sales", "Of another version", None),
    ],
)
def test_action_has_a_label_and_links_to_its_object(
    shop: QueueDatabase, name: str, target: str, words: str, page: str | None
) -> None:
    action(action=name, target=target)
    content = client_of("viewer").get(ACTIONS).content.decode()
    row = content.partition('data-key="operatoraction')[2].partition("</tr>")[0]
    assert f">{words}<" in row
    links = [each for each in Markup(row).links if each]
    assert links == ([] if page is None else [f"/admin/sqlqueue_app/{page}"])


def test_actions_are_paginated(shop: QueueDatabase) -> None:
    OperatorAction.objects.bulk_create(
        OperatorAction(at=AT, user_name="anna", action="retry", result=ActionResult.DONE) for _ in range(150)
    )
    client = client_of("viewer")
    markup = Markup(client.get(f"{ACTIONS}?user=anna").content.decode())
    (link,) = markup.find("a", rel="next")
    rest = Markup(client.get(ACTIONS + str(link["href"])).content.decode())

    keys = [each["data-key"] for page in (markup, rest) for each in page.find("tr") if each.get("data-key")]
    assert len(keys) == len(set(keys)) == 150


def test_requested_action_shows_the_state_of_its_operation(shop: QueueDatabase) -> None:
    action(operation=running(), result=ActionResult.REQUESTED)
    assert "requested running" in Markup(client_of("viewer").get(ACTIONS).content.decode()).text()
    Operation.objects.update(state=OperationState.COMPLETED, finished_at=AT)
    assert "requested completed" in Markup(client_of("viewer").get(ACTIONS).content.decode()).text()


def test_names_of_actions_differ(shop: QueueDatabase) -> None:
    words = list(words_of_actions().values())
    assert len(set(words)) == len(words)


def test_export_of_actions_needs_the_permission(shop: QueueDatabase) -> None:
    action(target="=1+1", count=5)
    assert client_of("viewer").get(f"{ACTIONS}?format=csv").status_code == 403
    client = client_of("writer")

    answer = client.get(f"{ACTIONS}?format=csv")
    (line,) = csv.DictReader(io.StringIO(answer.getvalue().decode("utf-8-sig")))
    assert (line["who"], line["on"], line["count"]) == ("anna", "'=1+1", "5")
    (document,) = json.loads(client.get(f"{ACTIONS}?format=json&user=anna").getvalue())
    assert document["on"] == "=1+1"


def test_operations_and_redirects_are_exported(shop: QueueDatabase) -> None:
    row = running()
    operation(state=OperationState.FAILED)
    Redirect.objects.create(id=uuid.uuid4(), from_address="Gone", to_address="Sales", created_at=AT)
    client = client_of("writer")

    (document,) = json.loads(client.get(f"{OPERATIONS}?format=json&state=running").getvalue())
    assert (document["id"], document["done"], document["requested_at"][:19]) == (str(row.pk), 900, "2026-11-21T12:00:00")
    (redirect,) = csv.DictReader(io.StringIO(client.get(f"{REDIRECTS}?format=csv").getvalue().decode("utf-8-sig")))
    assert (redirect["from_address"], redirect["to_address"]) == ("Gone", "Sales")
    for page in (OPERATIONS, REDIRECTS):
        assert client_of("viewer").get(f"{page}?format=csv").status_code == 403


def test_redirects_are_created_changed_and_removed(shop: QueueDatabase) -> None:
    book = address_book_of(get_settings())
    install_tables(shop.alias, [PlannedTable(TableKind.QUEUE, book.of_queue(name)) for name in ("A", "B")])
    client = client_of("admin")
    assert client.get(f"{REDIRECTS}make/").status_code == 200

    assert client.post(f"{REDIRECTS}make/", {"from": "Gone", "to": "A", "confirmed": "1"}).status_code == 302
    refused = client.post(f"{REDIRECTS}make/", {"from": "Gone", "to": "B", "confirmed": "1"})
    assert refused.status_code == 409
    assert "already" in refused.content.decode()
    assert 'value="Gone"' in refused.content.decode()
    redirect = Redirect.objects.get()
    assert (redirect.created_by, redirect.to_address) == ("admin", "A")
    assert client.post(f"{REDIRECTS}{redirect.pk}/change/", {"to": "B", "confirmed": "1"}).status_code == 302
    assert "B" in Markup(client.get(REDIRECTS).content.decode()).text()
    Redirect.objects.update(to_address="Dropped")
    assert "does not exist" in client.get(REDIRECTS).content.decode()
    assert client.post(f"{REDIRECTS}{redirect.pk}/remove/", {"confirmed": "1"}).status_code == 302
    assert not Redirect.objects.exists()
    assert client.get(f"{REDIRECTS}{redirect.pk}/remove/").status_code == 404
    assert client.get(f"{REDIRECTS}{redirect.pk}/change/").status_code == 404
    assert [each.result for each in OperatorAction.objects.order_by("pk")] == ["done", "failed", "done", "done"]


@pytest.mark.parametrize("kind", ["viewer", "writer"])
def test_redirects_need_their_permission(shop: QueueDatabase, kind: str) -> None:
    client = client_of(kind)

    assert client.post(f"{REDIRECTS}make/", {"from": "Gone", "to": "Sales", "confirmed": "1"}).status_code == 403
    assert not Redirect.objects.exists()
    assert OperatorAction.objects.get().result == ActionResult.DENIED
    assert "You need the permission" in client.get(REDIRECTS).content.decode()


@pytest.mark.parametrize("page", [OPERATIONS, ACTIONS, REDIRECTS])
def test_page_takes_few_statements(shop: QueueDatabase, page: str) -> None:
    for number in range(60):
        operation(state=OperationState.RUNNING)
        action()
        Redirect.objects.create(id=uuid.uuid4(), from_address=f"q{number}", to_address="Sales", created_at=AT)
    client = client_of("superuser")

    with CaptureQueriesContext(connections[shop.alias]) as queries:
        assert client.get(page).status_code == 200

    assert len(queries) <= 15


def test_pages_link_to_each_other(shop: QueueDatabase) -> None:
    links = Markup(client_of("viewer").get(OPERATIONS).content.decode()).links

    assert {OPERATIONS, ACTIONS, REDIRECTS} <= set(links)
