"""Whatever stands in a row: no exception ends a receiver, and no row is lost, doubled or changed."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlqueue_app.conf import get_settings
from sqlqueue_app.messages import headers as names
from sqlqueue_app.tables.delayed import DelayedTable
from sqlqueue_app.tables.installation import delayed_address
from tests.receiving import accounting, shapes
from tests.receiving.conftest import Bench
from tests.receiving.shapes import Shape
from tests.support.fuzzing import fuzzed

# Rows may be long; nobody prints them but where one fails.
pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")
OUT = ("error", "audit", "Other", "Acknowledged")
MANY = st.lists(shapes.shapes, min_size=20, max_size=40, unique_by=lambda row: row.row_id)
several_runs = fuzzed(10, always_the_same=False)
few_runs = fuzzed(3, always_the_same=False)
# Nothing goes wrong that a receiver would have to say.
TROUBLE = {
    "receive_failed",
    "critical_error",
    "thread_died",
    "transaction_lost",
    "transaction_ended",
    "on_commit_hook_failed",
    "recoverability_failed",
    "delayed_move_failed",
    "background_job_failed",
}


@pytest.fixture(autouse=True)
def registered(handler_registry: None) -> None:
    shapes.register_handlers()


@pytest.fixture
def trouble(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """What the log says that is not the failure of a message; emptied by who looks."""
    found: list[str] = []

    class Watch(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if getattr(record, "event", "") in TROUBLE or record.levelno >= logging.CRITICAL:
                found.append(record.getMessage())

    logger, watch = logging.getLogger("sqlqueue"), Watch(logging.WARNING)
    logger.addHandler(watch)
    yield found
    logger.removeHandler(watch)


def configured(bench: Bench, endpoint: dict[str, Any]) -> Bench:
    # The other models wait longer and longer while they find poison, as those of old transports did.
    bench.configure(**{"AUDIT_QUEUE": "audit", "CONCURRENCY_MODEL": "monitor", **endpoint})
    bench.install_queues(*OUT)
    return bench


@pytest.fixture
def sqlite_sales(sqlite_bench: Bench, request: pytest.FixtureRequest) -> Bench:
    return configured(sqlite_bench, getattr(request, "param", {}))


@pytest.fixture
def postgresql_sales(postgresql_bench: Bench, request: pytest.FixtureRequest) -> Bench:
    return configured(postgresql_bench, getattr(request, "param", {}))


def empty(bench: Bench) -> None:
    for name in OUT:
        bench.table(name).purge()
    with bench.database.connection.cursor() as cursor:
        cursor.execute(f"DELETE FROM {delayed_table(bench).qualified}")


def run(bench: Bench, rows: list[Shape], trouble: list[str], queue: str = "Sales") -> None:
    """The rows through a worker; each must come out once."""
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
def test_on_sqlite(sqlite_sales: Bench, trouble: list[str], rows: list[Shape]) -> None:
    run(sqlite_sales, rows, trouble)


@few_runs
@given(rows=MANY)
def test_on_postgresql(postgresql_sales: Bench, trouble: list[str], rows: list[Shape]) -> None:
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
def test_with_features(sqlite_sales: Bench, trouble: list[str], rows: list[Shape]) -> None:
    run(sqlite_sales, rows, trouble)


def delayed_table(bench: Bench) -> DelayedTable:
    book = get_settings().address_book(bench.database.vendor)
    return DelayedTable(bench.database.alias, delayed_address(book, "Sales"))


@pytest.mark.parametrize("satellite", ["Retries", "Timeouts", "TimeoutsDispatcher"])
@pytest.mark.parametrize("sqlite_sales", [{"LEGACY_SATELLITES": True, "DELAYED_RETRIES": 2}], indirect=True, ids=["legacy"])
@few_runs
@given(rows=MANY)
def test_satellites(sqlite_sales: Bench, trouble: list[str], satellite: str, rows: list[Shape]) -> None:
    # What cancels timeouts of its saga ends with them, and is tested by itself.
    rows = [row for row in rows if names.CLEAR_TIMEOUTS not in row.headers]
    empty(sqlite_sales)
    held = accounting.put(sqlite_sales, rows, f"Sales.{satellite}")
    sqlite_sales.run()
    assert trouble == []
    delayed = delayed_table(sqlite_sales)
    kept = [accounting.Found("delayed", row.headers, row.body) for row in delayed.peek(1000)]
    assert [sqlite_sales.rows(name) for name in ("Sales", f"Sales.{satellite}")] == [[], []]
    accounting.account(held, accounting.found_in(sqlite_sales, *OUT) + kept)
