"""Events are recorded once despite concurrent processes, deleted when old, and always readable."""

from __future__ import annotations

import threading
import uuid
from datetime import timedelta

import pytest
from django.db import connections, transaction
from django.db.utils import DataError
from django.utils import translation

from sqlqueue_app.browsing.messages import purge_queue
from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard.history import text_of_event
from sqlqueue_app.failures.index import FailureIndexing
from sqlqueue_app.failures.operation_kinds import KINDS
from sqlqueue_app.failures.operations import OperationRunner
from sqlqueue_app.models import Event, FailedMessage, FailureStatus, Operation, OperationState, Severity, managed_alias
from sqlqueue_app.status import events
from sqlqueue_app.status.events import CATALOGUE, EventKind, record_event, report_event
from sqlqueue_app.status.retention import EVENTS_KEPT, delete_old_events
from sqlqueue_app.tables.row_selection import remove_rows
from tests.support.databases import QueueDatabase
from tests.support.error_rows import FAILED_AT as NOW, failed
from tests.support.failure_index import alias, index_errors
from tests.support.filling import message, table
from tests.support.waiting import run_in_threads

SECOND = timedelta(seconds=1)
PLACED = "shop.OutOfStock: shop.handlers.place()"


def recorded() -> list[tuple[str, str]]:
    return [(each.kind, each.subject) for each in Event.objects.using(alias()).order_by("id")]


def set_status(status: FailureStatus) -> None:
    FailedMessage.objects.using(alias()).update(status=status)


def test_new_group_is_recorded_once(errors: QueueDatabase) -> None:
    table(errors, "error").send([failed("m-1"), failed("m-2")])
    index_errors()
    table(errors, "error").send([failed("m-3", at=NOW + SECOND)])
    index_errors()

    assert recorded() == [("group_new", PLACED)]
    event = Event.objects.using(alias()).get()
    assert (event.severity, event.at) == (Severity.ERROR, NOW)
    assert event.details["group"] == str(FailedMessage.objects.using(alias()).all()[0].exception_group)


@pytest.mark.parametrize("status", [FailureStatus.RESOLVED, FailureStatus.ARCHIVED, FailureStatus.DELETED])
def test_group_returns_after_all_its_failures_were_closed(errors: QueueDatabase, status: FailureStatus) -> None:
    table(errors, "error").send([failed("m-1"), failed("m-2")])
    index_errors()
    set_status(status)
    table(errors, "error").send([failed("m-3", at=NOW + SECOND), failed("m-4", at=NOW + SECOND)])
    index_errors()
    table(errors, "error").send([failed("m-5", at=NOW + 2 * SECOND)])
    index_errors()

    assert recorded() == [("group_new", PLACED), ("group_back", PLACED)]


@pytest.mark.parametrize("status", [FailureStatus.UNRESOLVED, FailureStatus.RETRY_ISSUED])
def test_group_with_open_failures_does_not_return(errors: QueueDatabase, status: FailureStatus) -> None:
    table(errors, "error").send([failed("m-1")])
    index_errors()
    set_status(status)
    table(errors, "error").send([failed("m-1", at=NOW + SECOND), failed("m-2", at=NOW + SECOND)])
    index_errors()

    assert recorded() == [("group_new", PLACED)]


def test_restored_row_is_no_new_failure(errors: QueueDatabase) -> None:
    queue = table(errors, "error")
    queue.send([failed("m-1")])
    index_errors()
    remove_rows(queue, [1])
    index_errors()
    assert FailedMessage.objects.using(alias()).get().status == FailureStatus.GONE
    queue.send([failed("m-1")])
    index_errors()

    assert FailedMessage.objects.using(alias()).get().status == FailureStatus.UNRESOLVED
    assert recorded() == [("group_new", PLACED)]


def test_concurrent_scans_record_each_group_once(errors: QueueDatabase) -> None:
    table(errors, "error").send(
        [failed(f"m-{number}", NServiceBus_ExceptionInfo_ExceptionType=f"T{number}") for number in range(30)]
    )
    begin = threading.Barrier(3)

    def work() -> None:
        try:
            begin.wait(60)
            while (found := index_errors(limit=10)).is_behind or found.problems:
                pass
        finally:
            connections.close_all()

    run_in_threads(work, 3)

    assert len(recorded()) == len(set(recorded())) == 30


def test_rolled_back_transaction_records_no_event(errors: QueueDatabase) -> None:
    with transaction.atomic(using=alias()):
        record_event(EventKind.QUEUE_PURGED, "Sales", {"count": 1}, now=NOW)
        transaction.set_rollback(True, using=alias())

    assert recorded() == []


@pytest.mark.parametrize("subject", ["a\0b", "x" * 5_000, "\ud800", "", "<b>'\"@/é", "٣ قائمة"])
def test_any_subject_is_accepted(errors: QueueDatabase, subject: str) -> None:
    record_event(EventKind.GROUP_NEW, subject, {"group": subject, "nested": [subject]}, now=NOW)

    event = Event.objects.using(alias()).get()
    assert event.details == {"group": subject, "nested": [subject]}
    assert len(event.subject) <= 400
    assert text_of_event(event) == f"New failure group: {event.subject}"


def test_event_that_cannot_be_stored_does_not_roll_back(errors: QueueDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    # A text that is too long for its column makes the database refuse it.
    monkeypatch.setattr(events, "fitting_subject", lambda text: text * 1_000)
    with transaction.atomic(using=alias()):
        Operation.objects.using(alias()).create(id=uuid.uuid4(), kind="retry", requested_at=NOW)
        if errors.vendor == "sqlite":
            Event.objects.using(alias()).all().delete()  # accepts texts of any length
        report_event(EventKind.QUEUE_PURGED, "Sales", {"count": 1})
        assert Operation.objects.using(alias()).count() == 1

    assert Operation.objects.using(alias()).count() == 1
    if errors.vendor == "postgresql":
        assert recorded() == []
        with pytest.raises(DataError):
            record_event(EventKind.QUEUE_PURGED, "Sales", now=NOW)


def test_purge_is_recorded(errors: QueueDatabase) -> None:
    table(errors, "Sales").send([message() for _ in range(3)])

    assert purge_queue(table(errors, "Sales")) == 3

    assert recorded() == [("queue_purged", "Sales")]
    assert text_of_event(Event.objects.using(alias()).get()) == "The queue Sales was purged: 3 messages were deleted."


@pytest.mark.parametrize(
    ("state", "kind", "text"),
    [
        (OperationState.COMPLETED, "operation_completed", "Retry completed on it: 0 done, 0 skipped, 0 failed."),
        (OperationState.CANCELLED, "operation_cancelled", "Retry on it cancelled after 0 messages."),
        (OperationState.FAILED, "operation_failed", "Retry on it stopped early after 0 messages: "),
    ],
)
def test_end_of_an_operation_is_recorded(errors: QueueDatabase, state: OperationState, kind: str, text: str) -> None:
    operation = Operation.objects.using(alias()).create(
        id=uuid.uuid4(),
        kind="retry" if state != OperationState.FAILED else next(iter(KINDS)),
        scope={} if state != OperationState.COMPLETED else {"ids": [str(uuid.uuid4())]},
        description="it",
        cancel_requested=state == OperationState.CANCELLED,
        user_key="99" if state == OperationState.FAILED else "",
        requested_at=NOW,
    )
    runner, other = (OperationRunner(get_settings()) for _ in range(2))

    for each in (runner, other, runner):
        each.run(operation.pk, wait=lambda _: False)

    operation.refresh_from_db(using=alias())
    assert (operation.state, recorded()) == (state, [(kind, "it")])
    event = Event.objects.using(alias()).get()
    assert event.details["operation"] == str(operation.pk)
    assert text_of_event(event).startswith(text)


@pytest.mark.parametrize(
    ("kind", "text", "german"),
    [
        ("archive", "Archive completed on it: 3 done, 0 skipped, 0 failed.", "„Archivieren“ für it abgeschlossen: "),
        ("move_queue", "Move completed on it: 3 done, 0 skipped, 0 failed.", "„Verschieben“ für it abgeschlossen: "),
        (None, "Operation completed on it: 3 done, 0 skipped, 0 failed.", "„Vorgang“ für it abgeschlossen: "),
        ("unheard of", "Operation completed on it: 3 done, 0 skipped, 0 failed.", "„Vorgang“ für it abgeschlossen: "),
    ],
)
def test_end_of_an_operation_names_its_kind(kind: str | None, text: str, german: str) -> None:
    """The events of an earlier version may have none."""
    details = {"done": 3, "skipped": 0, "failed": 0, **({} if kind is None else {"kind": kind})}
    event = Event(kind="operation_completed", subject="it", details=details)
    assert text_of_event(event) == text
    with translation.override("de"):
        assert text_of_event(event).startswith(german)


def test_old_events_are_deleted_in_batches(errors: QueueDatabase) -> None:
    old, young = NOW - EVENTS_KEPT - SECOND, NOW - EVENTS_KEPT + SECOND
    rows = [Event(at=old if number < 2_500 else young, severity="info", kind="x") for number in range(2_600)]
    Event.objects.using(alias()).bulk_create(rows, batch_size=100)

    assert delete_old_events(alias(), NOW) == 2_500
    assert Event.objects.using(alias()).count() == 100


def test_worker_deletes_old_events(errors: QueueDatabase) -> None:
    record_event(EventKind.GROUP_NEW, "old", now=NOW - EVENTS_KEPT - SECOND)
    record_event(EventKind.GROUP_NEW, "young", now=NOW - SECOND)

    FailureIndexing(get_settings(), now=lambda: NOW).index()

    assert recorded() == [("group_new", "young")]
    assert managed_alias() == alias()


@pytest.mark.parametrize("details", [None, [], "x", {"count": "%s"}, {"operation": 3}])
def test_every_kind_has_a_text_for_any_details(details: object) -> None:
    for kind in (*EventKind, "unheard of"):
        text = text_of_event(Event(kind=str(kind), subject="%(x)s", details=details))
        assert text
        with translation.override("de"):
            assert text_of_event(Event(kind=str(kind), subject="%(x)s", details=details))
    assert CATALOGUE.keys() == set(EventKind)
