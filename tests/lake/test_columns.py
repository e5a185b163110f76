"""The tables of a lake fit together."""

from __future__ import annotations

import pytest

from sqlqueue_app.lake.columns import FAILURES, MESSAGES, ROLLUPS, TABLES, UNREADABLE, LakeTable


@pytest.mark.parametrize("table", TABLES.values(), ids=lambda table: table.name)
def test_column_names_are_unique(table: LakeTable) -> None:
    names = [column.name for column in table.columns + table.partitions]

    assert len(set(names)) == len(names)


def test_failures_have_all_columns_of_messages() -> None:
    assert set(MESSAGES.columns) < set(FAILURES.columns)


def test_message_tables_are_partitioned_by_queue_and_day_and_rollups_by_day() -> None:
    assert {tuple(column.name for column in table.partitions) for table in (MESSAGES, FAILURES, UNREADABLE)} == {("queue", "day")}
    assert {tuple(column.name for column in table.partitions) for table in ROLLUPS.values()} == {("day",)}


def test_ddl_names_all_columns() -> None:
    assert UNREADABLE.ddl.startswith("row_version BIGINT, native_id STRING, expires TIMESTAMP, headers STRING, body BINARY, ")
    assert UNREADABLE.full_ddl.endswith(", batch STRING, queue STRING, day DATE")
