"""What figures need of many messages, counted by Arrow where the messages are: a few columns of each, looked at once.

This runs in Spark's Python workers, and in the driver on what they found. What is left of the messages of a task is as much as
there are endpoints, types and minutes among them. Spark itself took twice the processor time for it, and three looks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from sqlqueue_app.lake.columns import NOTABLE_KINDS, NOTABLE_ROWS
from sqlqueue_app.lake.sketches import BELOW, LOG_OF_STEP, LOWEST, SLACK

OF_WHAT: Final = ("queue", "day", "endpoint", "message_type", "sender", "machine", "host_id", "host", "minute", "is_failure")
TIMED: Final = ("day", "endpoint", "message_type", "sender", "minute")
TOLD: Final = ("endpoint", "message_type", "message_id", "conversation_id")
VALUES: Final = {"slowest": "processing_seconds", "largest": "body_bytes"}

# What is added up, and how parts of it are put together.
_COUNTED: Final = {
    "count": "sum",
    "retried": "sum",
    "expired": "sum",
    "delayed_retries": "sum",
    "body_bytes": "sum",
    "bytes": "sum",
    "first_seen": "min",
    "last_seen": "max",
    "processing_count": "sum",
    "processing_sum": "sum",
    "critical_count": "sum",
    "critical_sum": "sum",
    "critical_negative": "sum",
}
_ROWS_AT_ONCE: Final = 100_000

FOUND_DDL: Final = "name STRING, found BINARY"
"""The columns of what `counted_batches` gives."""


class Counts:
    """The counts of messages, by `add` for messages and `add_found` for what others have counted."""

    def __init__(self) -> None:
        self._waiting: list[pa.RecordBatch] = []
        self._parts: dict[str, list[pa.Table]] = {"counts": [], "times": [], "notable": []}

    def add(self, messages: pa.RecordBatch) -> None:
        """Messages, with the columns of `figures.narrow`."""
        self._waiting.append(messages)
        if sum(each.num_rows for each in self._waiting) >= _ROWS_AT_ONCE:
            self._count()

    def add_found(self, name: str, found: pa.Table) -> None:
        """One of the `tables` of others."""
        self._parts[name].append(found)

    def tables(self) -> dict[str, pa.Table]:
        """What was found by now: `counts` by `OF_WHAT`; `times` by `TIMED`, kind and bucket; the `notable` of each day and kind."""
        self._count()
        together = {"counts": _counts_together, "times": _times_together, "notable": _notable_together}
        return {name: together[name](pa.concat_tables(parts)) for name, parts in self._parts.items() if parts}

    def _count(self) -> None:
        if not self._waiting:
            return
        messages, self._waiting = pa.Table.from_batches(self._waiting), []
        self._parts["counts"].append(_counts(messages))
        audited = messages.filter(pc.invert(messages["is_failure"]))
        for kind in ("processing", "critical"):
            self._parts["times"].append(_times(audited, kind))
        for kind in NOTABLE_KINDS:
            self._parts["notable"].append(_notable(audited, kind))


def counted_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The messages of a task, counted; for `DataFrame.mapInArrow` with the schema `FOUND_DDL`."""
    counts = Counts()
    for batch in batches:
        counts.add(batch)
    for name, table in counts.tables().items():
        yield pa.RecordBatch.from_pydict({"name": [name], "found": pa.array([_to_bytes(table)], pa.binary())})


def counted(found: Iterable[tuple[str, bytes]]) -> dict[str, list[dict[str, Any]]]:
    """What all tasks have counted, as rows; of `times` each with the `sketch` of its kind."""
    counts = Counts()
    for name, data in found:
        with pa.ipc.open_stream(data) as reader:
            counts.add_found(name, reader.read_all())
    rows = {name: table.to_pylist() for name, table in counts.tables().items()}
    return {"counts": [], "notable": [], **rows, "times": _sketches(rows.get("times", ()))}


def _to_bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _grouped(table: pa.Table, keys: tuple[str, ...], how: dict[str, str]) -> pa.Table:
    """Added up by the keys, with the same names of columns."""
    found = table.group_by(list(keys), use_threads=False).aggregate(list(how.items()))
    return found.select([*keys, *(f"{name}_{each}" for name, each in how.items())]).rename_columns([*keys, *how])


# --- how many, how large, how long, by all that figures are asked by --------------------------------------------------------------


def _counts(messages: pa.Table) -> pa.Table:
    processing, critical = messages["processing_seconds"], messages["critical_seconds"]
    one = pa.repeat(pa.scalar(1, pa.int64()), messages.num_rows)
    columns = {
        "count": one,
        "retried": _number(messages["is_retried"]),
        "expired": _number(messages["is_expired"]),
        "delayed_retries": _number(messages["delayed_retries"]),
        "body_bytes": _number(messages["body_bytes"]),
        "bytes": pc.add(_number(messages["body_bytes"]), _number(messages["header_bytes"])),
        "first_seen": messages["seen"],
        "last_seen": messages["seen"],
        "processing_count": _number(pc.is_valid(processing)),
        "processing_sum": _micros(processing),
        "critical_count": _number(pc.is_valid(critical)),
        "critical_sum": _micros(critical),
        "critical_negative": _number(pc.less(critical, 0)),
    }
    keys = [messages[name] for name in OF_WHAT]
    return _counts_together(pa.table([*keys, *columns.values()], names=[*OF_WHAT, *columns]))


def _counts_together(parts: pa.Table) -> pa.Table:
    return _grouped(parts, OF_WHAT, _COUNTED)


def _number(values: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.fill_null(values.cast(pa.int64()), 0)


def _micros(seconds: pa.ChunkedArray) -> pa.ChunkedArray:
    """As whole microseconds in a double, whose sums are exact and never too large."""
    return pc.fill_null(pc.round(pc.multiply(seconds, 1e6)), 0.0)


# --- the sketches of both times ---------------------------------------------------------------------------------------------------


def _times(messages: pa.Table, kind: str) -> pa.Table:
    measured = messages.filter(pc.is_valid(messages[f"{kind}_seconds"]))
    columns = {
        **{name: measured[name] for name in TIMED},
        "kind": pa.repeat(kind, measured.num_rows),
        "bucket": _bucket(measured[f"{kind}_seconds"]),
        "count": pa.repeat(pa.scalar(1, pa.int64()), measured.num_rows),
    }
    return _times_together(pa.table(list(columns.values()), names=list(columns)))


def _times_together(parts: pa.Table) -> pa.Table:
    return _grouped(parts, (*TIMED, "kind", "bucket"), {"count": "sum"})


def _bucket(seconds: pa.ChunkedArray) -> pa.ChunkedArray:
    """As `lake.sketches.bucket_of`."""
    above = pc.ceil(pc.subtract(pc.divide(pc.ln(seconds), LOG_OF_STEP), SLACK))
    positive = pc.max_element_wise(above, float(LOWEST))
    return pc.if_else(pc.greater(seconds, 0), positive, float(BELOW)).cast(pa.int32())


def _sketches(times: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    found: dict[tuple[Any, ...], dict[int, int]] = {}
    for row in times:
        found.setdefault(tuple(row[name] for name in (*TIMED, "kind")), {})[row["bucket"]] = row["count"]
    return [{**dict(zip((*TIMED, "kind"), key, strict=True)), "sketch": sketch} for key, sketch in found.items()]


# --- the slowest and the largest -----------------------------------------------------------------------------------------------


def _notable(messages: pa.Table, kind: str) -> pa.Table:
    value = messages[VALUES[kind]].cast(pa.float64())
    columns = {
        "day": messages["day"],
        "kind": pa.repeat(kind, messages.num_rows),
        "value": value,
        "row_version": messages["row_version"],
        **{name: messages[name] for name in TOLD},
        "seen": messages["seen"],
    }
    return _notable_together(pa.table(list(columns.values()), names=list(columns)).filter(pc.is_valid(value)))


def _notable_together(parts: pa.Table) -> pa.Table:
    """Of equal ones those with the greater message id, then row version; in that order."""
    order = [(name, "descending") for name in ("value", "message_id", "row_version")]
    found = []
    for kind in NOTABLE_KINDS:
        of_kind = parts.filter(pc.equal(parts["kind"], kind))
        for day in pc.unique(of_kind["day"]):
            of_day = of_kind.filter(pc.equal(of_kind["day"], day))
            found.append(of_day.take(pc.select_k_unstable(of_day, NOTABLE_ROWS, order)))
    return pa.concat_tables([parts.schema.empty_table(), *found])
