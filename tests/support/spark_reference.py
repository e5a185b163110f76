"""The computations of the pipeline in plain Python, message by message, written from the documented rules."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.errors import PoisonMessage
from sqlqueue_app.messages.failure_groups import groups_of, unique_message_id
from sqlqueue_app.messages.headers import read_headers, whole_number
from sqlqueue_app.messages.times import parse_time
from sqlqueue_app.messages.types import resolve_enclosed

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a queue as the data source returns it."""

    row_version: int
    native_id: str
    headers: str | None
    body: bytes | None = b"{}"
    expires: datetime | None = None


def headers_of(text: str | None, *, strict: bool) -> Mapping[str, str | None] | None:
    """The headers, None if unreadable. Without `strict`, for audit queues: the last duplicate counts, any value is text."""
    try:
        return read_headers(text)
    except PoisonMessage:
        if strict or text is None:
            return None
    try:
        found = json.loads(text)
    except ValueError:
        return None
    if not isinstance(found, dict):
        return None
    return {name: value if isinstance(value, str | None) else json.dumps(value) for name, value in found.items()}


def instant(text: str | None) -> datetime | None:
    try:
        return parse_time(text) if text is not None else None
    except ValueError:
        return None


def seconds(begin: datetime | None, end: datetime | None) -> float | None:
    return None if begin is None or end is None else float((end - begin) // MICROSECOND) / 1e6


def message(row: Row, *, queue: str, batch: str, taken_at: datetime, failed: bool = False) -> dict[str, Any]:
    """The row of the lake with `queue`, `day` and `problem` (whether it is unreadable)."""
    read = headers_of(row.headers, strict=failed)
    headers = read or {}
    get = headers.get
    sent, due, ended = instant(get(names.TIME_SENT)), instant(get(names.DELIVER_AT)), instant(get(names.PROCESSING_ENDED))
    started, failed_at = instant(get(names.PROCESSING_STARTED)), instant(get(names.TIME_OF_FAILURE))
    counted = ((failed_at if failed else ended) or sent) or taken_at
    if not taken_at - timedelta(days=400) <= counted <= taken_at + timedelta(days=1):
        counted = taken_at
    address = get(names.FAILED_QUEUE) or get(names.REPLY_TO_ADDRESS) or ""
    endpoint = get(names.PROCESSING_ENDPOINT)
    found = {
        "row_version": row.row_version,
        "native_id": row.native_id,
        "expires": row.expires,
        "headers": row.headers,
        "body": row.body,
        "body_bytes": len(row.body or b""),
        "header_bytes": len((row.headers or "").encode()),
        "message_id": get(names.MESSAGE_ID) or row.native_id,
        "conversation_id": get(names.CONVERSATION_ID),
        "correlation_id": get(names.CORRELATION_ID),
        "related_to": get(names.RELATED_TO),
        "message_type": next(iter(resolve_enclosed(get(names.ENCLOSED_MESSAGE_TYPES))), None),
        "enclosed_types": get(names.ENCLOSED_MESSAGE_TYPES),
        "intent": get(names.MESSAGE_INTENT),
        "sending_endpoint": get(names.ORIGINATING_ENDPOINT),
        "sending_machine": get(names.ORIGINATING_MACHINE),
        "endpoint": address.partition("@")[0] if endpoint is None else endpoint,
        "machine": get(names.PROCESSING_MACHINE),
        "host_id": get(names.HOST_ID),
        "host": get(names.HOST_DISPLAY_NAME),
        "sent_at": sent,
        "due_at": due,
        "started_at": started,
        "ended_at": ended,
        "counted_at": counted,
        "processing_seconds": seconds(started, ended),
        "critical_seconds": seconds(due or sent, ended),
        "delayed_retries": whole_number(get(names.DELAYED_RETRIES)),
        "is_retried": get(names.RETRY_UNIQUE_MESSAGE_ID) is not None,
        "is_expired": row.expires is not None and row.expires <= taken_at,
        "taken_at": taken_at,
        "batch": batch,
        "queue": queue,
        "day": counted.date(),
        "problem": read is None,
    }
    return {**found, **_failure(headers, row)} if failed else found


def _failure(headers: Mapping[str, str | None], row: Row) -> dict[str, Any]:
    groups = [{"classifier": each.classifier.name, "title": each.title, "id": str(each.id)} for each in groups_of(headers)]
    return {
        "failed_at": instant(headers.get(names.TIME_OF_FAILURE)),
        "failed_queue": headers.get(names.FAILED_QUEUE),
        "exception_type": headers.get(names.EXCEPTION_TYPE),
        "exception_message": headers.get(names.EXCEPTION_MESSAGE),
        "unique_message_id": str(unique_message_id(headers, native_id=row.native_id)),
        "groups": groups,
    }


# --- figures ------------------------------------------------------------------------------------------------------------------


def bucket(duration: float) -> int:
    """The bucket as in docs/reference/lake.md: above 1.05 ** (n - 1), up to 1.05 ** n; compares borders instead of rounding."""
    if duration <= 0:
        return -1000
    number = max(math.floor(math.log(duration, 1.05)) - 2, -283)
    while duration > 1.05**number * (1 + 1e-12):
        number += 1
    return number


def cut(at: datetime, length: int) -> datetime:
    """The start of the minute, hour or day."""
    return EPOCH + timedelta(seconds=(at - EPOCH) // timedelta(seconds=length) * length)


def _add(rows: dict[Any, dict[str, Any]], key: Mapping[str, Any], **more: Any) -> None:
    row = rows.setdefault(tuple(key.items()), dict(key))
    for name, value in more.items():
        if name.endswith("_sketch"):
            sketch = row.setdefault(name, {})
            for each in value:
                sketch[each] = sketch.get(each, 0) + 1
        elif name == "first_seen":
            row[name] = min(row.get(name, value), value)
        elif name == "last_seen":
            row[name] = max(row.get(name, value), value)
        else:
            row[name] = row.get(name, 0) + value


def _measured(name: str, value: float | None) -> dict[str, Any]:
    """A count, a sum in whole microseconds (converted at the end) and a bucket."""
    if value is None:
        return {f"{name}_count": 0, f"{name}_sum": 0, f"{name}_sketch": ()}
    return {f"{name}_count": 1, f"{name}_sum": round(value * 1e6), f"{name}_sketch": (bucket(value),)}


def figures(
    messages: Iterable[Mapping[str, Any]], failures: Iterable[Mapping[str, Any]], unreadable: Iterable[Mapping[str, Any]] = ()
) -> dict[str, list[dict[str, Any]]]:
    """All rollup tables for readable messages, failures and unreadable rows."""
    tables: dict[str, dict[Any, dict[str, Any]]] = {
        name: {} for name in ("minutes", "groups", "edges", "endpoints", "queues", "notable", "usage")
    }
    audited = list(messages)
    for each in audited:
        _count(tables, each, failed=False)
        _count_edge(tables, each)
    for each in failures:
        _count(tables, each, failed=True)
        _count_groups(tables, each)
    for each in unreadable:
        size = each["body_bytes"] + each["header_bytes"]
        queue = {"queue": each["queue"], "day": each["day"]}
        _add(tables["queues"], queue, taken=0, copied=0, expired=0, unreadable=1, bytes=size)
    found = {name: list(rows.values()) for name, rows in tables.items()}
    for row in (*found["minutes"], *found["edges"]):
        for name in ("processing_sum", "critical_sum"):
            if name in row:
                row[name] = row[name] / 1e6
    return {**found, "notable": _notable(audited)}


def _count(tables: dict[str, dict[Any, dict[str, Any]]], each: Mapping[str, Any], *, failed: bool) -> None:
    day = {"day": each["day"]}
    at, endpoint = each["counted_at"], each["endpoint"]
    size = each["body_bytes"] + each["header_bytes"]
    critical = None if failed else each["critical_seconds"]
    _add(
        tables["minutes"],
        {"endpoint": endpoint, "message_type": each["message_type"] or "", "at": cut(at, 60), **day},
        processed=int(not failed),
        failed=int(failed),
        retried=int(each["is_retried"]),
        delayed_retries=each["delayed_retries"],
        body_bytes=0 if failed else each["body_bytes"],
        critical_negative=int(critical is not None and critical < 0),
        **_measured("processing", None if failed else each["processing_seconds"]),
        **_measured("critical", critical),
    )
    instance = {"endpoint": endpoint, **{name: each[name] or "" for name in ("machine", "host_id", "host")}, **day}
    _add(tables["endpoints"], instance, first_seen=at, last_seen=at, messages=1)
    queue = {"queue": each["queue"], **day}
    expired = int(each["is_expired"])
    _add(tables["queues"], queue, taken=int(not failed), copied=int(failed), expired=expired, unreadable=0, bytes=size)
    _add(tables["usage"], {"endpoint": endpoint, **day}, messages=int(not failed), failures=int(failed), bytes=size)


def _count_edge(tables: dict[str, dict[Any, dict[str, Any]]], each: Mapping[str, Any]) -> None:
    edge = {"sender": each["sending_endpoint"] or "", "receiver": each["endpoint"], "message_type": each["message_type"] or ""}
    at = {"at": cut(each["counted_at"], 3600), "day": each["day"]}
    _add(tables["edges"], {**edge, **at}, count=1, **_measured("critical", each["critical_seconds"]))


def _count_groups(tables: dict[str, dict[Any, dict[str, Any]]], each: Mapping[str, Any]) -> None:
    at = each["counted_at"]
    for group in each["groups"]:
        key = {"group_id": group["id"], "classifier": group["classifier"], "title": group["title"]}
        _add(tables["groups"], {**key, "at": cut(at, 3600), "day": each["day"]}, count=1, first_seen=at, last_seen=at)


def _notable(messages: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The largest values per day; ties are ordered by message id, then row version, descending."""
    found = []
    for kind, value in (("slowest", "processing_seconds"), ("largest", "body_bytes")):
        for day in sorted({each["day"] for each in messages}):
            of_day = [each for each in messages if each["day"] == day and each[value] is not None]
            of_day.sort(key=lambda each: (each[value], each["message_id"], each["row_version"]), reverse=True)
            for rank, each in enumerate(of_day[:20], 1):
                identity = {name: each[name] or "" for name in ("endpoint", "message_type", "message_id", "conversation_id")}
                place = {"day": day, "kind": kind, "rank": rank}
                found.append({**place, **identity, "value": float(each[value]), "at": each["counted_at"]})
    return found
