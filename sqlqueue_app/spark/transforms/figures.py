"""What a batch of messages tells: the rows that it adds to the tables of figures.

Spark reads a few columns of the messages, once, and they are counted where they are read (`counting`); what is left is as much as
there are endpoints, types and minutes in the batch, whatever the number of messages, and is put together here, in the driver.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from functools import reduce
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from sqlqueue_app.lake.columns import FIGURES
from sqlqueue_app.lake.sums import EPOCH, KEYS, Row, added_up, begin_of
from sqlqueue_app.spark.transforms.counting import FOUND_DDL, TOLD, counted, counted_batches

_MINUTE: Final = 60
_HOUR: Final = 3_600

_NO_TIMES: Final[Row] = {"processing_sketch": {}, "critical_sketch": {}}


def figures(messages: DataFrame | None, failures: DataFrame | None, unreadable: DataFrame | None = None) -> dict[str, DataFrame]:
    """The figures of a batch, by the name of their table; their columns are those of the table and `day`.

    As `figure_rows`, in DataFrames that the driver holds.
    """
    given = next(frame for frame in (messages, failures, unreadable) if frame is not None)
    rows = figure_rows(messages, failures, unreadable)
    return {name: _frame(given.sparkSession, name, rows[name]) for name in FIGURES}


def figure_rows(
    messages: DataFrame | None, failures: DataFrame | None, unreadable: DataFrame | None = None
) -> dict[str, list[Row]]:
    """The same as rows, with instants that are aware and sketches as dictionaries.

    What is given has the columns of its table of the lake, `queue` and `day`; None is a table without rows. Read them from files:
    those of failures are read twice. Runs up to three small jobs of Spark; raises what Spark raises.
    """
    seen = _counted({False: messages, True: failures})
    counts, times = seen["counts"], seen["times"]
    found = {
        "minutes": [*map(_minute, counts), *map(_minute_times, times)],
        "edges": [
            *(_edge(row) for row in counts if not row["is_failure"]),
            *(_edge_times(row) for row in times if row["kind"] == "critical"),
        ],
        "endpoints": map(_endpoint, counts),
        "queues": [*map(_queue, counts), *_unreadable(unreadable)],
        "usage": map(_usage, counts),
        "groups": [] if failures is None else map(_group, _collected(_groups(failures))),
    }
    rows = {name: added_up(parts, KEYS[name]) for name, parts in found.items()}
    return {**rows, "notable": list(_notable(seen["notable"]))}


def _collected(frame: DataFrame) -> Iterator[Row]:
    yield from frame.toArrow().to_pylist()


# --- what Spark counts --------------------------------------------------------------------------------------------------------


def _counted(frames: Mapping[bool, DataFrame | None]) -> dict[str, list[Row]]:
    """The counts of messages (False) and failures (True), in one look at a few columns of each."""
    narrow = [_narrow(frame, is_failure=is_failure) for is_failure, frame in frames.items() if frame is not None]
    if not narrow:
        return counted([])
    found = reduce(DataFrame.unionByName, narrow).mapInArrow(counted_batches, FOUND_DDL)
    return counted((row["name"], row["found"]) for row in _collected(found))


def _narrow(frame: DataFrame, *, is_failure: bool) -> DataFrame:
    """What `counting.Counts` asks for; nothing that says of what a message is is NULL."""
    seen = sf.unix_micros("counted_at")
    told = ("endpoint", "message_type", "message_id", "conversation_id", "machine", "host_id", "host")
    return frame.select(
        *("queue", "day", "row_version", "body_bytes", "header_bytes", "delayed_retries", "is_retried", "is_expired"),
        *("processing_seconds", "critical_seconds"),
        *(sf.coalesce(name, sf.lit("")).alias(name) for name in told),
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


# --- what is put together of it -----------------------------------------------------------------------------------------------


def _at(micros: int) -> Any:
    return EPOCH + timedelta(microseconds=micros)


def _minute(row: Row) -> Row:
    is_failure = row["is_failure"]
    return {
        "endpoint": row["endpoint"],
        "message_type": row["message_type"],
        "at": _at(row["minute"] * _MINUTE * 1_000_000),
        "day": row["day"],
        "processed": 0 if is_failure else row["count"],
        "failed": row["count"] if is_failure else 0,
        "retried": row["retried"],
        "delayed_retries": row["delayed_retries"],
        "body_bytes": 0 if is_failure else row["body_bytes"],
        **{name: 0 if is_failure else row[name] for name in ("processing_count", "critical_count", "critical_negative")},
        **{name: 0.0 if is_failure else row[name] / 1e6 for name in ("processing_sum", "critical_sum")},
        **_NO_TIMES,
    }


def _minute_times(row: Row) -> Row:
    at = _at(row["minute"] * _MINUTE * 1_000_000)
    key = {"endpoint": row["endpoint"], "message_type": row["message_type"], "at": at, "day": row["day"]}
    return {**key, f"{row['kind']}_sketch": dict(row["sketch"])}


def _edge_key(row: Row) -> Row:
    return {
        "sender": row["sender"],
        "receiver": row["endpoint"],
        "message_type": row["message_type"],
        "at": begin_of(_at(row["minute"] * _MINUTE * 1_000_000), _HOUR),
        "day": row["day"],
    }


def _edge(row: Row) -> Row:
    critical = {"critical_count": row["critical_count"], "critical_sum": row["critical_sum"] / 1e6, "critical_sketch": {}}
    return {**_edge_key(row), "count": row["count"], **critical}


def _edge_times(row: Row) -> Row:
    return {**_edge_key(row), "critical_sketch": dict(row["sketch"])}


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
        yield from ({**row, "taken": 0, "copied": 0, "expired": 0} for row in _collected(counts))


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


def _notable(found: Iterable[Row]) -> Iterator[Row]:
    """The slowest and the largest of each day, ranked; what is found has them in their order."""
    ranks: dict[tuple[Any, str], int] = {}
    for row in found:
        place = (row["day"], row["kind"])
        ranks[place] = ranks.get(place, 0) + 1
        shown = {name: row[name] for name in ("day", "kind", *TOLD, "value")}
        yield {**shown, "rank": ranks[place], "at": _at(row["seen"])}


def _frame(session: SparkSession, name: str, rows: Iterable[Mapping[str, Any]]) -> DataFrame:
    table = FIGURES[name]
    names = (*table.names, "day")
    return session.createDataFrame([tuple(row[each] for each in names) for row in rows], table.whole_ddl)
