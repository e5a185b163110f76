"""The watermark: no row is committed below it later."""

from __future__ import annotations

import random

import pytest

from sqlqueue_app.spark.source.stream_reader import Watermark, WritingTransaction


class Table:
    """A simulated table: transactions draw numbers and commit or roll back later."""

    def __init__(self) -> None:
        self.drawn = 0
        self.open: dict[WritingTransaction, list[int]] = {}
        self.rows: list[int] = []
        self._names = 0

    def begin(self) -> WritingTransaction:
        self._names += 1
        writer = WritingTransaction(f"3/{self._names}", False)
        self.open[writer] = []
        return writer

    def insert(self, writer: WritingTransaction) -> None:
        self.drawn += 1
        self.open[writer].append(self.drawn)

    def prepare(self, writer: WritingTransaction) -> WritingTransaction:
        prepared = WritingTransaction(f"-1/{writer.name}", True)
        self.open[prepared] = self.open.pop(writer)
        return prepared

    def end(self, writer: WritingTransaction, *, commit: bool = True) -> None:
        numbers = self.open.pop(writer)
        if commit:
            self.rows += numbers

    # the interface for the watermark

    def newest(self) -> int | None:
        return max(self.rows, default=None)

    def writers(self) -> frozenset[WritingTransaction]:
        return frozenset(self.open)


@pytest.fixture
def table() -> Table:
    return Table()


def committed(table: Table) -> None:
    writer = table.begin()
    table.insert(writer)
    table.end(writer)


def test_empty_table_has_no_watermark(table: Table) -> None:
    watermark = Watermark()
    assert watermark.advance(table) is None
    committed(table)
    assert watermark.advance(table) == 1


@pytest.mark.parametrize("commit", [True, False])
def test_watermark_advances_after_earlier_writers_end(table: Table, commit: bool) -> None:
    watermark = Watermark()
    committed(table)
    watermark.advance(table)
    late = table.begin()
    table.insert(late)
    committed(table)

    assert watermark.advance(table) == 1
    table.end(late, commit=commit)
    assert watermark.advance(table) == 3


def test_later_writers_do_not_hold_the_watermark(table: Table) -> None:
    watermark = Watermark()
    late = table.begin()
    table.insert(late)
    committed(table)
    assert watermark.advance(table) is None
    others = [table.begin() for _ in range(3)]
    for other in others:
        table.insert(other)
    table.end(late)

    assert watermark.advance(table) == 2


def test_prepared_transaction_holds_the_watermark(table: Table) -> None:
    watermark = Watermark()
    late = table.begin()
    table.insert(late)
    committed(table)
    assert watermark.advance(table) is None

    prepared = table.prepare(late)
    assert watermark.advance(table) is None
    another = table.begin()
    table.prepare(another)
    assert watermark.advance(table) is None
    table.end(prepared)
    assert watermark.advance(table) == 2


def test_drained_table_keeps_its_watermark(table: Table) -> None:
    watermark = Watermark()
    committed(table)
    committed(table)
    watermark.advance(table)
    table.rows.clear()

    assert watermark.advance(table) == 2


@pytest.mark.parametrize("seed", range(20))
def test_no_late_row_is_below_the_watermark(table: Table, seed: int) -> None:
    chance = random.Random(seed)
    watermark = Watermark()
    passed = 0
    grown = 0
    for _ in range(2_000):
        step = chance.random()
        writers = list(table.open)
        if step < 0.25 or not writers:
            if len(writers) < 6:
                table.begin()
        elif step < 0.55:
            writer = chance.choice(writers)
            if not writer.is_prepared:
                table.insert(writer)
        elif step < 0.6:
            writer = chance.choice(writers)
            if not writer.is_prepared:
                table.prepare(writer)
        elif step < 0.85:
            writer = chance.choice(writers)
            assert not table.open[writer] or min(table.open[writer]) > passed, "a row below the settled number was still to come"
            table.end(writer, commit=chance.random() > 0.1)
        else:
            settled = watermark.advance(table)
            grown += settled != passed
            passed = settled or 0
    assert grown > 20
