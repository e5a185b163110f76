"""A lake of many messages, made with pyarrow in the layout of the pipeline's writer: for measuring its search."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sqlqueue_app.lake.columns import FAILURES, MESSAGES, Column, LakeTable

ROWS_OF_A_FILE: Final = 250_000
ENDPOINTS: Final = 12
TYPES: Final = 40
IN_A_CONVERSATION: Final = 4
RARE_TEXT: Final = "needle-in-the-haystack"
# The last day of every lake, so that two lakes differ only in their ids.
END: Final = datetime(2026, 11, 22, tzinfo=UTC)
_PADDING: Final = (
    "Lorem ipsum dolor sit amet consetetur sadipscing elitr sed diam nonumy eirmod tempor invidunt ut labore et dolore. " * 8
)
_TYPES: Final[dict[str, Any]] = {
    "STRING": pa.string(), "BINARY": pa.binary(), "INT": pa.int32(), "BIGINT": pa.int64(), "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(), "TIMESTAMP": pa.timestamp("us", tz="UTC"),
}  # fmt: skip
_GROUP: Final = pa.list_(pa.struct([("classifier", pa.string()), ("title", pa.string()), ("id", pa.string())]))


def make_lake(
    lake: Path, rows: int, *, days: int, blooms: bool = True, row_group: int = 20_000, is_sorted: bool = True, level: int = 3
) -> None:
    """Fill a directory with `rows` messages over `days` days, and a hundredth as many failures."""
    of_a_day = rows // days
    for number in range(days):
        day = END - timedelta(days=days - number)
        for table, count in ((MESSAGES, of_a_day), (FAILURES, of_a_day // 100)):
            folder = lake / table.name / "queue=audit" / f"day={day:%Y-%m-%d}"
            folder.mkdir(parents=True, exist_ok=True)
            files = max(1, -(-count // ROWS_OF_A_FILE))
            for file in range(files):
                here = count // files
                step = timedelta(days=1) / files
                first = number * of_a_day + file * here + 1
                data = _table(table, first, here, day + step * file, step, is_rare=number == days // 3 and file == 0)
                if not is_sorted:
                    data = data.take(pa.array(sorted(range(here), key=lambda each: hash((each, 7)) % 1_000_003)))
                _write(folder / f"{first:012}-0.parquet", data, blooms=blooms, row_group=row_group, level=level)


def _write(path: Path, data: Any, *, blooms: bool, row_group: int, level: int) -> None:
    filters = {name: {"ndv": row_group, "fpp": 0.01} for name in ("message_id", "conversation_id")} if blooms else None
    pq.write_table(
        data, path, compression="zstd", compression_level=level, row_group_size=row_group, bloom_filter_options=filters,
        use_dictionary=[name for name in data.column_names if name not in ("headers", "body", "message_id", "conversation_id")],
    )  # fmt: skip


def ids(count: int) -> Any:
    """Random ids as NServiceBus writes them."""
    text = pa.array([os.urandom(16 * count).hex()]).buffers()[2]
    whole = pa.Array.from_buffers(pa.binary(32), count, [None, text]).cast(pa.string())
    parts = [pc.utf8_slice_codeunits(whole, begin, end) for begin, end in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32))]
    return pc.binary_join_element_wise(*parts, "-")


def _table(table: LakeTable, first: int, count: int, begin: datetime, length: timedelta, *, is_rare: bool) -> Any:
    numbers = pa.array(range(first, first + count), pa.int64())
    base = int(begin.timestamp() * 1e6)
    step = max(int(length / timedelta(microseconds=1)) // max(count, 1), 1)
    at = pa.array(range(base, base + step * count, step), pa.int64())
    message, related = ids(count), ids(count)
    conversation = ids(-(-count // IN_A_CONVERSATION)).take(pa.array([each // IN_A_CONVERSATION for each in range(count)]))
    endpoint = pa.array([f"Endpoint{each % ENDPOINTS:02}" for each in range(first, first + count)])
    kind = pa.array([f"Shop.Messages.Type{(each * 7 // 3) % TYPES:02}" for each in range(first, first + count)])
    instants = at.cast(_TYPES["TIMESTAMP"])
    headers = _headers(message, conversation, related, endpoint, kind, instants)
    known = {
        "row_version": numbers, "native_id": message, "headers": headers, "body": _body(count, is_rare).cast(pa.binary()),
        "body_bytes": pa.array([1024] * count, pa.int32()), "header_bytes": pc.binary_length(headers), "message_id": message,
        "conversation_id": conversation, "correlation_id": message, "related_to": related, "message_type": kind,
        "enclosed_types": kind, "intent": pa.array(["Send"] * count), "sending_endpoint": endpoint, "endpoint": endpoint,
        "sent_at": pc.subtract(at, 1_500_000), "started_at": pc.subtract(at, 20_000),
        "ended_at": instants, "counted_at": instants, "failed_at": instants, "taken_at": instants,
        "processing_seconds": pa.array([0.02] * count), "critical_seconds": pa.array([1.5] * count),
        "exception_type": pa.array(["System.InvalidOperationException"] * count), "exception_message": kind,
    }  # fmt: skip
    return pa.table({each.name: _column(each, known.get(each.name), count) for each in table.columns})


def _column(column: Column, known: Any, count: int) -> Any:
    wanted = _TYPES.get(column.type, _GROUP)
    return pa.nulls(count, wanted) if known is None else known.cast(wanted)


def _headers(message: Any, conversation: Any, related: Any, endpoint: Any, kind: Any, at: Any) -> Any:
    time = pc.strftime(pc.floor_temporal(at, unit="second").cast(pa.timestamp("s", tz="UTC")), format="%Y-%m-%d %H:%M:%S Z")
    return pc.binary_join_element_wise(
        '{"NServiceBus.MessageId":"', message, '","NServiceBus.CorrelationId":"', message, '","NServiceBus.ConversationId":"',
        conversation, '","NServiceBus.RelatedTo":"', related, '","NServiceBus.EnclosedMessageTypes":"', kind,
        ', Shop.Messages, Version=1.0.0.0","NServiceBus.MessageIntent":"Send","NServiceBus.ContentType":"application/json",'
        '"NServiceBus.OriginatingEndpoint":"', endpoint, '","NServiceBus.ProcessingEndpoint":"', endpoint,
        '","NServiceBus.TimeSent":"', time,
        '","NServiceBus.ProcessingStarted":"', time, '","NServiceBus.ProcessingEnded":"', time, '"}', "",
    )  # fmt: skip


def _body(count: int, is_rare: bool) -> Any:
    customer, order, token, trace = ids(count), ids(count), ids(count), ids(count)
    note = pa.array([RARE_TEXT if is_rare and each == count // 2 else "no note" for each in range(count)])
    start = pc.binary_join_element_wise(
        '{"customer":"', customer, '","order":"', order, '","token":"', token, '","trace":"', trace, '","note":"', note,
        '","lines":[{"sku":"SKU-0001","quantity":2},{"sku":"SKU-0002","quantity":1}],"text":"', "",
    )  # fmt: skip
    return pc.binary_join_element_wise(pc.utf8_slice_codeunits(pc.binary_join_element_wise(start, _PADDING, ""), 0, 1022), '"}', "")
