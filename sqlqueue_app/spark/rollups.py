"""Compute the rollup rows of a batch.

Executors count with Arrow, reading a few columns of each message once; Spark's own aggregation took twice the processor time and
three passes. What remains per task grows with its endpoints, types and minutes, not with its messages. The driver merges the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from functools import reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, functions as sf

from sqlqueue_app.lake.columns import TOP_KINDS, TOP_N
from sqlqueue_app.lake.sketches import BELOW, EPOCH, KEYS, LOG_OF_STEP, LOWEST, SLACK, Row, add_up_rows, start_of

_MINUTE: Final = 60
_HOUR: Final = 3_600

_NO_TIMES: Final[Row] = {"processing_sketch": {}, "critical_sketch": {}}


def rollup_rows(
    messages: DataFrame | None, failures: DataFrame | None, unreadable: DataFrame | None = None
) -> dict[str, list[Row]]:
    """The rollup rows of a batch by table, with aware datetimes and sketches as dictionaries.

    Each DataFrame has the columns of its lake table, `queue` and `day`; None means no rows. Pass files rather than computed frames,
    because failures are read twice. Runs up to three small Spark jobs; raises Spark's errors.
    """
    seen = _count_messages({False: messages, True: failures})
    counts, times = seen["counts"], seen["times"]
    found = {
        "minutes": [
            *map(_minute, counts),
            *({**_minute_key(row), f"{row['kind']}_sketch": dict(row["sketch"])} for row in times),
        ],
        "edges": [
            *(_edge(row) for row in counts if not row["is_failure"]),
            *({**_edge_key(row), "critical_sketch": dict(row["sketch"])} for row in times if row["kind"] == "critical"),
        ],
        "endpoints": map(_endpoint, counts),
        "queues": [*map(_queue, counts), *_unreadable(unreadable)],
        "usage": map(_usage, counts),
        "groups": [] if failures is None else map(_group, _groups(failures).toArrow().to_pylist()),
    }
    rows = {name: add_up_rows(parts, KEYS[name]) for name, parts in found.items()}
    return {**rows, "notable": list(_rank_top_messages(seen["notable"]))}


def _at(micros: int) -> Any:
    return EPOCH + timedelta(microseconds=micros)


def _minute_key(row: Row) -> Row:
    at = _at(row["minute"] * _MINUTE * 1_000_000)
    return {"endpoint": row["endpoint"], "message_type": row["message_type"], "at": at, "day": row["day"]}


def _minute(row: Row) -> Row:
    is_failure = row["is_failure"]
    return {
        **_minute_key(row),
        "processed": 0 if is_failure else row["count"],
        "failed": row["count"] if is_failure else 0,
        "retried": row["retried"],
        "delayed_retries": row["delayed_retries"],
        "body_bytes": 0 if is_failure else row["body_bytes"],
        **{name: 0 if is_failure else row[name] for name in ("processing_count", "critical_count", "critical_negative")},
        **{name: 0.0 if is_failure else row[name] / 1e6 for name in ("processing_sum", "critical_sum")},
        **_NO_TIMES,
    }


def _edge_key(row: Row) -> Row:
    return {
        "sender": row["sender"],
        "receiver": row["endpoint"],
        "message_type": row["message_type"],
        "at": start_of(_at(row["minute"] * _MINUTE * 1_000_000), _HOUR),
        "day": row["day"],
    }


def _edge(row: Row) -> Row:
    critical = {"critical_count": row["critical_count"], "critical_sum": row["critical_sum"] / 1e6, "critical_sketch": {}}
    return {**_edge_key(row), "count": row["count"], **critical}


def _endpoint(row: Row) -> Row:
    return {
        **{name: row[name] for name in KEYS["endpoints"]},
        "first_seen": _at(row["first_seen"]),
        "last_seen": _at(row["last_seen"]),
        "messages": row["count"],
    }


def _queue(row: Row) -> Row:
    is_failure = row["is_failure"]
    return {
        "queue": row["queue"],
        "day": row["day"],
        "taken": 0 if is_failure else row["count"],
        "copied": row["count"] if is_failure else 0,
        "expired": row["expired"],
        "unreadable": 0,
        "bytes": row["bytes"],
    }


def _unreadable(frame: DataFrame | None) -> Iterator[Row]:
    if frame is not None:
        size = sf.col("body_bytes").cast("bigint") + sf.col("header_bytes")
        counts = frame.groupBy("queue", "day").agg(sf.count("*").alias("unreadable"), sf.sum(size).alias("bytes"))
        yield from ({**row, "taken": 0, "copied": 0, "expired": 0} for row in counts.toArrow().to_pylist())


def _usage(row: Row) -> Row:
    is_failure = row["is_failure"]
    return {
        "endpoint": row["endpoint"],
        "day": row["day"],
        "messages": 0 if is_failure else row["count"],
        "failures": row["count"] if is_failure else 0,
        "bytes": row["bytes"],
    }


def _group(row: Row) -> Row:
    return {
        "group_id": row["id"],
        "classifier": row["classifier"],
        "title": row["title"],
        "at": _at(row["hour"] * _HOUR * 1_000_000),
        "day": row["day"],
        "count": row["count"],
        "first_seen": _at(row["first_seen"]),
        "last_seen": _at(row["last_seen"]),
    }


def _rank_top_messages(found: Iterable[Row]) -> Iterator[Row]:
    """Rank the top messages of each day and kind, which come in order."""
    ranks: dict[tuple[Any, str], int] = {}
    for row in found:
        place = (row["day"], row["kind"])
        ranks[place] = ranks.get(place, 0) + 1
        shown = {name: row[name] for name in ("day", "kind", *TOP_COLUMNS, "value")}
        yield {**shown, "rank": ranks[place], "at": _at(row["seen"])}


def _count_messages(frames: Mapping[bool, DataFrame | None]) -> dict[str, list[Row]]:
    """Count messages (False) and failures (True) in one pass over a few columns."""
    narrow = [_narrow(frame, is_failure=is_failure) for is_failure, frame in frames.items() if frame is not None]
    if not narrow:
        return collect_counts([])
    found = reduce(DataFrame.unionByName, narrow).mapInArrow(count_batches, FOUND_DDL)
    return collect_counts((row["name"], row["found"]) for row in found.toArrow().to_pylist())


def _narrow(frame: DataFrame, *, is_failure: bool) -> DataFrame:
    """The input columns of `Counts`; key columns are never NULL."""
    seen = sf.unix_micros("counted_at")
    texts = ("endpoint", "message_type", "message_id", "conversation_id", "machine", "host_id", "host")
    return frame.select(
        *("queue", "day", "row_version", "body_bytes", "header_bytes", "delayed_retries", "is_retried", "is_expired"),
        *("processing_seconds", "critical_seconds"),
        *(sf.coalesce(name, sf.lit("")).alias(name) for name in texts),
        sf.coalesce("sending_endpoint", sf.lit("")).alias("sender"),
        seen.alias("seen"),
        sf.floor(seen / sf.lit(_MINUTE * 1_000_000)).cast("bigint").alias("minute"),
        sf.lit(is_failure).alias("is_failure"),
    )


def _groups(failures: DataFrame) -> DataFrame:
    seen = sf.unix_micros("counted_at")
    hour = sf.floor(seen / sf.lit(_HOUR * 1_000_000)).cast("bigint")
    each = failures.select("day", hour.alias("hour"), seen.alias("seen"), sf.explode("groups").alias("group"))
    keys = [sf.col(f"group.{name}").alias(name) for name in ("id", "classifier", "title")]
    return each.groupBy("day", "hour", *keys).agg(
        sf.count("*").alias("count"), sf.min("seen").alias("first_seen"), sf.max("seen").alias("last_seen")
    )


COUNT_KEYS: Final = ("queue", "day", "endpoint", "message_type", "sender", "machine", "host_id", "host", "minute", "is_failure")
SKETCH_KEYS: Final = ("day", "endpoint", "message_type", "sender", "minute")
TOP_COLUMNS: Final = ("endpoint", "message_type", "message_id", "conversation_id")
VALUES: Final = {"slowest": "processing_seconds", "largest": "body_bytes"}

# Counted columns, and how partial counts are merged.
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
_ROWS_PER_AGGREGATION: Final = 100_000

FOUND_DDL: Final = "name STRING, found BINARY"
"""The schema of the result of `count_batches`."""


class Counts:
    """Counts of messages: `add` counts messages in Spark's Python workers, `add_found` merges their counts in the driver."""

    def __init__(self) -> None:
        self._waiting: list[pa.RecordBatch] = []
        self._parts: dict[str, list[pa.Table]] = {"counts": [], "times": [], "notable": []}

    def add(self, messages: pa.RecordBatch) -> None:
        """Add messages, with the columns of `_narrow`."""
        self._waiting.append(messages)
        if sum(each.num_rows for each in self._waiting) >= _ROWS_PER_AGGREGATION:
            self._count()

    def add_found(self, name: str, found: pa.Table) -> None:
        """Add a table from `tables()` of another task."""
        self._parts[name].append(found)

    def tables(self) -> dict[str, pa.Table]:
        """The tables so far: `counts` by COUNT_KEYS, `times` by SKETCH_KEYS, kind and bucket, `notable` by day and kind."""
        self._count()
        together = {"counts": _merge_counts, "times": _merge_times, "notable": _merge_top_rows}
        return {name: together[name](pa.concat_tables(parts)) for name, parts in self._parts.items() if parts}

    def _count(self) -> None:
        if not self._waiting:
            return
        messages, self._waiting = pa.Table.from_batches(self._waiting), []
        self._parts["counts"].append(_counts(messages))
        audited = messages.filter(pc.invert(messages["is_failure"]))
        for kind in ("processing", "critical"):
            self._parts["times"].append(_times(audited, kind))
        for kind in TOP_KINDS:
            self._parts["notable"].append(_top_rows(audited, kind))


def count_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Count the messages of a task: the function for `DataFrame.mapInArrow` with the schema FOUND_DDL."""
    counts = Counts()
    for batch in batches:
        counts.add(batch)
    for name, table in counts.tables().items():
        yield pa.RecordBatch.from_pydict({"name": [name], "found": pa.array([_to_bytes(table)], pa.binary())})


def collect_counts(found: Iterable[tuple[str, bytes]]) -> dict[str, list[dict[str, Any]]]:
    """Merge the counts of all tasks into rows; those of `times` have the `sketch` of their kind."""
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


def _aggregate(table: pa.Table, keys: tuple[str, ...], how: dict[str, str]) -> pa.Table:
    """Aggregate by the keys, keeping the column names."""
    found = table.group_by(list(keys), use_threads=False).aggregate(list(how.items()))
    return found.select([*keys, *(f"{name}_{each}" for name, each in how.items())]).rename_columns([*keys, *how])


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
    keys = [messages[name] for name in COUNT_KEYS]
    return _merge_counts(pa.table([*keys, *columns.values()], names=[*COUNT_KEYS, *columns]))


def _merge_counts(parts: pa.Table) -> pa.Table:
    return _aggregate(parts, COUNT_KEYS, _COUNTED)


def _number(values: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.fill_null(values.cast(pa.int64()), 0)


def _micros(seconds: pa.ChunkedArray) -> pa.ChunkedArray:
    """Whole microseconds as doubles, whose sums are exact and cannot overflow."""
    return pc.fill_null(pc.round(pc.multiply(seconds, 1e6)), 0.0)


def _times(messages: pa.Table, kind: str) -> pa.Table:
    measured = messages.filter(pc.is_valid(messages[f"{kind}_seconds"]))
    columns = {
        **{name: measured[name] for name in SKETCH_KEYS},
        "kind": pa.repeat(kind, measured.num_rows),
        "bucket": _bucket(measured[f"{kind}_seconds"]),
        "count": pa.repeat(pa.scalar(1, pa.int64()), measured.num_rows),
    }
    return _merge_times(pa.table(list(columns.values()), names=list(columns)))


def _merge_times(parts: pa.Table) -> pa.Table:
    return _aggregate(parts, (*SKETCH_KEYS, "kind", "bucket"), {"count": "sum"})


def _bucket(seconds: pa.ChunkedArray) -> pa.ChunkedArray:
    """The same as `lake.sketches.bucket_of`."""
    above = pc.ceil(pc.subtract(pc.divide(pc.ln(seconds), LOG_OF_STEP), SLACK))
    positive = pc.max_element_wise(above, float(LOWEST))
    return pc.if_else(pc.greater(seconds, 0), positive, float(BELOW)).cast(pa.int32())


def _sketches(times: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    found: dict[tuple[Any, ...], dict[int, int]] = {}
    for row in times:
        found.setdefault(tuple(row[name] for name in (*SKETCH_KEYS, "kind")), {})[row["bucket"]] = row["count"]
    return [{**dict(zip((*SKETCH_KEYS, "kind"), key, strict=True)), "sketch": sketch} for key, sketch in found.items()]


def _top_rows(messages: pa.Table, kind: str) -> pa.Table:
    value = messages[VALUES[kind]].cast(pa.float64())
    columns = {
        "day": messages["day"],
        "kind": pa.repeat(kind, messages.num_rows),
        "value": value,
        "row_version": messages["row_version"],
        **{name: messages[name] for name in TOP_COLUMNS},
        "seen": messages["seen"],
    }
    return _merge_top_rows(pa.table(list(columns.values()), names=list(columns)).filter(pc.is_valid(value)))


def _merge_top_rows(parts: pa.Table) -> pa.Table:
    """The top N of each day and kind, in order; ties go to the greater message id, then RowVersion."""
    order = [(name, "descending") for name in ("value", "message_id", "row_version")]
    found = []
    for kind in TOP_KINDS:
        of_kind = parts.filter(pc.equal(parts["kind"], kind))
        for day in pc.unique(of_kind["day"]):
            of_day = of_kind.filter(pc.equal(of_kind["day"], day))
            found.append(of_day.take(pc.select_k_unstable(of_day, TOP_N, order)))
    return pa.concat_tables([parts.schema.empty_table(), *found])
