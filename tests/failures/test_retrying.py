"""Retries of failed messages: identical bytes, once each, or left in place with the reason."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from pytest_django import Settings

from sqlqueue_app.conf import get_settings
from sqlqueue_app.dialects.schema import PlannedTable, TableKind
from sqlqueue_app.failures.operation_batches import OperationRefused
from sqlqueue_app.failures.operations import request_operation
from sqlqueue_app.failures.retrying import create_redirect
from sqlqueue_app.failures.selection import FailureSelection
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.models import FailedAttempt, FailedMessage, FailureStatus, Operation, Redirect, managed_alias
from sqlqueue_app.status.events import Actor
from sqlqueue_app.status.queues import address_book_of, address_of_queue
from sqlqueue_app.tables.installation import drop_queue, install_tables
from sqlqueue_app.tables.queue import queue_table
from tests.support.databases import QueueDatabase
from tests.support.failing import fail, failed_row, install_sales, statuses
from tests.support.filling import count, table

ANNA = Actor("anna")


@pytest.fixture
def shop(queue_database: QueueDatabase) -> QueueDatabase:
    install_sales(queue_database)
    return queue_database


def retry(*failures: FailedMessage, **criteria: Any) -> Operation:
    selection = FailureSelection(ids=tuple(each.pk for each in failures), **criteria)
    return request_operation(get_settings(), "retry", selection, actor=ANNA)


def numbers(operation: Operation) -> tuple[str, int, int, int]:
    return str(operation.state), operation.done, operation.skipped, operation.failed


def reasons(operation: Operation) -> dict[str, int]:
    return {entry["reason"]: entry["count"] for entry in operation.log}


def headers_in(shop: QueueDatabase, queue: str) -> list[dict[str, Any]]:
    return [json.loads(row.headers or "") for row in table(shop, queue).peek(1000)]


def test_retried_message_is_unchanged(shop: QueueDatabase) -> None:
    body = bytes(range(256)) * 1000
    message_id = str(uuid.uuid4())
    (failure,) = fail(shop, [failed_row(message_id, body=body, more={"Custom": "ä/\u2028"})])

    operation = retry(failure)

    assert numbers(operation) == ("completed", 1, 0, 0)
    (row,) = table(shop, "Sales").peek(9, body_limit=10_000_000)
    assert row.body == body
    assert row.expires is None
    assert json.loads(row.headers or "") == {
        names.MESSAGE_ID: message_id,
        names.CORRELATION_ID: "the-correlation",
        names.REPLY_TO_ADDRESS: "Web",
        names.ENCLOSED_MESSAGE_TYPES: "Shop.PlaceOrder",
        names.IMMEDIATE_RETRIES: "4",
        "Custom": "ä/\u2028",
        names.RETRY_UNIQUE_MESSAGE_ID: str(failure.pk),
        names.RETRY_ACKNOWLEDGEMENT_QUEUE: address_book_of(get_settings()).canonical(table(shop, "error").address),
    }
    if shop.vendor != "postgresql":
        assert (str(row.id), row.correlation_id, row.reply_to_address) == (message_id, "the-correlation", "Web")
    assert count(shop, "error") == 0
    failure.refresh_from_db()
    assert (failure.status, failure.row_version) == (FailureStatus.RETRY_ISSUED, None)
    assert failure.retried_to == address_book_of(get_settings()).canonical(table(shop, "Sales").address)
    assert uuid.UUID(failure.retry_row_id) == row.id
    assert list(FailedAttempt.objects.values_list("row_version", flat=True)) == [None]


def test_retry_removes_the_rows_of_earlier_attempts(shop: QueueDatabase) -> None:
    unique = str(uuid.uuid4())
    rows = [failed_row("m", body=b"%d" % each, more={names.RETRY_UNIQUE_MESSAGE_ID: unique}) for each in range(3)]
    failure = fail(shop, [*rows[:2], failed_row(), *rows[2:]])[-1]

    assert numbers(retry(failure)) == ("completed", 1, 0, 0)

    assert [row.body for row in table(shop, "Sales").peek(9)] == [b"2"]
    assert count(shop, "error") == 1
    assert FailedAttempt.objects.filter(failure=failure, row_version=None).count() == 3


def test_message_without_an_id_gets_that_of_its_row(shop: QueueDatabase) -> None:
    row = failed_row(more={names.MESSAGE_ID: ""})
    retry(*fail(shop, [row]))

    assert headers_in(shop, "Sales")[0][names.MESSAGE_ID] == row.id


@pytest.mark.parametrize(
    ("failed_q", "reason"),
    [(None, "no failed queue"), (" ", "no failed queue"), ("Nowhere", "no queue"), ("no", "bad address"), ("error", "error queue")],
)
def test_message_that_cannot_be_retried_stays_with_the_reason(shop: QueueDatabase, failed_q: str | None, reason: str) -> None:
    if failed_q == "no":
        if shop.vendor == "sqlite":
            pytest.skip("on SQLite every text is a name")
        failed_q = {"sqlserver": "@dbo", "postgresql": '"'}[shop.vendor]
    failures = fail(shop, [failed_row(failed_q=failed_q), failed_row(failed_q=failed_q), failed_row()])
    before = [row.row_version for row in table(shop, "error").peek(2)]

    operation = retry(*failures)

    assert numbers(operation) == ("completed", 1, 2, 0)
    assert reasons(operation) == {reason: 2}
    assert [row.row_version for row in table(shop, "error").peek(9)] == before
    assert statuses(*failures) == ["UNRESOLVED", "UNRESOLVED", "RETRY_ISSUED"]


def test_error_queue_in_other_case_is_no_target(sqlite_database: QueueDatabase) -> None:
    """On SQLite, and on SQL Server, it is the same table."""
    install_sales(sqlite_database)
    (failure,) = fail(sqlite_database, [failed_row(failed_q="ERROR")])

    assert reasons(retry(failure)) == {"error queue": 1}
    assert count(sqlite_database, "error") == 1


def test_poison_message_stays(shop: QueueDatabase) -> None:
    row = failed_row()
    failures = fail(shop, [type(row)(row.id, "not json", b"")])

    assert reasons(retry(*failures)) == {"poison": 1}
    assert count(shop, "error") == 1


def test_missing_row_is_reported(shop: QueueDatabase) -> None:
    failures = fail(shop, [failed_row(), failed_row()])
    table(shop, "error").purge()

    operation = retry(*failures)

    assert numbers(operation) == ("completed", 0, 2, 0)
    assert reasons(operation) == {"not there": 2}


def test_missing_error_queue_is_reported(shop: QueueDatabase) -> None:
    failures = fail(shop, [failed_row(), failed_row()])
    drop_queue(shop.alias, table(shop, "error").address)

    for kind in ("retry", "delete"):
        operation = request_operation(get_settings(), kind, FailureSelection(ids=tuple(each.pk for each in failures)), actor=ANNA)
        assert numbers(operation) == ("completed", 0, 2, 0)
        assert reasons(operation) == {"not there": 2}


def test_retried_message_is_not_retried_again(shop: QueueDatabase) -> None:
    failures = fail(shop, [failed_row(), failed_row()])
    retry(failures[0])

    operation = retry(*failures)

    assert numbers(operation) == ("completed", 1, 1, 0)
    assert operation.log == [{"what": "skipped", "reason": "status", "detail": "retry issued", "count": 1}]
    assert count(shop, "Sales") == 2


def test_empty_selection_creates_no_operation(shop: QueueDatabase) -> None:
    with pytest.raises(OperationRefused, match="no such message"):
        request_operation(get_settings(), "retry", FailureSelection(endpoint="Nobody"), actor=ANNA)
    assert not Operation.objects.exists()


def test_error_queue_of_servicecontrol_is_read_only(shop: QueueDatabase) -> None:
    failures = fail(shop, [failed_row()])
    shop.configure(ERROR_QUEUE_OWNER="servicecontrol")

    for kind in ("retry", "delete"):
        with pytest.raises(OperationRefused, match="ERROR_QUEUE_OWNER"):
            request_operation(get_settings(), kind, FailureSelection(ids=(failures[0].pk,)), actor=ANNA)
    assert count(shop, "error") == 1


def test_redirect_changes_the_target_of_retries(shop: QueueDatabase) -> None:
    book = address_book_of(get_settings())
    install_tables(shop.alias, [PlannedTable(TableKind.QUEUE, book.of_queue("Sales.New"))])
    redirect = create_redirect(get_settings(), book.canonical(book.of_queue("Gone")), book.canonical(book.of_queue("Sales.New")))
    failures = fail(shop, [failed_row(failed_q="Gone"), failed_row(failed_q="Gone"), failed_row()])

    assert numbers(retry(*failures)) == ("completed", 3, 0, 0)
    assert (count(shop, "Sales.New"), count(shop, "Sales")) == (2, 1)
    assert Redirect.objects.get(pk=redirect.pk).used == 2
    assert FailedMessage.objects.get(pk=failures[0].pk).retried_to == redirect.to_address


def test_retry_to_header_names_a_forwarding_queue(shop: QueueDatabase) -> None:
    book = address_book_of(get_settings())
    install_tables(shop.alias, [PlannedTable(TableKind.QUEUE, book.of_queue("adapter"))])
    failures = fail(shop, [failed_row(more={names.RETRY_TO: "adapter"})])

    retry(*failures)

    (headers,) = headers_in(shop, "adapter")
    assert headers[names.TARGET_ENDPOINT_ADDRESS] == book.canonical(book.of_queue("Sales"))
    assert headers[names.RETRY_TO] == "adapter"


def test_retry_from_a_former_error_queue_is_acknowledged_in_the_present_one(shop: QueueDatabase) -> None:
    """No worker reads the former error queue."""
    row = failed_row(more={names.PROCESSING_ENDPOINT: "Sales"})
    failures = fail(shop, [row, failed_row(more={names.PROCESSING_ENDPOINT: "Elsewhere"})])
    install_sales(shop, ENDPOINTS={"Sales": {"CALLBACKS": False, "ERROR_QUEUE": "errors"}})

    retry(*failures)

    asked = {headers[names.RETRY_ACKNOWLEDGEMENT_QUEUE] for headers in headers_in(shop, "Sales")}
    assert asked == {address_of_queue("errors"), address_of_queue("error")}


def test_allowed_destinations_apply_to_retries(shop: QueueDatabase) -> None:
    failures = fail(shop, [failed_row()])
    shop.configure(ALLOWED_DESTINATIONS=["Billing*"])

    assert reasons(retry(*failures)) == {"not allowed": 1}


def test_allowed_destinations_do_not_match_another_schema(postgresql_database: QueueDatabase) -> None:
    install_sales(postgresql_database)
    with postgresql_database.connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA hr")
    hidden = QueueAddress("Sales", "hr", form="postgresql")
    install_tables(postgresql_database.alias, [PlannedTable(TableKind.QUEUE, hidden)])
    rows = [failed_row(failed_q='"hr"."Sales"'), failed_row(more={names.RETRY_TO: "hr.Sales"}), failed_row()]
    failures = fail(postgresql_database, rows)
    postgresql_database.configure(ALLOWED_DESTINATIONS=["Sales"])

    assert reasons(retry(*failures)) == {"not allowed": 2}
    assert queue_table(postgresql_database.alias, hidden).peek(9) == []


def test_failed_queue_may_be_in_another_schema(postgresql_database: QueueDatabase) -> None:
    install_sales(postgresql_database)
    with postgresql_database.connection.cursor() as cursor:
        cursor.execute('CREATE SCHEMA "od d"')
    address = QueueAddress('Bill"ing', "od d", form="postgresql")
    install_tables(postgresql_database.alias, [PlannedTable(TableKind.QUEUE, address)])
    failures = fail(postgresql_database, [failed_row(failed_q='"od d"."Bill""ing"')])

    assert numbers(retry(*failures)) == ("completed", 1, 0, 0)
    assert len(queue_table(postgresql_database.alias, address).peek(9)) == 1


def test_one_retry_covers_several_error_queues(shop: QueueDatabase) -> None:
    install_sales(shop, ENDPOINTS={"Sales": {"CALLBACKS": False}, "Billing": {"CALLBACKS": False, "ERROR_QUEUE": "error2"}})
    failures = [*fail(shop, [failed_row()]), *fail(shop, [failed_row(failed_q="Billing")], "error2")]

    assert numbers(retry(*failures)) == ("completed", 2, 0, 0)
    assert (count(shop, "error"), count(shop, "error2"), count(shop, "Sales"), count(shop, "Billing")) == (0, 0, 1, 1)
    (headers,) = headers_in(shop, "Billing")
    assert "error2" in headers[names.RETRY_ACKNOWLEDGEMENT_QUEUE]


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        ("archive", FailureStatus.UNRESOLVED, "ARCHIVED"),
        ("unarchive", FailureStatus.ARCHIVED, "UNRESOLVED"),
        ("complete", FailureStatus.RETRY_ISSUED, "RESOLVED"),
    ],
)
def test_status_changes_and_the_row_stays(shop: QueueDatabase, kind: str, before: FailureStatus, after: str) -> None:
    failures = fail(shop, [failed_row(), failed_row()])
    FailedMessage.objects.filter(pk=failures[0].pk).update(status=before)
    FailedMessage.objects.filter(pk=failures[1].pk).update(status=FailureStatus.RESOLVED)

    operation = request_operation(get_settings(), kind, FailureSelection(ids=tuple(each.pk for each in failures)), actor=ANNA)

    assert numbers(operation) == ("completed", 1, 1, 0)
    assert statuses(*failures) == [after, "RESOLVED"]
    assert count(shop, "error") == 2


def test_deleted_messages_keep_their_history(shop: QueueDatabase) -> None:
    unique = str(uuid.uuid4())
    twice = [failed_row("m", more={names.RETRY_UNIQUE_MESSAGE_ID: unique}) for _ in range(2)]
    failures = fail(shop, [*twice, failed_row(), failed_row()])
    FailedMessage.objects.filter(pk=failures[1].pk).update(status=FailureStatus.ARCHIVED)

    selection = FailureSelection(ids=tuple(each.pk for each in failures[:2]))
    operation = request_operation(get_settings(), "delete", selection, actor=ANNA)

    assert numbers(operation) == ("completed", 2, 0, 0)
    assert statuses(*failures) == ["DELETED", "DELETED", "UNRESOLVED"]
    assert count(shop, "error") == 1
    assert FailedAttempt.objects.filter(row_version=None).count() == 3


def test_index_and_queues_may_be_in_different_databases(
    sqlite_database: QueueDatabase, postgresql_database: QueueDatabase, settings: Settings
) -> None:
    settings.DATABASE_ROUTERS = []
    install_sales(postgresql_database)
    assert managed_alias() == sqlite_database.alias != get_settings().database
    failures = fail(postgresql_database, [failed_row(), failed_row(failed_q="Nowhere"), failed_row()])

    assert numbers(retry(*failures[:2])) == ("completed", 1, 1, 0)
    deleted = request_operation(get_settings(), "delete", FailureSelection(ids=(failures[2].pk,)), actor=ANNA)

    assert numbers(deleted) == ("completed", 1, 0, 0)
    assert (count(postgresql_database, "Sales"), count(postgresql_database, "error")) == (1, 1)
    assert statuses(*failures) == ["RETRY_ISSUED", "UNRESOLVED", "DELETED"]
