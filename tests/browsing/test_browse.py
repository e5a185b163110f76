"""Messages of a queue are read page by page and one at a time, and stay in the queue."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from django.test.utils import CaptureQueriesContext

from sqlqueue_app.browsing.bodies import BodyKind
from sqlqueue_app.browsing.messages import Flag, GroupName, PageQuery, read_message, read_page
from sqlqueue_app.messages.errors import QueueNotFound
from sqlqueue_app.tables.rows import NewRow
from tests.support.databases import QueueDatabase
from tests.support.filling import count, install, message, row, table


def versions(database: QueueDatabase, name: str) -> list[int]:
    return [each.row_version for each in read_page(table(database, name), PageQuery(size=100)).messages]


def delete(database: QueueDatabase, name: str, keep: set[int]) -> None:
    column = "seq" if database.vendor == "postgresql" else "RowVersion"
    with database.connection.cursor() as cursor:
        kept = ", ".join(map(str, sorted(keep)))
        cursor.execute(f"DELETE FROM {table(database, name).qualified} WHERE {column} NOT IN ({kept})")


def test_pages_are_ordered_by_row_version(queue_database: QueueDatabase) -> None:
    install(queue_database)
    sales = table(queue_database, "Sales")
    sales.send([message({"n": number}) for number in range(60)])

    seen: list[int] = []
    after: int | None = 0
    sizes = []
    while after is not None:
        with CaptureQueriesContext(queue_database.connection) as queries:
            page = read_page(sales, PageQuery(after=after, size=25))
        assert len(queries) == 1
        sizes.append(len(page.messages))
        seen += [each.row_version for each in page.messages]
        after = page.next_after

    assert sizes == [25, 25, 10]
    assert seen == sorted(set(seen))
    assert len(seen) == count(queue_database, "Sales") == 60


def test_full_last_page_has_no_next_page(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    table(sqlite_database, "Sales").send([message() for _ in range(25)])

    assert read_page(table(sqlite_database, "Sales"), PageQuery(size=25)).next_after is None


def test_summary_shows_the_values_of_the_headers(queue_database: QueueDatabase) -> None:
    install(queue_database)
    types = "Shop.PlaceOrder, Shop, Version=1.0.0.0;Shop.ICommand, Shop"
    table(queue_database, "Sales").send(
        [
            message(
                {"a": "ü"}, lifetime_ms=-5_000, headers={"NServiceBus.EnclosedMessageTypes": types, "NServiceBus.MessageId": "m-1"}
            )
        ]
    )

    (found,) = read_page(table(queue_database, "Sales")).messages

    assert (found.message_id, found.types, found.message_type, found.intent) == (
        "m-1",
        ("Shop.PlaceOrder", "Shop.ICommand"),
        "Shop.PlaceOrder",
        "Send",
    )
    assert found.time_sent is not None
    assert found.expires is not None
    assert found.expires.utcoffset() == timedelta()
    assert found.size == len('{"a": "\\u00fc"}')
    assert found.flags == {Flag.EXPIRED}


@pytest.mark.parametrize("text", ["null", '{"a": [1', "[1]", '{"a": "1", "a": "2"}'])
def test_unreadable_headers_are_shown_verbatim_with_the_reason(queue_database: QueueDatabase, text: str) -> None:
    install(queue_database)
    sent = row(text, b"{}")
    table(queue_database, "Sales").send([sent])
    (summary,) = read_page(table(queue_database, "Sales")).messages

    found = read_message(table(queue_database, "Sales"), summary.row_version)

    assert summary.flags == {Flag.POISON}
    assert summary.message_id == sent.id
    assert summary.unreadable
    assert found is not None
    assert found.headers is None
    assert found.headers_text == text


def test_message_is_shown_in_full(queue_database: QueueDatabase) -> None:
    install(queue_database)
    failure = {"NServiceBus.FailedQ": "Sales", "NServiceBus.ExceptionInfo.Message": "no", "tenant": "küche"}
    table(queue_database, "error").send([message({"total": 1}, headers=failure)])
    (summary,) = read_page(table(queue_database, "error")).messages

    found = read_message(table(queue_database, "error"), summary.row_version)

    assert found is not None
    assert found.summary.flags == {Flag.FAILED}
    assert found.body.kind is BodyKind.JSON
    assert [group.name for group in found.groups] == [GroupName.FAILURE, GroupName.MESSAGE, GroupName.TIMES, GroupName.OTHER]
    assert dict(found.groups[0].headers) == {"NServiceBus.FailedQ": "Sales", "NServiceBus.ExceptionInfo.Message": "no"}
    assert found.groups[-1].headers == (("tenant", "küche"),)
    assert count(queue_database, "error") == 1


def test_null_body_and_empty_headers_are_shown(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    with sqlite_database.connection.cursor() as cursor:
        cursor.execute("INSERT INTO Sales (Id, Recoverable, Headers, Body) VALUES ('x', 1, '', NULL)")

    (summary,) = read_page(table(sqlite_database, "Sales")).messages
    found = read_message(table(sqlite_database, "Sales"), summary.row_version)

    assert summary.flags == {Flag.NULL_BODY}
    assert found is not None
    assert (found.body.kind, found.headers, found.groups) == (BodyKind.NULL, {}, ())


def test_large_body_is_cut_and_its_size_is_shown(queue_database: QueueDatabase) -> None:
    install(queue_database)
    # The cut splits a character of two bytes.
    body = b"x" + "ü".encode() * 35_000
    table(queue_database, "Sales").send([NewRow(str(uuid.uuid4()), "{}", body)])

    (summary,) = read_page(table(queue_database, "Sales")).messages
    found = read_message(table(queue_database, "Sales"), summary.row_version)

    assert found is not None
    assert (found.body.kind, found.body.size, found.body.shown_bytes, found.body.is_cut) == (BodyKind.TEXT, 70_001, 65_536, True)
    assert found.body.text == "x" + "ü" * 32_767
    assert summary.size == 70_001


def test_neighbours_are_found_across_gaps(queue_database: QueueDatabase) -> None:
    install(queue_database)
    sales = table(queue_database, "Sales")
    sales.send([message() for _ in range(400)])
    numbers = [each.row_version for each in sales.peek(400, body_limit=0)]
    kept = [numbers[0], numbers[1], numbers[5], numbers[6], numbers[200], numbers[399]]
    delete(queue_database, "Sales", set(kept))

    found = [read_message(sales, number) for number in kept]

    assert [each and each.previous for each in found] == [None, *kept[:-1]]
    assert [each and each.next for each in found] == [*kept[1:], None]
    with CaptureQueriesContext(queue_database.connection) as queries:
        read_message(sales, kept[3])
    assert len(queries) == 3


@pytest.mark.parametrize("row_version", [0, -1, 4711, 2**63 - 1, 2**63, 10**40])
def test_unknown_row_version_returns_none(queue_database: QueueDatabase, row_version: int) -> None:
    install(queue_database)
    table(queue_database, "Sales").send([message()])

    assert read_message(table(queue_database, "Sales"), row_version) is None


def test_missing_table_is_reported(queue_database: QueueDatabase) -> None:
    queue_database.configure(ENDPOINTS={"Sales": {}})

    with pytest.raises(QueueNotFound):
        read_page(table(queue_database, "Sales"))
