"""Small lakes for tests: messages as the pipeline writes them, of which a test gives only the relevant columns."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from sqlqueue_app.lake.columns import FAILURES, MESSAGES
from sqlqueue_app.lake.data_files import DataFile, glob_files

START = datetime(2026, 11, 20, 12, tzinfo=UTC)
_KINDS = {"STRING": "string", "BINARY": "binary", "INT": "int32", "BIGINT": "int64", "DOUBLE": "float64", "BOOLEAN": "bool_"}


def write(lake: Path, rows: list[dict[str, Any]], *, table: str = MESSAGES.name, queue: str = "audit", name: str = "") -> None:
    """Write one file per day of the rows. A row needs `at`, the default of `counted_at`, `ended_at` and `taken_at`."""
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {MESSAGES.name: MESSAGES, FAILURES.name: FAILURES}[table].columns
    by_day: dict[str, list[dict[str, Any]]] = {}
    for number, row in enumerate(rows, start=1):
        at = row["at"]
        whole = {
            "row_version": number,
            "counted_at": at,
            "ended_at": at,
            "taken_at": at,
            "headers": "{}",
            "message_id": f"m{number}",
        }
        by_day.setdefault(f"{at.astimezone(UTC):%Y-%m-%d}", []).append({**whole, **row})
    for day, of_day in by_day.items():
        folder = lake / table / f"queue={quote(queue, safe='')}" / f"day={day}"
        folder.mkdir(parents=True, exist_ok=True)
        arrays = {}
        for each in columns:
            if each.name == "groups":
                continue
            kind = pa.timestamp("us", tz="UTC") if each.type == "TIMESTAMP" else getattr(pa, _KINDS[each.type])()
            arrays[each.name] = pa.array([row.get(each.name) for row in of_day], kind)
        parquet.write_table(pa.table(arrays), folder / f"{name or queue.replace('/', '_')}-0.parquet", compression="zstd")


@pytest.fixture
def time_to_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the time limit of searches, so that a busy machine does not cut them short."""
    for name in ("SECONDS", "QUEUE_SECONDS"):
        monkeypatch.setattr(f"sqlqueue_app.browsing.search.{name}", 600.0)


def files_of(lake: Path) -> list[DataFile]:
    """The files in the lake."""
    return sorted(glob_files(str(lake)), key=lambda each: each.path)
