"""Delayed rows of any shape and due time: the mover keeps running; none is lost, doubled or changed."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, strategies as st

from tests.receiving.any_rows import OUT, configured, empty
from tests.support import accounting, shapes
from tests.support.bench import Bench
from tests.support.fuzzing import fuzzed
from tests.support.shapes import Shape, delayed_table

pytestmark = [
    pytest.mark.usefixtures("shape_handlers"),
    pytest.mark.filterwarnings("ignore:Generating overly large repr"),
]

TIMES = ["2026-01-01 00:00:00.000", "0001-01-01 00:00:00.000", "9999-12-31 23:59:59.999", "2999-06-01 12:00:00.5", "1970-01-01"]
DUE = {
    # SQLite stores invalid times as well, and sorts by them; these are SQL literals.
    "sqlite": st.one_of(
        st.sampled_from(
            [*map(repr, TIMES), "''", "'!'", "'zebra'", "0", "-1", "1e300", "x''", "x'ff'", "'2026-13-45'", "'-infinity'"]
        ),
        st.dates().map(lambda day: repr(day.isoformat())),
    ),
    "postgresql": st.one_of(
        st.sampled_from([*map(repr, TIMES), "'infinity'", "'-infinity'", "'4714-11-24 00:00:00 BC'", "'294276-12-31 23:59:59'"]),
        st.dates().map(lambda day: repr(day.isoformat())),
    ),
}
quick = fuzzed(3)


def delayed_rows(vendor: str) -> st.SearchStrategy[list[tuple[Shape, str]]]:
    """Rows with their due times; their bodies identify them."""
    rows = st.lists(st.tuples(shapes.shapes, DUE[vendor]), min_size=10, max_size=30)
    return rows.map(lambda found: [(dataclasses.replace(row, has_id=False), due) for row, due in found])


@pytest.fixture
def sqlite_sales(sqlite_bench: Bench) -> Bench:
    return configured(sqlite_bench, {"PEEK_DELAY": 0.1})


@pytest.fixture
def postgresql_sales(postgresql_bench: Bench) -> Bench:
    return configured(postgresql_bench, {"PEEK_DELAY": 0.1})


def put(bench: Bench, rows: list[tuple[Shape, str]]) -> list[Shape]:
    held = [accounting.as_held(row, bench.database.vendor) for row, _ in rows]
    table = delayed_table(bench).qualified
    with bench.database.connection.cursor() as cursor:
        for row, (_, due) in zip(held, rows, strict=True):
            literal = due.replace("%", "%%")
            cursor.execute(f"INSERT INTO {table} (Headers, Body, Due) VALUES (%s, %s, {literal})", [row.headers, row.body])
    return [dataclasses.replace(row, has_id=False, correlation_id=None, reply_to=None) for row in held]


def run(bench: Bench, rows: list[tuple[Shape, str]], trouble: list[str]) -> None:
    """Run the rows through the mover and a worker; each must arrive once, or wait."""
    empty(bench)
    held = put(bench, rows)
    bench.run()
    assert trouble == []
    assert bench.rows("Sales") == []
    for waiting in delayed_table(bench).peek(1000):
        held.remove(next(row for row in held if (row.headers, row.body) == (waiting.headers, waiting.body)))
    accounting.account(held, accounting.found_in(bench, *OUT))
    seconds = delayed_table(bench).seconds_until_due()
    assert seconds is None or seconds > 0, "a due message was left"


@quick
@given(rows=delayed_rows("sqlite"))
def test_no_delayed_row_is_lost_on_sqlite(sqlite_sales: Bench, trouble: list[str], rows: list[tuple[Shape, str]]) -> None:
    run(sqlite_sales, rows, trouble)


@quick
@given(rows=delayed_rows("postgresql"))
def test_no_delayed_row_is_lost_on_postgresql(postgresql_sales: Bench, trouble: list[str], rows: list[tuple[Shape, str]]) -> None:
    run(postgresql_sales, rows, trouble)
