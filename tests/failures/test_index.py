"""The failure index follows the error queues: new, late, removed, repeated and acknowledged rows."""

from __future__ import annotations

import json
import uuid
from datetime import timedelta

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from sqlqueue_app.conf import get_settings
from sqlqueue_app.failures import index
from sqlqueue_app.failures.index import FailureIndexing, IndexState, catch_up_for_page, has_new_failures
from sqlqueue_app.messages.failure_groups import deterministic_guid
from sqlqueue_app.models import FailedAttempt, FailedMessage, FailureGroup, FailureStatus
from sqlqueue_app.tables.row_selection import remove_rows
from tests.support.databases import QueueDatabase
from tests.support.error_rows import FAILED_AT as NOW, acknowledgement, failed
from tests.support.failure_index import alias, id_of, index_errors, only, statuses
from tests.support.filling import install, row, table


def test_failure_is_indexed_with_the_values_of_its_headers(errors: QueueDatabase) -> None:
    table(errors, "error").send([failed(body=b"12345")])

    assert index_errors() == IndexState(read=1)
    assert index_errors() == IndexState()

    found = only()
    assert found.pk == id_of("m-1")
    assert (found.message_id, found.conversation_id, found.message_type, found.endpoint, found.failed_q, found.queue) == (
        "m-1", "c-1", "Shop.PlaceOrder", "Sales", "Sales@dbo", "error",
    )  # fmt: skip
    assert (found.exception_type, found.exception_message, found.size, found.attempts, found.poison) == (
        "shop.OutOfStock", "no more A-1", 5, 1, "",
    )  # fmt: skip
    assert (found.first_failed_at, found.failed_at, found.sent_at) == (NOW, NOW, NOW - timedelta(minutes=1))
    assert found.row_version == table(errors, "error").row_versions(1)[0]
    titles = {each.classifier: each.title for each in FailureGroup.objects.using(alias()).all()}
    assert titles == {
        "Exception Type and Stack Trace": "shop.OutOfStock: shop.handlers.place()",
        "Message Type": "Shop.PlaceOrder",
        "Endpoint Address": "Sales@dbo",
        "Endpoint Instance": "0" * 32,
        "Endpoint Name": "Sales",
    }
    assert found.exception_group == deterministic_guid("Exception Type and Stack Trace", "shop.OutOfStock: shop.handlers.place()")
    assert found.type_group == deterministic_guid("Message Type", "Shop.PlaceOrder")


def test_scan_without_news_takes_few_statements(errors: QueueDatabase) -> None:
    table(errors, "error").send([failed(f"m-{number}") for number in range(20)])
    index_errors()

    with CaptureQueriesContext(errors.connection) as queries:
        assert index_errors() == IndexState()

    assert len(queries) <= 4


def test_limited_scan_reports_that_it_is_behind(errors: QueueDatabase) -> None:
    table(errors, "error").send([failed(f"m-{number}") for number in range(7)])

    assert [index_errors(limit=3) for _ in range(3)] == [
        IndexState(read=3, is_behind=True), IndexState(read=3, is_behind=True), IndexState(read=1),
    ]  # fmt: skip
    assert len(statuses()) == 7


def test_row_committed_late_is_found(postgresql_database: QueueDatabase) -> None:
    install(postgresql_database)
    queue = table(postgresql_database, "error")
    slow = connections.create_connection(postgresql_database.alias)
    try:
        with slow.cursor() as cursor:
            cursor.execute("BEGIN")
            values = [str(uuid.uuid4()), failed("late").headers]
            cursor.execute(f"INSERT INTO {queue.qualified} (id, headers, body) VALUES (%s, %s, '')", values)
            queue.send([failed("early")])
            index_errors()
            assert statuses() == {"early": "unresolved"}
            cursor.execute("COMMIT")
    finally:
        slow.close()

    assert index_errors() == IndexState(read=1)
    assert statuses() == {"early": "unresolved", "late": "unresolved"}


def test_older_rows_are_compared_in_stretches(errors: QueueDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "TAIL", 3)
    monkeypatch.setattr(index, "STRETCH", 4)
    queue = table(errors, "error")
    queue.send([failed(f"m-{number}") for number in range(30)])
    index_errors()
    numbers = queue.row_versions(100)
    remove_rows(queue, [numbers[2], numbers[11], numbers[28]])
    # Simulates a row that is committed late: it has not been indexed.
    unseen = FailedAttempt.objects.using(alias()).get(row_version=numbers[9])
    unseen.failure.delete()

    found = IndexState()
    for _ in range(12):
        found = found.plus(index_errors())

    assert found == IndexState(read=1, gone=3)
    gone = {name for name, status in statuses().items() if status == "gone from the error queue"}
    assert gone == {"m-2", "m-11", "m-28"}
    assert statuses()["m-9"] == "unresolved"
    assert not FailedAttempt.objects.using(alias()).filter(row_version__in=[numbers[2], numbers[11], numbers[28]]).exists()


def test_purged_queue_is_detected(errors: QueueDatabase) -> None:
    table(errors, "error").send([failed(f"m-{number}") for number in range(3)])
    index_errors()
    table(errors, "error").purge()

    assert index_errors(now=NOW + timedelta(hours=1)) == IndexState(gone=3)
    assert set(statuses().values()) == {"gone from the error queue"}
    assert {each.status_at for each in FailedMessage.objects.using(alias()).all()} == {NOW + timedelta(hours=1)}


def test_one_job_run_detects_the_purge_of_a_long_queue(errors: QueueDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("TAIL", 5), ("STRETCH", 5), ("GONE_BATCH", 2)):
        monkeypatch.setattr(index, name, value)
    table(errors, "error").send([failed(f"m-{number}") for number in range(60)])
    index_errors()
    table(errors, "error").purge()

    assert FailureIndexing(get_settings(), now=lambda: NOW).index().gone == 60
    assert set(statuses().values()) == {"gone from the error queue"}


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_recreated_table_is_detected(errors: QueueDatabase, rows: int) -> None:
    queue = table(errors, "error")
    queue.send([failed(f"old-{number}") for number in range(2)])
    index_errors()
    with errors.connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE {queue.qualified}")
        if errors.vendor == "sqlite":
            cursor.execute("DELETE FROM sqlite_sequence WHERE name = 'error'")
    install(errors)
    queue = table(errors, "error")
    queue.send([failed(f"new-{number}") for number in range(rows)])
    assert queue.row_versions(1) == [1]

    for _ in range(3):
        index_errors()

    shown = statuses()
    assert {name for name, status in shown.items() if status == "unresolved"} == {f"new-{number}" for number in range(rows)}
    assert {name for name, status in shown.items() if status != "unresolved"} == {"old-0", "old-1"}


def test_copy_of_a_failure_does_not_count_as_an_attempt(errors: QueueDatabase) -> None:
    queue = table(errors, "error")
    queue.send([failed(), failed()])
    index_errors()

    found = only()
    first, second = queue.row_versions(10)
    assert (found.attempts, found.row_version) == (1, second)
    assert {each.row_version for each in found.history.all()} == {first, second}

    remove_rows(queue, [second])
    assert index_errors() == IndexState()
    assert (only().row_version, only().status) == (first, FailureStatus.UNRESOLVED)
    remove_rows(queue, [first])
    assert index_errors() == IndexState(gone=1)
    # The same row again, as if an operator had moved it away and back.
    queue.send([failed()])
    assert index_errors() == IndexState(read=1)
    assert (only().status, only().attempts) == (FailureStatus.UNRESOLVED, 1)


def retry(database: QueueDatabase) -> FailedMessage:
    """Change the rows as a retry does."""
    found = only()
    remove_rows(table(database, "error"), [found.row_version or 0])
    found.history.update(row_version=None)
    found.row_version, found.status = None, FailureStatus.RETRY_ISSUED
    found.save(using=alias())
    return found


def test_message_that_fails_again_is_unresolved_again(errors: QueueDatabase) -> None:
    table(errors, "error").send([failed()])
    index_errors()
    retried = retry(errors)
    assert index_errors() == IndexState()
    assert only().status == FailureStatus.RETRY_ISSUED

    later = NOW + timedelta(hours=2)
    again = failed(
        "whatever",
        at=later,
        ServiceControl_Retry_UniqueMessageId=str(retried.pk),
        NServiceBus_ExceptionInfo_Message="other",
    )
    table(errors, "error").send([again])
    assert index_errors(now=later) == IndexState(read=1)

    found = only()
    assert (found.status, found.attempts, found.exception_message, found.status_at) == (
        FailureStatus.UNRESOLVED, 2, "other", later,
    )  # fmt: skip
    assert (found.first_failed_at, found.failed_at) == (NOW, later)
    assert [each.exception_message for each in found.history.order_by("failed_at")] == ["no more A-1", "other"]


def test_acknowledgement_resolves_the_failure_and_is_consumed(errors: QueueDatabase) -> None:
    queue = table(errors, "error")
    queue.send([failed()])
    index_errors()
    queue.send([acknowledgement(retry(errors).pk)])

    assert index_errors() == IndexState(resolved=1)
    assert only().status == FailureStatus.RESOLVED
    assert queue.row_versions(10) == []


def test_acknowledgements_for_servicecontrol_are_not_consumed(errors: QueueDatabase) -> None:
    install(errors, ERROR_QUEUE_OWNER="servicecontrol")
    queue = table(errors, "error")
    queue.send([failed()])
    index_errors()
    queue.send([acknowledgement(retry(errors).pk)])

    assert index_errors() == IndexState()
    assert only().status == FailureStatus.RETRY_ISSUED
    assert len(queue.row_versions(10)) == 1


def test_unmatched_acknowledgement_is_consumed_only_as_control_message(errors: QueueDatabase) -> None:
    queue = table(errors, "error")
    queue.send([acknowledgement(uuid.uuid4()), acknowledgement(uuid.uuid4(), **{"NServiceBus.ControlMessage": "False"})])

    assert index_errors() == IndexState(read=1)
    assert len(queue.row_versions(10)) == 1
    assert only().poison.startswith("the header NServiceBus.FailedQ is missing")
    assert index_errors() == IndexState()


def test_acknowledgement_of_an_unresolved_failure_changes_nothing(errors: QueueDatabase) -> None:
    queue = table(errors, "error")
    queue.send([failed()])
    index_errors()
    queue.send([acknowledgement(only().pk)])

    assert index_errors() == IndexState()
    assert only().status == FailureStatus.UNRESOLVED
    assert len(queue.row_versions(10)) == 1


@pytest.mark.parametrize("text", ["", "null", "no json", '{"a": {"b": 1}}', '{"NServiceBus.FailedQ": ""}'])
def test_unreadable_rows_are_indexed_as_poison(errors: QueueDatabase, text: str) -> None:
    table(errors, "error").send([row(text, b"x"), row(text, b"x")])

    assert index_errors() == IndexState(read=2)
    found = FailedMessage.objects.using(alias()).all()
    assert all(each.poison and each.exception_group is None for each in found)
    assert {each.failed_at for each in found} == {NOW}
    assert index_errors() == IndexState()


def test_hostile_headers_are_cut_to_fit_the_columns(errors: QueueDatabase) -> None:
    # columns of SQL Server count UTF-16 code units, not characters
    long = "a\0" + "\U0001f600" * 5_000
    hostile = {
        "NServiceBus.MessageId": long,
        "NServiceBus.ConversationId": long,
        "NServiceBus.EnclosedMessageTypes": long,
        "NServiceBus.FailedQ": long,
        "NServiceBus.ProcessingEndpoint": long,
        "NServiceBus.ExceptionInfo.ExceptionType": long,
        "NServiceBus.ExceptionInfo.Message": long,
        "NServiceBus.TimeOfFailure": "never",
        "NServiceBus.TimeSent": "",
        "$.diagnostics.hostid": long,
        "$.diagnostics.hostdisplayname": long,
        "ServiceControl.EditOf": long,
        "ServiceControl.Retry.UniqueMessageId": long,
    }
    table(errors, "error").send([row(json.dumps(hostile))])

    assert index_errors() == IndexState(read=1)
    assert only().message_id.startswith("a\ufffd\U0001f600")


def test_archived_message_stays_archived_until_it_fails_again(errors: QueueDatabase) -> None:
    table(errors, "error").send([failed()])
    index_errors()
    FailedMessage.objects.using(alias()).update(status=FailureStatus.ARCHIVED)
    table(errors, "error").send([failed()])
    index_errors()
    assert only().status == FailureStatus.ARCHIVED

    table(errors, "error").send([failed(at=NOW + timedelta(hours=1))])
    index_errors()
    assert (only().status, only().attempts) == (FailureStatus.UNRESOLVED, 2)


def test_page_reads_the_queues_with_news_among_many(queue_database: QueueDatabase) -> None:
    """As the overview does without a worker: it probes two of the queues, and reads two if one of those has news."""
    endpoints = {f"E{number}": {"ERROR_QUEUE": f"errors{number}"} for number in range(4)}
    install(queue_database, ENDPOINTS=endpoints)
    table(queue_database, "errors2").send([failed()])

    for _ in range(8):
        if has_new_failures(get_settings()):
            catch_up_for_page(get_settings(), NOW)

    assert statuses() == {"m-1": "unresolved"}


def test_missing_queue_is_named(errors: QueueDatabase) -> None:
    errors.configure(ENDPOINTS={"Sales": {}, "Billing": {"ERROR_QUEUE": "elsewhere"}})
    table(errors, "error").send([failed()])

    found = index_errors()

    assert found.read == 1
    assert len(found.problems) == 1
    assert found.problems[0].startswith("elsewhere: ")
