"""Rows selected by their RowVersions: all of each, each once, without waiting for held rows."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.db import transaction

from sqlqueue_app.messages.errors import QueueNotFound
from sqlqueue_app.tables import row_selection
from sqlqueue_app.tables.queue import QueueTable
from sqlqueue_app.tables.receive_transaction import receive_transaction
from sqlqueue_app.tables.row_selection import headers_of_rows, remove_rows, take_rows
from tests.support.databases import QueueDatabase
from tests.support.tables import address_of, elsewhere, make_table, row, rows, server_cases

HOUR_MS = 3_600_000


def numbers(queue: QueueTable) -> list[int]:
    return [each.row_version for each in queue.peek(99)]


def test_rows_are_taken_completely(queue: QueueTable) -> None:
    body = bytes(range(256)) * 300
    chosen = row(body, '{"a":"\\u00e4"}', correlation_id="c", reply_to_address="Web", time_to_be_received_ms=HOUR_MS)
    queue.send([row(), chosen, row(b"")])
    first, second, third = numbers(queue)

    taken, empty = take_rows(queue, [third, second])

    assert (taken.row_version, taken.headers, taken.body) == (second, '{"a":"\\u00e4"}', body)
    assert taken.lifetime_ms is not None
    assert HOUR_MS - 600_000 < taken.lifetime_ms <= HOUR_MS
    assert (empty.row_version, empty.body, empty.lifetime_ms) == (third, b"", None)
    if queue.dialect.name != "postgresql":
        assert (str(taken.id), taken.correlation_id, taken.reply_to_address) == (chosen.id, "c", "Web")
    assert numbers(queue) == [first]


def test_expired_row_has_a_negative_lifetime(queue: QueueTable) -> None:
    queue.send([row(time_to_be_received_ms=-HOUR_MS)])

    (taken,) = take_rows(queue, numbers(queue))

    assert taken.lifetime_ms is not None
    assert taken.lifetime_ms < -HOUR_MS + 1000


@pytest.mark.parametrize(
    ("expires", "shown", "is_expired"),
    [
        ("infinity", datetime(9999, 12, 30, tzinfo=UTC), False),
        ("-infinity", datetime(1, 1, 2, tzinfo=UTC), True),
        ("0044-03-15 BC", datetime(1, 1, 2, tzinfo=UTC), True),
        ("294276-12-31", datetime(9999, 12, 30, tzinfo=UTC), False),
    ],
)
def test_expiry_that_no_datetime_holds(postgresql_database: QueueDatabase, expires: str, shown: datetime, is_expired: bool) -> None:
    queue = make_table(postgresql_database, "classic")
    queue.send([row(time_to_be_received_ms=HOUR_MS)])
    with postgresql_database.connection.cursor() as cursor:
        cursor.execute(f"UPDATE {queue.qualified} SET expires = %s", [expires])

    (seen,) = queue.peek(1)
    (taken,) = take_rows(queue, [seen.row_version])

    assert (seen.expires, seen.expired) == (shown, is_expired)
    assert taken.lifetime_ms is not None
    assert (taken.lifetime_ms < 0) is is_expired
    queue.send([row(time_to_be_received_ms=taken.lifetime_ms)])
    assert numbers(queue)


def test_missing_rows_are_skipped(queue: QueueTable) -> None:
    queue.send(rows(2))
    first, second = numbers(queue)

    assert list(headers_of_rows(queue, [first, 999, 2**62])) == [first]
    assert remove_rows(queue, [999, second, -1]) == [second]
    assert take_rows(queue, [second]) == []
    assert take_rows(queue, []) == []
    assert numbers(queue) == [first]


def test_reading_headers_takes_no_row(queue: QueueTable) -> None:
    queue.send([row(headers='{"n":"1"}'), row(headers='{"n":"2"}')])

    assert list(headers_of_rows(queue, numbers(queue)).values()) == ['{"n":"1"}', '{"n":"2"}']
    assert len(numbers(queue)) == 2


def test_many_rows_need_several_statements(queue: QueueTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_selection, "ROWS_PER_STATEMENT", 4)
    queue.send(rows(10))

    assert [taken.body for taken in take_rows(queue, reversed(numbers(queue)))] == [b"%d" % number for number in range(10)]


def test_rollback_restores_taken_rows(queue: QueueTable) -> None:
    queue.send(rows(3))
    before = numbers(queue)

    with transaction.atomic(using=queue.alias):
        assert len(take_rows(queue, before[:2])) == 2
        assert remove_rows(queue, before[2:]) == before[2:]
        transaction.set_rollback(True, using=queue.alias)

    assert numbers(queue) == before


@pytest.mark.parametrize("case", server_cases(), indirect=True, ids="-".join)
def test_held_rows_are_skipped(queue: QueueTable) -> None:
    queue.send(rows(3))
    first, second, third = numbers(queue)
    receiving = receive_transaction(queue)
    receiving.receive()

    assert [taken.row_version for taken in elsewhere(lambda: take_rows(queue, [first, second]))] == [second]
    assert elsewhere(lambda: remove_rows(queue, [first, third])) == [third]

    receiving.abandon()
    assert numbers(queue) == [first]


def test_missing_table_is_reported(database: QueueDatabase) -> None:
    missing = QueueTable(database.alias, address_of(database, "nothing"))

    for work in (headers_of_rows, take_rows, remove_rows):
        with pytest.raises(QueueNotFound):
            work(missing, [1])
