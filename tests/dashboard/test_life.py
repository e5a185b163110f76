"""The history of a failed message on its page: sending, failures, retries, edits and its present location."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db import connections
from django.test.utils import CaptureQueriesContext

from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard.formats import stamp
from sqlqueue_app.messages.times import format_time
from sqlqueue_app.models import FailedAttempt, FailureStatus
from sqlqueue_app.status.queues import address_book_of
from sqlqueue_app.tables.rows import NewRow
from tests.support.databases import QueueDatabase
from tests.support.error_rows import FAILED_AT, acknowledgement, failed
from tests.support.failing import fail
from tests.support.filling import install, table
from tests.support.pages import Markup, client_of

FAILURES = "/admin/sqlqueue_app/failedmessage/"
CONFIRMED = {"confirmed": "1"}
# Of a page: 4 of login, 2 of badges.
MAX_STATEMENTS = 15


def steps(unique: UUID) -> list[list[str]]:
    """The rows of the table, newest first, as the texts of their cells."""
    html = client_of("viewer").get(f"{FAILURES}{unique}/").content.decode()
    (found,) = re.findall(r'<section aria-labelledby="sq-life">.*?</section>', html, re.DOTALL)
    rows = re.findall(r"<tr.*?</tr>", found, re.DOTALL)[1:]
    return [[" ".join(Markup(cell).text().split()) for cell in re.findall(r"<t[hd].*?</t[hd]>", row, re.DOTALL)] for row in rows]


def kinds(unique: UUID) -> list[str]:
    return [row[1] for row in steps(unique)]


def row(*, minutes: int = 0, unique: UUID | None = None) -> NewRow:
    at = FAILED_AT + timedelta(minutes=minutes)
    more: dict[str, Any] = {
        "NServiceBus.FailedQ": "Sales",
        "NServiceBus.OriginatingEndpoint": "Web",
        "$.diagnostics.hostdisplayname": "mill-7",
        "NServiceBus.ExceptionInfo.Data.Handler start time": format_time(at - timedelta(seconds=3)),
        "NServiceBus.Retries.Timestamp": format_time(at - timedelta(seconds=20)),
        "ServiceControl.Retry.UniqueMessageId": str(unique) if unique else None,
    }
    return failed("m-1", at=at, **more)


def test_unresolved_message_counts_from_its_failure_not_from_the_update_of_the_index(queue_database: QueueDatabase) -> None:
    install(queue_database)
    (found,) = fail(queue_database, [row()])
    assert found.status_at > FAILED_AT + timedelta(days=1)
    since = stamp(FAILED_AT)
    assert steps(found.pk)[0][0] == since
    html = client_of("viewer").get(f"{FAILURES}{found.pk}/").content.decode()
    assert f"Unresolved since {since}" in Markup(html).text()


def retry(unique: UUID) -> None:
    assert client_of("writer").post(f"{FAILURES}retry/?ids={unique}", CONFIRMED).status_code == 302


def test_each_failure_and_each_retry_is_a_step(queue_database: QueueDatabase) -> None:
    install(queue_database)
    (found,) = fail(queue_database, [row()])
    assert kinds(found.pk) == ["In the error queue", "Failed", "Delayed retry", "Sent"]
    here, failure, _delayed, sent = steps(found.pk)
    assert "error" in here[2]
    assert "mill-7" in failure[2]
    assert failure[3] == "3.0 s"
    assert "shop.OutOfStock" in failure[4]
    assert sent[2] == "Web"

    retry(found.pk)
    assert kinds(found.pk) == ["Retry issued", "Retried", "Failed", "Delayed retry", "Sent"]
    now, retried, *_older = steps(found.pk)
    assert "Sales" in now[4]
    assert "writer" in retried[4]

    table(queue_database, "Sales").purge()
    table(queue_database, "error").send([row(minutes=9, unique=found.pk)])
    kinds_again = kinds(found.pk)
    assert kinds_again == ["In the error queue", "Failed", "Delayed retry", "Retried", "Failed", "Delayed retry", "Sent"]
    # The retry uses the database clock and the failures are from May; the order is still chronological.
    assert [each.retried_at is None for each in FailedAttempt.objects.order_by("failed_at")] == [False, True]

    retry(found.pk)
    table(queue_database, "Sales").purge()
    table(queue_database, "error").send([acknowledgement(found.pk)])
    assert kinds(found.pk)[0] == "Resolved"


def test_message_that_failed_again_is_deleted_from_its_error_queue(queue_database: QueueDatabase) -> None:
    install(queue_database)
    (found,) = fail(queue_database, [row()])
    retry(found.pk)
    table(queue_database, "Sales").purge()
    table(queue_database, "error").send([row(minutes=9, unique=found.pk)])
    assert kinds(found.pk)[0] == "In the error queue"
    assert client_of("writer").post(f"{FAILURES}delete/?ids={found.pk}", CONFIRMED).status_code == 302
    assert steps(found.pk)[0][1:3] == ["Deleted", "error"]


def test_queues_are_shown_by_name(queue_database: QueueDatabase) -> None:
    """The address on the wire has a schema, and quotes on PostgreSQL; pages show the name of the queue, and headers the address."""
    install(queue_database)
    book = address_book_of(get_settings())
    address = book.canonical(book.of_queue("Sales"))
    (found,) = fail(queue_database, [failed("m-1", NServiceBus_FailedQ=address)])
    assert steps(found.pk)[1][2] == "Sales mill"
    markup = Markup(client_of("viewer").get(f"{FAILURES}{found.pk}/").content.decode())
    assert "Failed in Sales " in " ".join(markup.text().split())
    assert f"NServiceBus.FailedQ {address}" in " ".join(markup.text().split())


def test_edited_copy_is_linked_with_its_state(queue_database: QueueDatabase) -> None:
    install(queue_database)
    (found,) = fail(queue_database, [row()])
    client = client_of("admin")
    page = f"{FAILURES}edit/?ids={found.pk}"
    edited = {"headers": '{"A": "1"}', "body": '{"a": 1}', "row_version": str(found.row_version), "seen": "1", **CONFIRMED}
    answer = client.post(page, edited)
    assert answer.status_code == 302, Markup(answer.content.decode()).text()
    attempt = FailedAttempt.objects.get()
    found.refresh_from_db()
    assert found.status == FailureStatus.RETRY_ISSUED
    now, edit, *_older = steps(found.pk)
    assert (now[1], edit[1]) == ("Retry issued", "Edited and retried")
    assert attempt.copy_id in edit[4]

    (waiting,) = table(queue_database, "Sales").peek(9)
    headers = json.loads(waiting.headers or "")
    table(queue_database, "Sales").purge()
    again = {**headers, "NServiceBus.FailedQ": "Sales", "NServiceBus.TimeOfFailure": format_time(FAILED_AT + timedelta(hours=1))}
    (copy,) = fail(queue_database, [NewRow(headers["NServiceBus.MessageId"], json.dumps(again), b"{}")])

    assert "Its edited copy has failed" in steps(found.pk)[0][4]
    html = client.get(f"{FAILURES}{found.pk}/").content.decode()
    assert f"{FAILURES}{copy.pk}/" in Markup(html).links
    assert f"{FAILURES}{found.pk}/" in Markup(client.get(f"{FAILURES}{copy.pk}/").content.decode()).links


def test_retried_message_links_to_its_history(queue_database: QueueDatabase) -> None:
    """The link is on the message in its queue and, after handling, in the audit queue."""
    install(queue_database)
    (found,) = fail(queue_database, [row()])
    retry(found.pk)
    (waiting,) = table(queue_database, "Sales").peek(9)
    page = f"/admin/sqlqueue_app/queue/Sales/{waiting.row_version}/"
    assert f"{FAILURES}{found.pk}/" in Markup(client_of("viewer").get(page).content.decode()).links
    found.delete()
    assert "History of its failures" not in client_of("viewer").get(page).content.decode()


def test_page_takes_few_statements(queue_database: QueueDatabase) -> None:
    install(queue_database)
    (found,) = fail(queue_database, [row()])
    retry(found.pk)
    client = client_of("viewer")
    page = f"{FAILURES}{found.pk}/"
    client.get(page)
    with (
        CaptureQueriesContext(connections[queue_database.alias]) as queries,
        CaptureQueriesContext(connections["default"]) as others,
    ):
        client.get(page)
    found_together = len(queries) + (len(others) if queue_database.alias != "default" else 0)
    assert found_together <= MAX_STATEMENTS, [each["sql"] for each in [*queries.captured_queries, *others.captured_queries]]
