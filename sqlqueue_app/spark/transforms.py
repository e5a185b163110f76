"""Transform queue rows into messages and failures of the lake: DataFrame to DataFrame, without database access.

Messages are parsed by Spark alone, which costs little per message. Failures also need Python, for their groups and unique ids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, functions as sf
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType

from sqlqueue_app.lake.columns import FAILURES, MESSAGES
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.errors import PoisonMessage
from sqlqueue_app.messages.failure_groups import groups_of, unique_message_id
from sqlqueue_app.messages.headers import read_headers

OLDEST_DAYS: Final = 400
NEWEST_DAYS: Final = 1
"""Days before and after the time of the batch within which times in headers are believed."""

_MAX_TYPES_LENGTH: Final = 2_000

NOT_READABLE: Final = "the headers are not a flat JSON object"

# Intermediate columns, each with its header.
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
    """Convert rows of an audit queue, as read by the data source, to messages of the lake.

    Adds `queue`, `day` and `problem` (why the headers cannot be parsed, else NULL) to the columns of `lake.columns.MESSAGES`. With
    a problem all header columns are NULL. Times are not corrected; `counted_at` and `day` are the end of processing, else the time
    sent, or `taken_at` (aware) if those are implausible.
    """
    return message_columns(rows, queue=queue, batch=batch, taken_at=taken_at).select(*MESSAGES.names, "queue", "day", "problem")


def message_columns(
    rows: DataFrame, *, queue: str, batch: str, taken_at: datetime, counted: str = "ended_at", parsed: str | None = None
) -> DataFrame:
    """The columns of `parse_messages`, and those of failures that are in headers.

    `counted` names the column with the instant by which a message is counted. `parsed` names a STRUCT column of the rows,
    which is kept; its `problem` replaces the check made here.
    """
    taken = sf.lit(taken_at)
    return (
        _with_times(_with_headers(rows, parsed))
        .withColumns(
            {
                "counted_at": _believable(sf.coalesce(counted, "sent_at"), taken),
                "processing_seconds": seconds_between(sf.col("started_at"), sf.col("ended_at")),
                "critical_seconds": seconds_between(sf.coalesce("due_at", "sent_at"), sf.col("ended_at")),
                "is_expired": sf.coalesce(sf.col("expires") <= taken, sf.lit(False)),
                "taken_at": taken,
                "batch": sf.lit(batch),
                "queue": sf.lit(queue),
            }
        )
        # in UTC, whatever the session's time zone
        .withColumn("day", sf.expr("date_from_unix_date(CAST(unix_micros(counted_at) DIV 86400000000 AS INT))"))
    )


def _with_headers(rows: DataFrame, parsed: str | None) -> DataFrame:
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
        *([] if parsed is None else [parsed]),
    )
    found = _problem(sf.col("headers"), sf.col("read").getField(_CORRUPT)) if parsed is None else sf.col(f"{parsed}.problem")
    # The readable part of unparsable headers is ignored.
    whole = read.withColumn("problem", found).withColumn("read", sf.when(sf.col("problem").isNull(), sf.col("read")))
    return whole.withColumns({column: sf.col("read").getField(header) for column, header in _HEADERS.items()}).drop("read")


def _octets(column: str) -> Column:
    return sf.coalesce(sf.octet_length(column), sf.lit(0))


def _problem(text: Column, corrupt: Column) -> Column:
    """NULL for a JSON object and for empty headers: NULL, empty text or an empty array."""
    is_object = (text.startswith("{") & text.endswith("}")) | text.rlike(r"(?s)\A[ \t\r\n]*\{.*\}[ \t\r\n]*\z")
    is_empty = (text == "") | text.rlike(r"\A[ \t\r\n]*\[[ \t\r\n]*\][ \t\r\n]*\z")
    is_readable = text.isNull() | (is_object & corrupt.isNull()) | is_empty
    return sf.when(~is_readable, sf.lit(NOT_READABLE))


def _with_times(read: DataFrame) -> DataFrame:
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
    """The full name of the first type, like `messages.types.resolve_enclosed`; NULL if there is none."""
    is_plain = ~(types.contains("[") | types.contains("__impl") | types.startswith(";"))
    plain = sf.substring_index(sf.substring_index(types, ";", 1), ",", 1)
    # Limited, because these patterns take superlinear time.
    entries = sf.filter(
        sf.split(sf.left(types, sf.lit(_MAX_TYPES_LENGTH)), ";"), lambda entry: ~entry.contains("__impl") & (sf.trim(entry) != "")
    )
    # Removes assemblies of arguments and white space inside brackets, and the assembly behind them.
    first = sf.regexp_replace(sf.get(entries, sf.lit(0)), r",\s*[^\[\],\s][^\[\]]*(?=\])", "")
    named = sf.regexp_replace(sf.regexp_replace(first, r",[^\[\]]*\z", ""), r"\s+(?=[^\[]*\])|(?<=\[)\s+", "")
    return sf.nullif(sf.trim(sf.when(is_plain, plain).otherwise(named)), sf.lit(""))


def _believable(instant: Column, taken: Column) -> Column:
    oldest = taken - sf.make_dt_interval(sf.lit(OLDEST_DAYS))
    newest = taken + sf.make_dt_interval(sf.lit(NEWEST_DAYS))
    return sf.when(instant.between(oldest, newest), instant).otherwise(taken)


_USUAL: Final = r"(?s)\A(?!0000)[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}:[0-9]{6} Z\z"
# Digits are read by position, separators are ignored. There is no year 0.
_DIGITS: Final = r"(?s)\A(?!0000)([0-9]{4}).([0-9]{2}).([0-9]{2}).([0-9]{2}).([0-9]{2}).([0-9]{2}).([0-9]{6})..\z"
_CASTABLE: Final = "$1-$2-$3T$4:$5:$6.$7Z"


def instant_of(text: Column) -> Column:
    """Parse a wire timestamp by the rule of `messages.times.parse_time`; NULL for any other text."""
    # Casting takes half the time of a Java regular expression.
    castable = sf.concat(sf.left(text, sf.lit(19)), sf.lit("."), sf.substr(text, sf.lit(21), sf.lit(6)), sf.lit("Z"))
    usual = sf.when(text.rlike(_USUAL), castable.try_cast("timestamp"))
    unusual = sf.when(text.rlike(_DIGITS), sf.regexp_replace(text, _DIGITS, _CASTABLE).try_cast("timestamp"))
    return sf.coalesce(usual, unusual)


def seconds_between(begin: Column, end: Column) -> Column:
    """Seconds between two times, negative if the end comes first; NULL if one is NULL."""
    return (sf.unix_micros(end) - sf.unix_micros(begin)) / sf.lit(1e6)


_GROUPS: Final = next(column.type for column in FAILURES.columns if column.name == "groups")
_PARSED_DDL: Final = f"STRUCT<problem: STRING, unique_message_id: STRING, groups: {_GROUPS}>"


def parse_failures(rows: DataFrame, *, queue: str, batch: str, taken_at: datetime) -> DataFrame:
    """Convert rows of an error queue to failures of the lake: like `parse_messages`, with the columns of `FAILURES`.

    Headers are parsed by `read_headers`, whose error is the `problem`. A failure counts at the time it failed. The executors need
    pyarrow and `sqlqueue_app`.
    """
    parsed = rows.withColumn("parsed", _header_udf()("Headers", "Id"))
    columns = message_columns(parsed, queue=queue, batch=batch, taken_at=taken_at, counted="failed_at", parsed="parsed")
    whole = columns.withColumns({name: sf.col("parsed").getField(name) for name in ("unique_message_id", "groups")})
    return whole.select(*FAILURES.names, "queue", "day", "problem")


def parse_failure_headers(text: str | None, native_id: str | None) -> Mapping[str, Any]:
    """Problem, unique message id and groups of a failure, from its headers. Never raises."""
    try:
        headers = read_headers(text)
    except PoisonMessage as problem:
        return {"problem": str(problem), "unique_message_id": None, "groups": None}
    groups = [{"classifier": each.classifier.name, "title": each.title, "id": str(each.id)} for each in groups_of(headers)]
    return {"problem": None, "unique_message_id": str(unique_message_id(headers, native_id=native_id or "")), "groups": groups}


@cache
def _header_udf() -> Callable[..., Column]:
    """`parse_failure_headers` as a column function; created on first use, because Spark needs a session then."""
    kind = to_arrow_type(DataType.fromDDL(_PARSED_DDL))

    def read_batch(headers: pa.Array, ids: pa.Array) -> pa.Array:
        return pa.array(
            [parse_failure_headers(*each) for each in zip(headers.to_pylist(), ids.to_pylist(), strict=True)], type=kind
        )

    # Spark inspects the annotations and does not resolve strings.
    read_batch.__annotations__ = dict.fromkeys(("headers", "ids", "return"), pa.Array)
    make: Any = arrow_udf  # its stubs accept no DDL text of a STRUCT
    parsed: Callable[..., Column] = make(read_batch, _PARSED_DDL)
    return parsed
