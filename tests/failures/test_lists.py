"""Lists and groups of failures, the query bar, and the location of unacknowledged retries."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

import pytest
from django.test.utils import CaptureQueriesContext

from sqlqueue_app.conf import get_settings
from sqlqueue_app.failures import queries
from sqlqueue_app.failures.index import catch_up
from sqlqueue_app.failures.queries import (
    PageKey,
    RetryPlace,
    count_failures,
    find_retries,
    read_failure,
    read_failures,
    read_groups,
)
from sqlqueue_app.failures.selection import MAX_QUERY_LENGTH, FailureSelection, read_query, write_query
from sqlqueue_app.messages.failure_groups import CLASSIFIERS
from sqlqueue_app.models import FailedAttempt, FailedMessage, FailureStatus
from sqlqueue_app.tables.row_selection import find_ids, remove_rows
from tests.support.databases import QueueDatabase
from tests.support.error_rows import FAILED_AT, failed
from tests.support.filling import install, message, table


@pytest.fixture
def errors(queue_database: QueueDatabase) -> QueueDatabase:
    install(queue_database)
    return queue_database


def fill(database: QueueDatabase, *types: str, apart: timedelta = timedelta(minutes=30)) -> None:
    """One failure of each type, the next one later."""
    table(database, "error").send(
        [
            failed(f"m-{number}", at=FAILED_AT + apart * number, NServiceBus_EnclosedMessageTypes=each)
            for number, each in enumerate(types)
        ]
    )
    catch_up(get_settings(), limit=500, now=FAILED_AT)


def everything() -> FailureSelection:
    return FailureSelection(statuses=(FailureStatus.UNRESOLVED,))


def test_pages_are_ordered_by_time_and_id(errors: QueueDatabase) -> None:
    # Several at the same time: the id decides among them.
    fill(errors, *["A"] * 7, apart=timedelta())
    fill(errors, *["A"] * 3)
    seen: list[FailedMessage] = []
    after: PageKey | None = None
    while True:
        page = read_failures(everything().queryset(), after=after, size=3)
        seen += page.messages
        if page.next is None:
            break
        after = PageKey.read(str(page.next))

    assert [each.pk for each in seen] == [each.pk for each in everything().queryset().order_by("-failed_at", "-pk")]
    assert count_failures(everything().queryset()) == (len(seen), True)


@pytest.mark.parametrize(
    "text", ["", "_", "2026-05-01T12:00:00Z", "2026-05-01T12:00:00Z_x", "x_3c3c90ba-3dda-41bb-b5ab-460449a8f80e", "\0"]
)
def test_invalid_page_key_selects_the_first_page(text: str) -> None:
    assert PageKey.read(text) is None


def test_groups_have_counts_times_and_a_trend(errors: QueueDatabase) -> None:
    fill(errors, "A", "B", "A")
    now = FAILED_AT + timedelta(hours=24)

    with CaptureQueriesContext(errors.connection) as queries:
        page = read_groups(everything(), "type", now=now)

    assert len(queries) == 3
    assert [(each.group.title, each.count) for each in page.groups] == [("A", 2), ("B", 1)]
    first = page.groups[0]
    assert (first.first, first.last) == (FAILED_AT, FAILED_AT + timedelta(hours=1))
    assert first.trend == (2, *[0] * 11)
    assert read_groups(everything(), "type", now=now + timedelta(hours=2)).groups[0].trend == (0,) * 12


def test_each_group_appears_on_exactly_one_page(errors: QueueDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqlqueue_app.failures.queries.GROUPS_PER_PAGE", 2)
    fill(errors, "A", "B", "C", "D", "E")
    titles: list[str] = []
    after: PageKey | None = None
    while True:
        page = read_groups(everything(), "type", now=FAILED_AT, after=after)
        titles += [each.group.title for each in page.groups]
        if page.next is None:
            break
        after = PageKey.read(str(page.next))

    assert titles == ["E", "D", "C", "B", "A"]


def test_file_of_groups_counts_them_once(errors: QueueDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqlqueue_app.failures.queries.GROUPS_PER_PAGE", 2)
    fill(errors, "A", "B", "C", "D", "E")

    with CaptureQueriesContext(errors.connection) as queries:
        rows = read_groups(everything(), "type", now=FAILED_AT, whole=True).groups
    pairs = read_groups(everything(), "type", now=FAILED_AT, also="endpoint", whole=True).groups

    assert len(queries) == 2
    assert [each.group.title for each in rows] == ["E", "D", "C", "B", "A"]
    assert [(each.group.title, each.also and each.also.title) for each in pairs] == [(name, "Sales") for name in "EDCBA"]


def test_search_whose_first_page_has_all_matches_is_not_counted_again(errors: QueueDatabase) -> None:
    fill(errors, "A", "B")
    matches = everything().queryset()

    with CaptureQueriesContext(errors.connection) as queries:
        page = read_failures(matches, after=None, size=2)
        counted = count_failures(matches, page)

    assert (counted, len(queries)) == ((2, True), 1)
    assert count_failures(matches, read_failures(matches, after=None, size=1)) == (2, True)


@pytest.mark.parametrize("classifier", CLASSIFIERS)
def test_every_classifier_forms_groups(errors: QueueDatabase, classifier: str) -> None:
    fill(errors, "A")

    assert [each.count for each in read_groups(everything(), classifier, now=FAILED_AT).groups] == [1]


NOW = datetime(2026, 5, 2, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", FailureSelection()),
        ("type:PlaceOrder endpoint:Sales", FailureSelection(message_type="PlaceOrder", endpoint="Sales")),
        ('exception:"out of stock" more', FailureSelection(exception="out of stock", text="more")),
        ("status:archived status:gone", FailureSelection(statuses=(FailureStatus.ARCHIVED, FailureStatus.GONE))),
        ("status:any", FailureSelection(statuses=tuple(FailureStatus))),
        ("STATUS:Unresolved", FailureSelection(statuses=(FailureStatus.UNRESOLVED,))),
        ("queue:Sales@dbo conversation:c id:1", FailureSelection(queue="Sales@dbo", conversation="c", message_id="1")),
        ('queue:"public"."Sales" more', FailureSelection(queue='"public"."Sales"', text="more")),
        ('retried:"""public"".""Old sales"""', FailureSelection(retried_to='"public"."Old sales"')),
        ("failed:-6h..now", FailureSelection(since=NOW - timedelta(hours=6))),
        ("failed:-2d..-1d", FailureSelection(since=NOW - timedelta(days=2), until=NOW - timedelta(days=1))),
        ("failed:2026-05-01T00:00:00Z..", FailureSelection(since=datetime(2026, 5, 1, tzinfo=UTC))),
        ("failed:..2026-05-01T00:00:00Z", FailureSelection(until=datetime(2026, 5, 1, tzinfo=UTC))),
        ('https://example.com "two words" odd:', FailureSelection(text='https://example.com "two words" odd:')),
    ],
)
def test_query_bar_reads_and_writes_selections(text: str, expected: FailureSelection) -> None:
    found = read_query(text, NOW)

    assert found == expected
    assert found.problems == ()
    assert read_query(write_query(found), NOW) == found


@pytest.mark.parametrize(
    "text",
    [
        "status:odd",
        "group:x",
        "failed:yesterday",
        "failed:-999999w..",
        "x" * (MAX_QUERY_LENGTH + 1),
        "failed:2026-13-01T00:00:00Z..",
    ],
)
def test_unreadable_query_selects_nothing(errors: QueueDatabase, text: str) -> None:
    fill(errors, "A")
    found = read_query(text, NOW)

    assert found.problems
    assert not found.queryset().exists()


@pytest.mark.parametrize("text", ['endpoint:""', 'exception:"', 'status:""', 'failed:""'])
def test_filter_without_a_value_does_not_select_everything(errors: QueueDatabase, text: str) -> None:
    fill(errors, "A")
    assert not read_query(text, NOW).queryset().exists()


@pytest.mark.parametrize(
    "text", ['"', '""', ":", "a:", ":b", 'type:"', "type:\0", "\0", "failed:..", "failed:", "type: x", "*", "%_\\"]
)
def test_odd_query_text_raises_no_error(errors: QueueDatabase, text: str) -> None:
    fill(errors, "A")

    list(read_query(text, NOW).queryset())


def mark_retried(database: QueueDatabase, queue: str, row_id: uuid.UUID) -> FailedMessage:
    (found,) = FailedMessage.objects.using(database.alias).all()
    found.status, found.status_at = FailureStatus.RETRY_ISSUED, FAILED_AT
    found.retried_to, found.retry_row_id, found.row_version = queue, str(row_id), None
    found.save(using=database.alias)
    return found


def test_location_of_a_retry_is_found(errors: QueueDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(errors, "A")
    target = table(errors, "Sales")
    rows = [message() for _ in range(3)]
    target.send(rows)
    retried = mark_retried(errors, "Sales", uuid.UUID(rows[1].id))

    def where() -> RetryPlace:
        return find_retries(get_settings(), [retried])[retried.pk].where

    assert find_retries(get_settings(), [retried])[retried.pk].row_version == target.row_versions(3)[1]
    remove_rows(target, target.row_versions(3)[1:2])
    assert where() == RetryPlace.TAKEN
    monkeypatch.setattr(queries, "MAX_ROWS", 1)
    assert where() == (RetryPlace.TAKEN if errors.vendor == "postgresql" else RetryPlace.NOT_FOUND)
    retried.retried_to = "nowhere"
    assert where() == RetryPlace.NO_QUEUE
    retried.retried_to = "[a"
    assert where() in (RetryPlace.UNREADABLE, RetryPlace.NO_QUEUE)
    retried.retry_row_id = ""
    assert where() == RetryPlace.UNKNOWN


def test_ids_are_found_in_a_queue(errors: QueueDatabase) -> None:
    rows = [message() for _ in range(3)]
    target = table(errors, "Sales")
    target.send(rows)
    ids = [uuid.UUID(each.id) for each in rows]

    found = find_ids(target, [ids[0], ids[2], uuid.uuid4()], limit=10)

    numbers = target.row_versions(3)
    assert found == {ids[0]: numbers[0], ids[2]: numbers[2]}
    assert find_ids(target, [], limit=10) == {}


def test_failure_is_read_without_a_row_of_another_message(errors: QueueDatabase) -> None:
    fill(errors, "A", "B")
    first, second = FailedMessage.objects.using(errors.alias).order_by("failed_at")
    found = read_failure(get_settings(), first.pk)
    assert found is not None
    assert found.row is not None
    assert found.row.summary.message_id == "m-0"
    assert [key for key, _group in found.groups] == list(CLASSIFIERS)

    # The table was recreated and the number belongs to another message.
    number = second.row_version
    for failure, place in ((second, None), (first, number)):
        FailedAttempt.objects.using(errors.alias).filter(failure=failure).update(row_version=place)
        FailedMessage.objects.using(errors.alias).filter(pk=failure.pk).update(row_version=place)
    found = read_failure(get_settings(), first.pk)
    assert found is not None
    assert found.row is None
    assert (found.message.row_version, found.message.status) == (None, FailureStatus.GONE)
    assert read_failure(get_settings(), uuid.uuid4()) is None
