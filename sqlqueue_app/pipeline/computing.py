"""The figures of a batch, computed from the files that were written, and written beside them."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow
import pyarrow.compute
import pyarrow.parquet

from sqlqueue_app.lake.columns import FAILURES, FIGURES, MESSAGES, UNREADABLE, LakeTable
from sqlqueue_app.pipeline.places import NewFile, inflight
from sqlqueue_app.pipeline.tools import Tools
from sqlqueue_app.spark.lake_files import read_files
from sqlqueue_app.spark.transforms.figures import figure_rows

_ARROW: Final = {
    "STRING": pyarrow.string(),
    "BINARY": pyarrow.binary(),
    "INT": pyarrow.int32(),
    "BIGINT": pyarrow.int64(),
    "DOUBLE": pyarrow.float64(),
    "BOOLEAN": pyarrow.bool_(),
    "DATE": pyarrow.date32(),
    "TIMESTAMP": pyarrow.timestamp("us", tz="UTC"),
    "MAP<INT, BIGINT>": pyarrow.map_(pyarrow.int32(), pyarrow.int64()),
}


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures by the name of their table, and the files that they stand in."""

    collected: Mapping[str, list[dict[str, Any]]]
    files: Sequence[NewFile]


def compute_figures(tools: Tools, batch: uuid.UUID, files: Sequence[NewFile]) -> Figures:
    """The figures of the files of messages of a batch, which are in its private folder still."""
    tables = {each.table for each in files}
    frames = [
        read_files(tools.session, table, tools.inflight_url(batch, table.name)) if table.name in tables else None
        for table in (MESSAGES, FAILURES, UNREADABLE)
    ]
    collected = figure_rows(*frames)
    written = [file for name, rows in collected.items() if rows for file in write_rows(tools, batch, FIGURES[name], rows)]
    return Figures(collected, written)


def write_rows(tools: Tools, batch: uuid.UUID, table: LakeTable, rows: Sequence[Mapping[str, Any]]) -> list[NewFile]:
    """Write rows of a table that has no folders of queues into the folder of a batch: a file for each `day` in them."""
    schema = pyarrow.schema([(each.name, _ARROW[each.type]) for each in table.columns])
    files: list[NewFile] = []
    for day in sorted({row["day"] for row in rows}):
        of_day = [{name: row[name] for name in table.names} for row in rows if row["day"] == day]
        path = f"{table.name}/day={day.isoformat()}/rows.parquet"
        size = _put(tools, f"{inflight(batch)}/{path}", pyarrow.Table.from_pylist(of_day, schema=schema))
        files.append(NewFile(table.name, path, day, len(of_day), size))
    return files


def _put(tools: Tools, path: str, table: pyarrow.Table) -> int:
    """Written here first: no store but this machine's can be written to by Arrow."""
    with tempfile.TemporaryDirectory(prefix="sqlqueue-") as folder:
        file = Path(folder, "rows.parquet")
        pyarrow.parquet.write_table(table, file, compression="zstd")
        tools.storage.put(file, path)
        return file.stat().st_size
