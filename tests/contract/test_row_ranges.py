"""Many rows by their numbers: exactly those, counted, in statements of a safe size."""

from __future__ import annotations

import random

import pytest
from django.db import transaction

from sqlqueue_app.tables import row_selection
from sqlqueue_app.tables.queue import QueueTable
from sqlqueue_app.tables.row_selection import (
    BEFORE_ALL,
    RowVersionRange,
    drawn_row_version,
    ranges_of,
    remove_ranges,
    row_id_at,
    row_ids,
    row_version_after,
)
from tests.support.tables import row, rows


def numbers(queue: QueueTable) -> list[int]:
    return queue.row_versions(10_000)


def test_ranges_have_no_gaps() -> None:
    assert ranges_of([5, 3, 4, 9, 7, 7, 1]) == [
        RowVersionRange(1, 1),
        RowVersionRange(3, 5),
        RowVersionRange(7, 7),
        RowVersionRange(9, 9),
    ]
    assert ranges_of([]) == []


def test_exactly_the_rows_of_the_ranges_are_deleted(queue: QueueTable) -> None:
    queue.send(rows(40))
    there = numbers(queue)
    wanted = random.Random(7).sample(there, 25)

    assert remove_ranges(queue, ranges_of(wanted)) == 25
    assert numbers(queue) == sorted(set(there) - set(wanted))


def test_missing_rows_do_not_count(queue: QueueTable) -> None:
    queue.send(rows(5))
    there = numbers(queue)
    remove_ranges(queue, ranges_of(there[1:2]))

    assert remove_ranges(queue, [RowVersionRange(there[0], there[2]), RowVersionRange(2**62, 2**62 + 5)]) == 2
    assert remove_ranges(queue, []) == 0
    assert numbers(queue) == there[3:]


def test_rollback_restores_deleted_rows(queue: QueueTable) -> None:
    queue.send(rows(5))
    there = numbers(queue)

    with transaction.atomic(using=queue.alias):
        assert remove_ranges(queue, ranges_of(there)) == 5
        transaction.set_rollback(True, using=queue.alias)

    assert numbers(queue) == there


@pytest.mark.parametrize(("max_rows", "max_ranges"), [(3, 1_000), (None, 2), (2, 2)])
def test_size_of_a_statement_is_limited(
    queue: QueueTable, monkeypatch: pytest.MonkeyPatch, max_rows: int | None, max_ranges: int
) -> None:
    monkeypatch.setattr(row_selection, "RANGES_PER_STATEMENT", max_ranges)
    monkeypatch.setattr(row_selection, "_ROWS_PER_STATEMENT", {queue.dialect.name: max_rows})
    queue.send(rows(20))
    there = numbers(queue)
    wanted = [each for index, each in enumerate(there) if index % 5]

    assert remove_ranges(queue, ranges_of(wanted)) == 16
    assert numbers(queue) == there[::5]


def test_sql_server_never_deletes_enough_rows_for_a_table_lock() -> None:
    pieces = list(
        row_selection._chunks(
            [RowVersionRange(1, 12_000), RowVersionRange(12_002, 12_010)], row_selection._ROWS_PER_STATEMENT["sqlserver"]
        )
    )

    assert [sum(high - low + 1 for low, high in piece) for piece in pieces] == [4_900, 4_900, 2_209]
    assert [number for piece in pieces for low, high in piece for number in range(low, high + 1)] == [
        *range(1, 12_001),
        *range(12_002, 12_011),
    ]


def test_ids_of_all_rows_are_listed(queue: QueueTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_selection, "_IDS_PER_STATEMENT", 4)
    sent = [row() for _ in range(9)]
    queue.send(sent)

    found = list(row_ids(queue))

    assert [number for number, _ in found] == numbers(queue)
    assert len({row_id for _, row_id in found}) == 9
    if queue.dialect.name != "postgresql":
        assert [row_id for _, row_id in found] == [each.id for each in sent]


def test_row_after_a_number_is_found(queue: QueueTable) -> None:
    queue.send(rows(6))
    there = numbers(queue)

    assert row_version_after(queue, BEFORE_ALL, there[-1], 1) == there[0]
    assert row_version_after(queue, there[1], there[-1], 3) == there[4]
    assert row_version_after(queue, there[1], there[3], 3) is None


def test_id_of_one_row_is_found(queue: QueueTable) -> None:
    queue.send(rows(3))

    for number, row_id in row_ids(queue):
        assert row_id_at(queue, number) == row_id
    remove_ranges(queue, ranges_of(numbers(queue)[1:2]))
    assert row_id_at(queue, numbers(queue)[0] + 1) is None
    assert row_id_at(queue, 2**62) is None


def test_last_drawn_number_is_known_after_its_row_is_deleted(queue: QueueTable) -> None:
    before = drawn_row_version(queue)
    queue.send(rows(3))
    there = numbers(queue)
    remove_ranges(queue, ranges_of(there))

    # before the first insert SQL Server returns the seed, which is the first number
    assert before is None or before < there[0] or (queue.dialect.name == "sqlserver" and before == there[0] == 1)
    assert drawn_row_version(queue) == there[-1]
