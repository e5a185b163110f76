"""From rows of an error queue to failures of the lake: messages, and the groups that ServiceControl would put them into."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType

from sqlqueue_app.lake.columns import FAILURES
from sqlqueue_app.messages.errors import PoisonMessage
from sqlqueue_app.messages.failure_groups import groups_of, unique_message_id
from sqlqueue_app.messages.headers import read_headers
from sqlqueue_app.spark.transforms.messages import message_columns

_GROUPS: Final = next(column.type for column in FAILURES.columns if column.name == "groups")
_TOLD: Final = f"STRUCT<problem: STRING, unique_message_id: STRING, groups: {_GROUPS}>"


def parse_failures(rows: DataFrame, *, queue: str, batch: str, taken_at: datetime) -> DataFrame:
    """The rows of an error queue as failures with the columns of the lake: as `parse_messages`, and those of `FAILURES`.

    Headers are read by `read_headers`, whose refusal is the `problem`. The time by which a failure is counted is that at which it
    failed. Needs pyarrow, and `sqlqueue_app` where Spark's executors find it.
    """
    told = rows.withColumn("told", _tell()("Headers", "Id"))
    columns = message_columns(told, queue=queue, batch=batch, taken_at=taken_at, counted="failed_at", told="told")
    whole = columns.withColumns({name: sf.col("told").getField(name) for name in ("unique_message_id", "groups")})
    return whole.select(*FAILURES.names, "queue", "day", "problem")


def told_of(text: str | None, native_id: str | None) -> Mapping[str, Any]:
    """What Python alone reads of the headers of a failure. Never raises."""
    try:
        headers = read_headers(text)
    except PoisonMessage as problem:
        return {"problem": str(problem), "unique_message_id": None, "groups": None}
    groups = [{"classifier": each.classifier.name, "title": each.title, "id": str(each.id)} for each in groups_of(headers)]
    return {"problem": None, "unique_message_id": str(unique_message_id(headers, native_id=native_id or "")), "groups": groups}


@cache
def _tell() -> Callable[..., Column]:
    """`told_of` as a function of columns; made when first used, for Spark looks for a session then."""
    kind = to_arrow_type(DataType.fromDDL(_TOLD))

    def tell(headers: pa.Array, ids: pa.Array) -> pa.Array:
        return pa.array([told_of(*each) for each in zip(headers.to_pylist(), ids.to_pylist(), strict=True)], type=kind)

    # Spark looks at them to know what it is, and not at texts.
    tell.__annotations__ = dict.fromkeys(("headers", "ids", "return"), pa.Array)
    make: Any = arrow_udf  # whose types know no text of a STRUCT
    told: Callable[..., Column] = make(tell, _TOLD)
    return told
