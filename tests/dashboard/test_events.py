"""The page of events, and the latest events on the overview."""

from __future__ import annotations

import csv
import io
import json
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

from django.test.utils import CaptureQueriesContext

from sqlqueue_app.messages.failure_groups import deterministic_guid
from sqlqueue_app.models import Event, Operation, Severity
from sqlqueue_app.status.events import EventKind
from tests.support.databases import QueueDatabase
from tests.support.failing import fail, failed_row
from tests.support.filling import HOSTILE, install
from tests.support.pages import Markup, client_of, page_at

ADMIN = "/admin/sqlqueue_app/"
EVENTS = f"{ADMIN}event/"
AT = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
GROUP = deterministic_guid("Exception Type and Stack Trace", "shop.errors.OutOfStock: No stacktrace")


def event(kind: str = "queue_purged", **fields: Any) -> Event:
    known = {"at": AT, "severity": Severity.WARNING, "subject": "Sales", "details": {"count": 1_234}}
    return Event.objects.create(kind=kind, **{**known, **fields})


def page(query: str = "") -> Markup:
    return page_at(f"{EVENTS}?{query}")


def test_event_is_a_sentence_with_a_link(queue_database: QueueDatabase) -> None:
    install(queue_database)
    operation = Operation.objects.create(id=uuid.uuid4(), kind="retry", requested_at=AT)
    fail(queue_database, [failed_row()])
    event(at=AT + timedelta(seconds=1))
    event("operation_failed", details={"operation": str(operation.pk), "done": 3, "error": "away"}, severity=Severity.ERROR)

    found = page()

    text = found.text()
    assert "The queue Sales was purged: 1,234 messages were deleted." in text
    assert "Operation on Sales stopped early after 3 messages: away" in text
    assert "New failure group: shop.errors.OutOfStock: No stacktrace" in text
    assert {f"{ADMIN}queue/Sales/", f"{ADMIN}operation/{operation.pk}/", f"{ADMIN}failedmessage/group/{GROUP}/"} <= set(found.links)
    assert all(client_of("viewer").get(link).status_code == 200 for link in found.links if link.startswith(ADMIN))
    assert found.inline == []
    assert found.find("div", **{"data-live": "10"})


def test_rows_of_any_content_are_shown(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    for kind in (*EventKind, HOSTILE):
        for details in ({}, [HOSTILE], {"group": HOSTILE, "operation": "x", "count": HOSTILE, "error": HOSTILE}):
            event(str(kind)[:64], subject=f"{HOSTILE} a/b ٣", details=details, severity="odd")

    answer = client_of("viewer").get(EVENTS)

    assert answer.status_code == 200
    assert HOSTILE not in answer.content.decode()
    assert client_of("viewer").get(f"{ADMIN}dashboard/").status_code == 200
    assert len(json.loads(client_of("writer").get(f"{EVENTS}?format=json").getvalue())) == Event.objects.count()


def test_events_are_filtered(queue_database: QueueDatabase) -> None:
    install(queue_database)
    event(subject="Sales")
    event(
        "operation_completed", subject="Größe", severity=Severity.INFO, at=AT + timedelta(days=1), details={"done": 1}
    )  # fmt: skip

    for query in ("severity=warning", "kind=queue_purged", "subject=SALE", "until=2026-11-21"):
        assert "Sales" in page(query).text(), query
        assert "Größe" not in page(query).text(), query
    for query in ("severity=info", "kind=operation_completed", "subject=r%C3%B6", "since=2026-11-22"):
        assert "Größe" in page(query).text(), query
        assert "The queue Sales" not in page(query).text(), query
    assert "No matching events." in page("subject=%25").text()


def test_events_are_paginated(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    keys = {f"event {event(at=AT + timedelta(seconds=number // 3)).pk}" for number in range(250)}
    seen: list[str] = []
    query: str | None = ""
    while query is not None:
        found = page(query)
        seen += [str(each["data-key"]) for each in found.find("tr") if each.get("data-key")]
        following = found.find("a", rel="next")
        query = str(following[0]["href"]).removeprefix("?") if following else None

    assert len(seen) == 250
    assert set(seen) == keys
    assert seen == sorted(seen, key=lambda key: -int(key.split()[1]))


def test_list_is_exported(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    event(subject="=1+1")
    (row,) = csv.DictReader(io.StringIO(client_of("writer").get(f"{EVENTS}?format=csv").getvalue().decode("utf-8-sig")))
    (entry,) = json.loads(client_of("writer").get(f"{EVENTS}?format=json").getvalue())

    assert (row["subject"], row["kind"], row["severity"]) == ("'=1+1", "queue_purged", "warning")
    assert entry["text"] == "The queue =1+1 was purged: 1,234 messages were deleted."
    assert (entry["at"], entry["details"]) == ("2026-11-21T12:00:00.000Z", {"count": 1234})


def test_overview_shows_the_last_ten_events(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    for number in range(12):
        event(subject=f"queue-{number}-", at=AT + timedelta(seconds=number))

    found = Markup(client_of("viewer").get(f"{ADMIN}dashboard/").content.decode())

    assert all(f"queue-{number}-" in found.text() for number in range(2, 12))
    assert "queue-1-" not in found.text()
    assert EVENTS in found.links


def test_page_takes_few_statements(postgresql_database: QueueDatabase) -> None:
    install(postgresql_database)
    for number in range(150):
        event(at=AT + timedelta(seconds=number))
    client = client_of("viewer")
    client.get(EVENTS)
    with CaptureQueriesContext(postgresql_database.connection) as own:
        client.get(f"{EVENTS}?severity=warning&subject=Sales")
    assert len(own) <= 5
