"""How figures add up: rows of one time, of one batch to the next, of minutes to hours and days.

A row is a dictionary of columns of a table of figures (`lake.columns.FIGURES`). Its keys say of what it is; all other columns add
up, each in its way. Sums of seconds are added as whole microseconds, so that no order of adding gives another result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlqueue_app.lake.sketches import merged

Row = dict[str, Any]
Key = tuple[Any, ...]

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "minutes": ("endpoint", "message_type", "at"),
    "groups": ("group_id", "classifier", "title", "at"),
    "edges": ("sender", "receiver", "message_type", "at"),
    "endpoints": ("endpoint", "machine", "host_id", "host", "day"),
    "queues": ("queue", "day"),
    "usage": ("endpoint", "day"),
}
"""The columns that say of what a row of a table is. `notable` does not add up: see `most_notable`."""


def add_seconds(one: float, other: float) -> float:
    """The sum of two sums of seconds, of which each is a whole number of microseconds; exact up to 70 years."""
    return (round(one * 1e6) + round(other * 1e6)) / 1e6


def _adding(column: str) -> Callable[[Any, Any], Any]:
    if column.endswith("_sketch"):
        return merged
    if column.endswith("_sum"):
        return add_seconds
    if column == "first_seen":
        return min
    if column == "last_seen":
        return max
    return lambda one, other: one + other


def add(row: Row, more: Mapping[str, Any], columns: Iterable[str]) -> None:
    """Add these columns of one row to another, which is changed; of what only one has, that is the sum."""
    for column in columns:
        if column in more:
            row[column] = _adding(column)(row[column], more[column]) if column in row else more[column]


def added_up(rows: Iterable[Mapping[str, Any]], keys: tuple[str, ...]) -> list[Row]:
    """One row for each key, in the order in which they come; what is given stays as it is."""
    found: dict[Key, Row] = {}
    for more in rows:
        key = tuple(more[name] for name in keys)
        row = found.get(key)
        if row is None:
            found[key] = dict(more)
        else:
            add(row, more, [name for name in more if name not in keys and name != "day"])
    return list(found.values())


def begin_of(at: datetime, seconds: int) -> datetime:
    """The begin of the time of so many seconds in which an aware instant lies, in UTC."""
    length = timedelta(seconds=seconds)
    return EPOCH + (at - EPOCH) // length * length


def most_notable(rows: Iterable[Row], count: int) -> list[Row]:
    """The rows of greatest value, ranked from 1 on; of equal ones that with the greater message id comes first."""
    ordered = sorted(rows, key=lambda row: (row["value"], row["message_id"]), reverse=True)[:count]
    return [{**row, "rank": rank} for rank, row in enumerate(ordered, 1)]
