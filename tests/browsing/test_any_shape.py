"""The commands, the admin and the readers behind them show any row, whatever its content."""

from __future__ import annotations

import json
from io import StringIO

import pytest
from django.core.management import call_command
from hypothesis import given, strategies as st

from sqlqueue_app.browsing.messages import PageQuery, read_details, read_message, read_page
from tests.support import accounting, shapes
from tests.support.bench import Bench
from tests.support.databases import QueueDatabase
from tests.support.filling import install
from tests.support.fuzzing import fuzzed
from tests.support.pages import OVERVIEW, client_of
from tests.support.shapes import Shape

# Rows may be long; they are printed only when a test fails.
pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")
ROWS = st.lists(shapes.shapes, min_size=15, max_size=30, unique_by=lambda row: row.row_id)
few_examples = fuzzed(8, always_the_same=False)


@pytest.fixture
def scanned(sqlite_database: QueueDatabase) -> Bench:
    install(sqlite_database, ENDPOINTS={"Sales": {"CALLBACKS": False}})
    return Bench(sqlite_database)


def filled(bench: Bench, rows: list[Shape]) -> list[Shape]:
    bench.table("Sales").purge()
    return accounting.put(bench, rows)


@few_examples
@given(rows=ROWS)
def test_readers_and_commands_show_any_row(scanned: Bench, rows: list[Shape]) -> None:
    held = filled(scanned, rows)
    table = scanned.table("Sales")
    page = read_page(table, PageQuery(size=50))
    assert read_page(table, PageQuery(size=50, before=page.messages[-1].row_version)).messages == page.messages
    assert read_page(table, PageQuery(size=50, header="NServiceBus.MessageId: a")).scanned == len(held)
    assert len(page.messages) == len(held) == len(read_details(table, limit=50))
    for summary in page.messages:
        detail = read_message(table, summary.row_version)
        assert detail is not None
        assert detail.summary == summary
    text, documents, status = StringIO(), StringIO(), StringIO()
    call_command("sqlqueue_peek", "Sales", limit=50, stdout=text)
    call_command("sqlqueue_peek", "Sales", limit=50, format="json", stdout=documents)
    call_command("sqlqueue_status", format="json", stdout=status)
    shown = json.loads(documents.getvalue())["messages"]
    assert [each["row_id"] for each in shown] == [str(row.row_id) for row in held]
    # Every character can be written to a terminal and a file.
    assert (text.getvalue() + documents.getvalue() + status.getvalue()).encode()


@fuzzed(3, always_the_same=False)
@given(rows=ROWS)
def test_admin_pages_show_any_row(scanned: Bench, rows: list[Shape]) -> None:
    held = filled(scanned, rows[:12])
    client = client_of("superuser")
    assert client.get(OVERVIEW).status_code == 200
    assert client.get(f"{OVERVIEW}Sales/").status_code == 200
    messages = read_page(scanned.table("Sales"), PageQuery(size=50)).messages
    assert len(messages) == len(held)
    for summary in messages:
        shown = client.get(f"{OVERVIEW}Sales/{summary.row_version}/")
        assert shown.status_code == 200
        assert summary.row_id in shown.content.decode()
