"""Run the mover in a separate process: `python -m benchmarks.delayed_process DUE WAITING`; fills the delayed table first."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING

import django

from benchmarks.messages import stored_body, stored_headers

if TYPE_CHECKING:
    from sqlqueue_app.tables.delayed import DelayedTable

# Due times spread over the next ten days and over the last hour.
_FILL = {
    "postgresql": (
        "TRUNCATE {table}",
        "INSERT INTO {table} (headers, body, due) SELECT %s, %s, clock_timestamp() + (n %% 864000 + 3600) * interval '1 second'"
        " FROM generate_series(1, %s) AS n",
        "INSERT INTO {table} (headers, body, due) SELECT %s, %s, clock_timestamp() - (n %% 3600) * interval '1 second'"
        " FROM generate_series(1, %s) AS n",
        "VACUUM ANALYZE {table}",
    ),
    "sqlite": (
        "DELETE FROM {table}",
        "INSERT INTO {table} (Headers, Body, Due)"
        " SELECT %s, %s, strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now', (value %% 864000 + 3600) || ' seconds') FROM {numbers}",
        "INSERT INTO {table} (Headers, Body, Due)"
        " SELECT %s, %s, strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now', -(value %% 3600) || ' seconds') FROM {numbers}",
        "ANALYZE {table}",
    ),
}
_NUMBERS = "(WITH RECURSIVE n (value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM n LIMIT %s) SELECT value FROM n LIMIT %s)"


def run(due: int, waiting: int) -> dict[str, object]:
    """Move the due messages in batches, as a worker does; returns the rate."""
    django.setup()
    # Models can be imported only now.
    from sqlqueue_app.conf import get_settings  # noqa: PLC0415
    from sqlqueue_app.receiving.delayed import BATCH, due_messages_of  # noqa: PLC0415

    (mover,) = due_messages_of(get_settings())
    # The first batch connects and reads the table definitions.
    fill(mover.delayed, BATCH, 0)
    mover.move_batch()
    fill(mover.delayed, due, waiting)
    begin = time.perf_counter()
    used_before = time.process_time()
    moved = 0
    while batch := mover.move_batch():
        moved += batch
    seconds = time.perf_counter() - begin
    used = time.process_time() - used_before
    left = mover.delayed.count(waiting + due)[0]
    return {"moved": moved, "waiting": left, "rate": moved / seconds, "processor_microseconds": used / max(moved, 1) * 1e6}


def fill(table: DelayedTable, due: int, waiting: int) -> None:
    """Leave exactly `due` and `waiting` messages in the table, with new statistics."""
    empty, later, now, statistics = _FILL[table.dialect.name]
    with table.connection().cursor() as cursor:
        cursor.execute(empty.format(table=table.qualified))
        for statement, rows in ((later, waiting), (now, due)):
            numbers = [rows] if table.dialect.name == "postgresql" else [rows, rows]
            cursor.execute(statement.format(table=table.qualified, numbers=_NUMBERS), [stored_headers(), stored_body(), *numbers])
        cursor.execute(statistics.format(table=table.qualified))


def main() -> None:
    print(json.dumps(run(int(sys.argv[1]), int(sys.argv[2]))))


if __name__ == "__main__":
    main()
