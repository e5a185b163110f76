"""What a batch of messages tells: the rows that it adds to the tables of figures.

Spark reads the messages three times, a few columns each, and counts; what is left is as much as there are endpoints, types and
minutes in the batch, whatever the number of messages, and is put together here, in the driver.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from sqlqueue_app.lake.columns import FIGURES, NOTABLE_KINDS, NOTABLE_ROWS
from sqlqueue_app.lake.sketches import BELOW, LOG_OF_STEP, LOWEST, SLACK
from sqlqueue_app.lake.sums import EPOCH, KEYS, Row, added_up, begin_of

_MINUTE: Final = 60
_HOUR: Final = 3_600

_OF_WHAT: Final = ("queue", "day", "endpoint", "message_type", "sender", "machine", "host_id", "host", "minute", "is_failure")
_VALUES: Final = {"slowest": "processing_seconds", "largest": "body_bytes"}
_TOLD: Final = ("endpoint", "message_type", "message_id", "conversation_id")
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
    each is read more than once. Runs up to six small jobs of Spark; raises what Spark raises.
    """
    counted = [_counts(frame, is_failure=frame is failures) for frame in (messages, failures) if frame is not None]
    counts = [row for frame in counted for row in _collected(frame)]
    times = list(_collected(_times(messages))) if messages is not None else []
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
    return {**rows, "notable": [] if messages is None else list(_notable(messages))}


def _collected(frame: DataFrame) -> Iterator[Row]:
    yield from frame.toArrow().to_pylist()


# --- what Spark counts --------------------------------------------------------------------------------------------------------


def _keyed(frame: DataFrame) -> DataFrame:
    """With the columns that say of what a message is, none of them NULL."""
    told = {name: sf.coalesce(name, sf.lit("")) for name in ("endpoint", "message_type", "machine", "host_id", "host")}
    minute = sf.unix_micros("counted_at") / sf.lit(_MINUTE * 1_000_000)
    return frame.withColumns(
        {**told, "sender": sf.coalesce("sending_endpoint", sf.lit("")), "minute": sf.floor(minute).cast("bigint")}
    )


def _micros(seconds: str) -> Column:
    """As whole microseconds in a double, whose sums are exact and never too large."""
    return sf.rint(sf.col(seconds) * sf.lit(1e6))


def _counts(frame: DataFrame, *, is_failure: bool) -> DataFrame:
    """How many, how large, how long, by all that figures are asked by."""
    seen = sf.unix_micros("counted_at")
    size = sf.col("body_bytes").cast("bigint") + sf.col("header_bytes")
    keyed = _keyed(frame).withColumn("is_failure", sf.lit(is_failure))
    return keyed.groupBy(*_OF_WHAT).agg(
        sf.count("*").alias("count"),
        sf.count_if(sf.col("is_retried")).alias("retried"),
        sf.count_if(sf.col("is_expired")).alias("expired"),
        sf.sum("delayed_retries").alias("delayed_retries"),
        sf.sum("body_bytes").alias("body_bytes"),
        sf.sum(size).alias("bytes"),
        sf.min(seen).alias("first_seen"),
        sf.max(seen).alias("last_seen"),
        sf.count("processing_seconds").alias("processing_count"),
        sf.coalesce(sf.sum(_micros("processing_seconds")), sf.lit(0.0)).alias("processing_sum"),
        sf.count("critical_seconds").alias("critical_count"),
        sf.coalesce(sf.sum(_micros("critical_seconds")), sf.lit(0.0)).alias("critical_sum"),
        sf.count_if(sf.col("critical_seconds") < 0).alias("critical_negative"),
    )


def _times(messages: DataFrame) -> DataFrame:
    """The sketches of both times, by sender, endpoint, type and minute."""
    keys = ("day", "endpoint", "message_type", "sender", "minute", "kind")
    keyed = _keyed(messages)

    def in_buckets(kind: str) -> DataFrame:
        measured = keyed.select(*keys[:-1], sf.lit(kind).alias("kind"), _bucket(sf.col(f"{kind}_seconds")).alias("bucket"))
        return measured.where(sf.col("bucket").isNotNull()).groupBy(*keys, "bucket").agg(sf.count("*").alias("count"))

    counts = in_buckets("processing").unionByName(in_buckets("critical"))
    return counts.groupBy(*keys).agg(sf.map_from_entries(sf.collect_list(sf.struct("bucket", "count"))).alias("sketch"))


def _bucket(seconds: Column) -> Column:
    """As `lake.sketches.bucket_of`; NULL of NULL."""
    above = sf.ceil(sf.ln(seconds) / sf.lit(LOG_OF_STEP) - sf.lit(SLACK)).cast("int")
    positive = sf.when(seconds > 0, sf.greatest(above, sf.lit(LOWEST)))
    return sf.when(seconds.isNotNull(), sf.coalesce(positive, sf.lit(BELOW)))


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


def _notable(messages: DataFrame) -> Iterator[Row]:
    """The slowest and the largest of each day, ranked; of equal ones the one with the greater message id, then row version."""
    told = [sf.coalesce(name, sf.lit("")).alias(name) for name in _TOLD]
    what = sf.struct(*told, *_VALUES.values(), sf.unix_micros("counted_at").alias("at"))

    def first(value: str) -> Column:
        order = sf.when(sf.col(value).isNotNull(), sf.struct(value, "message_id", "row_version"))
        return sf.max_by(what, order, NOTABLE_ROWS)

    firsts = messages.groupBy("day").agg(*(first(_VALUES[kind]).alias(kind) for kind in NOTABLE_KINDS))
    for row in _collected(firsts):
        for kind in NOTABLE_KINDS:
            for rank, each in enumerate(row[kind] or (), 1):
                place = {"day": row["day"], "kind": kind, "rank": rank}
                shown = {name: each[name] for name in _TOLD}
                yield {**place, **shown, "value": float(each[_VALUES[kind]]), "at": _at(each["at"])}


def _frame(session: SparkSession, name: str, rows: Iterable[Mapping[str, Any]]) -> DataFrame:
    table = FIGURES[name]
    names = (*table.names, "day")
    return session.createDataFrame([tuple(row[each] for each in names) for row in rows], table.whole_ddl)
