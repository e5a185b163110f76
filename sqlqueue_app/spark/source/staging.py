"""Portions of staged messages: as many rows as one statement takes well, and few enough bytes that memory holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

COLUMNS = ("position", "id", "correlation_id", "reply_to_address", "headers", "body", "time_to_be_received_ms", "delay_ms")
_ROWS = 1_000
_BYTES = 4 * 1024 * 1024


def portions(rows: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """The rows in portions; one large row goes alone."""
    portion: list[dict[str, Any]] = []
    held = 0
    for row in rows:
        size = len(row["body"]) + len(row["headers"])
        if portion and (len(portion) >= _ROWS or held + size > _BYTES):
            yield portion
            portion, held = [], 0
        portion.append(row)
        held += size
    if portion:
        yield portion
