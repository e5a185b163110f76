"""The contract of a queue and of processing, in memory and inside the transaction of a test.

These are the tests of the tables and of the worker, except LEFT_OUT, run with other fixtures of the same names.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pytest_django import DjangoDbBlocker, Settings

from sqlqueue_app.conf import get_settings
from sqlqueue_app.dialects.schema import PlannedTable, TableKind
from sqlqueue_app.status.queues import address_book_of
from sqlqueue_app.tables.installation import install_tables
from sqlqueue_app.tables.queue import QueueTable, queue_table
from sqlqueue_app.testing import FakeClock, drain
from sqlqueue_app.testing.draining import transaction_for
from sqlqueue_app.testing.memory import ALIAS, memory_database
from tests.contract import test_count_and_purge, test_receive, test_send
from tests.receiving import test_processing
from tests.support import tables
from tests.support.bench import Bench
from tests.support.databases import DatabaseSession, QueueDatabase, open_database
from tests.support.provisioning import SqliteProvider
from tests.testing.conftest import as_in_testcase

FROM_ANOTHER_CONNECTION = {
    "test_send_outside_a_transaction_is_visible_at_once",
    "test_send_follows_the_surrounding_transaction",
    "test_work_of_the_handler_commits_with_the_receive",
    "test_held_rows_are_skipped",
    "test_peek_and_count_do_not_wait_for_held_rows",
    "test_purge_deletes_everything",
    "test_purge_of_expired_rows_skips_held_ones",
}
# These need their own database, drop the table, or require that no transaction is open.
ON_A_DATABASE_OF_THEIR_OWN = {
    "test_text_in_sqlite_columns_for_bytes_and_instants_is_read",
    "test_duplicate_row_id_is_refused",
    "test_expiry_is_independent_of_the_session_time_zone",
    "test_expiry_uses_the_current_time_in_a_long_transaction",
    "test_index_on_expires_is_used_if_nothing_expires",
    "test_missing_queue_is_reported_by_receive",
    "test_missing_queue_is_reported_by_send",
    "test_dropped_queue_is_reported_and_found_again",
    "test_empty_queue_returns_no_row_and_no_transaction",
    "test_several_rows_are_received_in_order_and_commit_together",
    "test_next_rows_are_received_with_a_commit",
    "test_rows_that_block_a_real_endpoint_are_received",
    "test_estimate_is_never_less_than_the_counted_rows",
}
# Closing the connection in a handler would end the transaction of the test. Memory use is the same everywhere.
ONLY_IN_A_WORKER = {
    "test_handler_that_closes_its_connection_fails_only_its_message",
    "test_body_of_64_mib_is_stored",
    "test_body_of_64_mib_is_handled",
}
LEFT_OUT = FROM_ANOTHER_CONNECTION | ON_A_DATABASE_OF_THEIR_OWN | ONLY_IN_A_WORKER
SUITES = (test_send, test_receive, test_count_and_purge, test_processing)

for suite in SUITES:
    globals().update({name: test for name, test in vars(suite).items() if name.startswith("test_") and name not in LEFT_OUT})


def test_every_excluded_test_exists() -> None:
    assert {name for suite in SUITES for name in vars(suite)} >= LEFT_OUT


# SQLite runs the same statements on a file as in memory.
PLACES = ["memory", "postgresql"]


class DrainedBench(Bench):
    """Like the bench of the worker tests, but drain() handles the messages."""

    def run(self, stop: object = None, **options: object) -> int:
        drained = drain(raise_errors=False)
        return drained.handled + drained.failed + drained.expired


@pytest.fixture(params=PLACES)
def database(
    request: pytest.FixtureRequest, database_session: DatabaseSession, settings: Settings, django_db_blocker: DjangoDbBlocker
) -> Iterator[QueueDatabase]:
    """A database for queues, inside a transaction as with TestCase."""
    if request.param == "memory":
        with memory_database(FakeClock()), as_in_testcase(ALIAS):
            settings.SQLQUEUE = {**settings.SQLQUEUE, "DATABASE": ALIAS}
            yield QueueDatabase(ALIAS, "sqlite", settings, SqliteProvider.__new__(SqliteProvider))
        return
    with open_database(request.param, database_session, settings, django_db_blocker) as opened, as_in_testcase(opened.alias):
        yield opened


@pytest.fixture
def layout() -> str:
    """The layout that the installer creates."""
    return "ours"


@pytest.fixture
def queue(database: QueueDatabase, monkeypatch: pytest.MonkeyPatch) -> QueueTable:
    """An empty table whose receives run in the transaction of the test."""
    for module in (test_send, test_receive, test_count_and_purge, tables):
        monkeypatch.setattr(module, "receive_transaction", transaction_for)
    address = address_book_of(get_settings()).of_queue("Sales")
    install_tables(database.alias, [PlannedTable(TableKind.QUEUE, address)])
    return queue_table(database.alias, address)


@pytest.fixture
def bench(database: QueueDatabase, handler_registry: None) -> Bench:
    """The endpoint of the worker tests."""
    made = DrainedBench(database)
    made.configure()
    return made
