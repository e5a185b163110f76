"""From rows of a queue to messages of the lake: headers to columns, without Python, so that it costs little per message."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from sqlqueue_app.lake.columns import MESSAGES
from sqlqueue_app.messages import headers as names
from sqlqueue_app.spark.transforms.times import instant_of, seconds_between

OLDEST_DAYS: Final = 400
NEWEST_DAYS: Final = 1
"""What is said to have happened longer ago before its batch was taken, or later after it, is counted when it was taken."""

_LONGEST_TYPES: Final = 2_000

NOT_READABLE: Final = "the headers are no flat JSON object"

# Names of the columns in which headers are, until the exit.
_HEADERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "message_id_header": names.MESSAGE_ID,
        "conversation_id": names.CONVERSATION_ID,
        "correlation_id_header": names.CORRELATION_ID,
        "related_to": names.RELATED_TO,
        "enclosed_types": names.ENCLOSED_MESSAGE_TYPES,
        "intent": names.MESSAGE_INTENT,
        "sending_endpoint": names.ORIGINATING_ENDPOINT,
        "sending_machine": names.ORIGINATING_MACHINE,
        "processing_endpoint": names.PROCESSING_ENDPOINT,
        "machine": names.PROCESSING_MACHINE,
        "host_id": names.HOST_ID,
        "host": names.HOST_DISPLAY_NAME,
        "time_sent": names.TIME_SENT,
        "deliver_at": names.DELIVER_AT,
        "processing_started": names.PROCESSING_STARTED,
        "processing_ended": names.PROCESSING_ENDED,
        "retries": names.DELAYED_RETRIES,
        "retried_as": names.RETRY_UNIQUE_MESSAGE_ID,
        "failed_queue": names.FAILED_QUEUE,
        "reply_to": names.REPLY_TO_ADDRESS,
        "time_of_failure": names.TIME_OF_FAILURE,
        "exception_type": names.EXCEPTION_TYPE,
        "exception_message": names.EXCEPTION_MESSAGE,
    }
)

_CORRUPT: Final = "corrupt"
_SCHEMA: Final = f"STRUCT<{', '.join(f'`{name}`: STRING' for name in (*_HEADERS.values(), _CORRUPT))}>"
_READING: Final = MappingProxyType(
    {"columnNameOfCorruptRecord": _CORRUPT, "allowSingleQuotes": "false", "maxStringLen": str(2**31 - 1)}
)


def parse_messages(rows: DataFrame, *, queue: str, batch: str, taken_at: datetime) -> DataFrame:
    """The rows of an audit queue, with the columns of the data source, as messages with the columns of the lake.

    To the columns of `lake.columns.MESSAGES` come `queue`, `day`, and `problem`: why the headers cannot be read, NULL where they
    can. Of a row with a problem what comes from headers is NULL, and the rest as it is. Times are not corrected; `counted_at` and
    `day` are those of the end of processing, else of sending, where that is believable, else of `taken_at` (aware).
    """
    return message_columns(rows, queue=queue, batch=batch, taken_at=taken_at).select(*MESSAGES.names, "queue", "day", "problem")


def message_columns(
    rows: DataFrame, *, queue: str, batch: str, taken_at: datetime, counted: str = "ended_at", told: str | None = None
) -> DataFrame:
    """The columns of `parse_messages`, and those of failures that are in headers.

    `counted` is the column of the instant by which a message is counted. `told` is a column of the rows that is kept, a STRUCT with
    the `problem` of each row by somebody who has read the headers before.
    """
    taken = sf.lit(taken_at)
    read = _with_headers(rows, told)
    timed = _with_times(read)
    return timed.withColumns(
        {
            "counted_at": _believable(sf.coalesce(counted, "sent_at"), taken),
            "processing_seconds": seconds_between(sf.col("started_at"), sf.col("ended_at")),
            "critical_seconds": seconds_between(sf.coalesce("due_at", "sent_at"), sf.col("ended_at")),
            "is_expired": sf.coalesce(sf.col("expires") <= taken, sf.lit(False)),
            "taken_at": taken,
            "batch": sf.lit(batch),
            "queue": sf.lit(queue),
        }
    ).withColumn("day", sf.to_date("counted_at"))


def _with_headers(rows: DataFrame, told: str | None) -> DataFrame:
    """The row, and each header in a column."""
    text = sf.col("Headers")
    read = rows.select(
        sf.col("RowVersion").alias("row_version"),
        sf.col("Id").alias("native_id"),
        sf.col("CorrelationId").alias("row_correlation_id"),
        sf.col("Expires").alias("expires"),
        text.alias("headers"),
        sf.col("Body").alias("body"),
        _octets("Body").alias("body_bytes"),
        _octets("Headers").alias("header_bytes"),
        sf.from_json(text, _SCHEMA, dict(_READING)).alias("read"),
        *([] if told is None else [told]),
    )
    found = _problem(sf.col("headers"), sf.col("read").getField(_CORRUPT)) if told is None else sf.col(f"{told}.problem")
    # A readable part of what cannot be read as a whole counts for nothing.
    whole = read.withColumn("problem", found).withColumn("read", sf.when(sf.col("problem").isNull(), sf.col("read")))
    return whole.withColumns({column: sf.col("read").getField(header) for column, header in _HEADERS.items()}).drop("read")


def _octets(column: str) -> Column:
    return sf.coalesce(sf.octet_length(column), sf.lit(0))


def _problem(text: Column, corrupt: Column) -> Column:
    """NULL for one object, and for what means no headers: NULL, the empty text, an empty array."""
    is_object = (text.startswith("{") & text.endswith("}")) | text.rlike(r"(?s)\A[ \t\r\n]*\{.*\}[ \t\r\n]*\z")
    is_nothing = (text == "") | text.rlike(r"\A[ \t\r\n]*\[[ \t\r\n]*\][ \t\r\n]*\z")
    is_readable = text.isNull() | (is_object & corrupt.isNull()) | is_nothing
    return sf.when(~is_readable, sf.lit(NOT_READABLE))


def _with_times(read: DataFrame) -> DataFrame:
    """Headers as what they mean."""
    address = sf.coalesce(_filled("failed_queue"), _filled("reply_to"), sf.lit(""))
    queue_part = sf.substring_index(address, "@", 1)
    is_count = sf.col("retries").rlike(r"\A[0-9]{1,9}\z")
    return read.withColumns(
        {
            "message_id": sf.coalesce(_filled("message_id_header"), "native_id"),
            "correlation_id": sf.coalesce("correlation_id_header", "row_correlation_id"),
            "message_type": _first_type(sf.col("enclosed_types")),
            "endpoint": sf.coalesce("processing_endpoint", queue_part),
            "sent_at": instant_of(sf.col("time_sent")),
            "due_at": instant_of(sf.col("deliver_at")),
            "started_at": instant_of(sf.col("processing_started")),
            "ended_at": instant_of(sf.col("processing_ended")),
            "failed_at": instant_of(sf.col("time_of_failure")),
            "delayed_retries": sf.coalesce(sf.when(is_count, sf.col("retries").cast("int")), sf.lit(0)),
            "is_retried": sf.col("retried_as").isNotNull(),
        }
    )


def _filled(column: str) -> Column:
    return sf.nullif(sf.col(column), sf.lit(""))


def _first_type(types: Column) -> Column:
    """The full name of the first type, as `messages.types.resolve_enclosed` has it; NULL where there is none."""
    is_plain = ~(types.contains("[") | types.contains("__impl") | types.startswith(";"))
    plain = sf.substring_index(sf.substring_index(types, ";", 1), ",", 1)
    # Bounded, for these patterns take longer than in proportion.
    entries = sf.filter(
        sf.split(sf.left(types, sf.lit(_LONGEST_TYPES)), ";"), lambda entry: ~entry.contains("__impl") & (sf.trim(entry) != "")
    )
    # Inside of brackets: assemblies of arguments, and white space. Behind them: the assembly.
    first = sf.regexp_replace(sf.get(entries, sf.lit(0)), r",\s*[^\[\],\s][^\[\]]*(?=\])", "")
    named = sf.regexp_replace(sf.regexp_replace(first, r",[^\[\]]*\z", ""), r"\s+(?=[^\[]*\])|(?<=\[)\s+", "")
    return sf.nullif(sf.trim(sf.when(is_plain, plain).otherwise(named)), sf.lit(""))


def _believable(instant: Column, taken: Column) -> Column:
    oldest = taken - sf.make_dt_interval(sf.lit(OLDEST_DAYS))
    newest = taken + sf.make_dt_interval(sf.lit(NEWEST_DAYS))
    return sf.when(instant.between(oldest, newest), instant).otherwise(taken)
