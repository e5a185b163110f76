"""Rows of any shape: no exception ends a receiver, and no row is lost, doubled or changed."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from sqlqueue_app.messages import headers as names
from tests.receiving.any_rows import OUT, configured, empty
from tests.support import accounting, shapes
from tests.support.bench import Bench
from tests.support.fuzzing import fuzzed
from tests.support.shapes import Shape, delayed_table

# Rows may be long; they are printed only when one fails.
pytestmark = [
    pytest.mark.usefixtures("shape_handlers"),
    pytest.mark.filterwarnings("ignore:Generating overly large repr"),
]
MANY = st.lists(shapes.shapes, min_size=20, max_size=40, unique_by=lambda row: row.row_id)
several_runs = fuzzed(10, always_the_same=False)
few_runs = fuzzed(3, always_the_same=False)


@pytest.fixture
def sqlite_sales(sqlite_bench: Bench, request: pytest.FixtureRequest) -> Bench:
    return configured(sqlite_bench, getattr(request, "param", {}))


@pytest.fixture
def postgresql_sales(postgresql_bench: Bench, request: pytest.FixtureRequest) -> Bench:
    return configured(postgresql_bench, getattr(request, "param", {}))


def run(bench: Bench, rows: list[Shape], trouble: list[str], queue: str = "Sales") -> None:
    """Run the rows through a worker; each must arrive once."""
    empty(bench)
    held = accounting.put(bench, rows, queue)
    received = bench.run()
    assert trouble == []
    assert received >= len(held)
    assert bench.rows(queue) == []
    found = accounting.found_in(bench, *OUT)
    accounting.account(held, found)
    for each in found:
        kind = each.headers.get("NServiceBus.ExceptionInfo.ExceptionType") or ""
        assert each.queue != "error" or each.text in [row.headers for row in held] or kind.startswith("sqlqueue_app."), each


@several_runs
@given(rows=MANY)
def test_no_row_is_lost_on_sqlite(sqlite_sales: Bench, trouble: list[str], rows: list[Shape]) -> None:
    run(sqlite_sales, rows, trouble)


@few_runs
@given(rows=MANY)
def test_no_row_is_lost_on_postgresql(postgresql_sales: Bench, trouble: list[str], rows: list[Shape]) -> None:
    run(postgresql_sales, rows, trouble)


@few_runs
@given(rows=MANY)
@pytest.mark.parametrize(
    "sqlite_sales",
    [
        {"BATCH_SIZE": 10},
        {"LEGACY_ADDRESSES": True, "MAX_CONCURRENCY": 1},
        {"TRANSACTION_MODE": "receive_only", "IMMEDIATE_RETRIES": 1},
        {"TRANSACTION_MODE": "none"},
        {"AUDIT_QUEUE": "audit", "SLOW_HANDLER": 1, "RATE_LIMIT_AFTER": 1000},
    ],
    ids=lambda endpoint: next(iter(endpoint)),
    indirect=True,
)
def test_no_row_is_lost_with_features(sqlite_sales: Bench, trouble: list[str], rows: list[Shape]) -> None:
    run(sqlite_sales, rows, trouble)


@pytest.mark.parametrize("satellite", ["Retries", "Timeouts", "TimeoutsDispatcher"])
@pytest.mark.parametrize("sqlite_sales", [{"LEGACY_SATELLITES": True, "DELAYED_RETRIES": 2}], indirect=True, ids=["legacy"])
@few_runs
@given(rows=MANY)
def test_no_row_is_lost_by_satellites(sqlite_sales: Bench, trouble: list[str], satellite: str, rows: list[Shape]) -> None:
    # A message that cancels timeouts of its saga ends with them; it has tests of its own.
    rows = [row for row in rows if names.CLEAR_TIMEOUTS not in row.headers]
    empty(sqlite_sales)
    held = accounting.put(sqlite_sales, rows, f"Sales.{satellite}")
    sqlite_sales.run()
    assert trouble == []
    delayed = delayed_table(sqlite_sales)
    kept = [accounting.Found("delayed", row.headers, row.body or b"") for row in delayed.peek(1000)]
    assert [sqlite_sales.rows(name) for name in ("Sales", f"Sales.{satellite}")] == [[], []]
    accounting.account(held, accounting.found_in(sqlite_sales, *OUT) + kept)
