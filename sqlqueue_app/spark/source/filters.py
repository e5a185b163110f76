"""Filters that Spark hands down, as narrower ranges: widened where they must be and looked at again by Spark, so none is lost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from sqlqueue_app.databases.dialect import RowRange

# What no filter narrows. The lowest bigint is left out: its digits alone would be none.
EVERYTHING = RowRange(-(2**63) + 1, 2**63 - 1)
NOTHING = RowRange(1, 0)
_SECOND = timedelta(seconds=1)
# Beyond these the column may hold what stands for another time.
_FIRST_YEAR, _LAST_YEAR = 1000, 9998


def narrowed(rows: RowRange, filters: Iterable[Filter]) -> RowRange:
    """The range with what the filters leave of it."""
    for each in filters:
        column = getattr(each, "attribute", None)
        if column == ("RowVersion",):
            rows = _by_row_version(rows, each)
        elif column == ("Expires",):
            rows = _by_expires(rows, each)
    return rows


def _by_row_version(rows: RowRange, each: Filter) -> RowRange:
    value: Any = getattr(each, "value", None)
    if isinstance(each, In):
        values = [number for number in value if _is_number(number)]
        return _between(rows, min(values), max(values)) if len(values) == len(value) and values else rows
    if not _is_number(value):
        return rows
    match each:
        case EqualTo() | EqualNullSafe():
            return _between(rows, value, value)
        case GreaterThan():
            return _between(rows, value + 1, rows.highest)
        case GreaterThanOrEqual():
            return _between(rows, value, rows.highest)
        case LessThan():
            return _between(rows, rows.lowest, value - 1)
        case LessThanOrEqual():
            return _between(rows, rows.lowest, value)
    return rows


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _between(rows: RowRange, lowest: int, highest: int) -> RowRange:
    return replace(rows, lowest=max(rows.lowest, lowest), highest=min(rows.highest, highest))


def _by_expires(rows: RowRange, each: Filter) -> RowRange:
    match each:
        case IsNotNull():
            return replace(rows, only_expiring=True)
        case EqualTo(value=datetime() as value):
            return _before(_from(rows, value), value)
        case GreaterThan(value=datetime() as value) | GreaterThanOrEqual(value=datetime() as value):
            return _from(rows, value)
        case LessThan(value=datetime() as value) | LessThanOrEqual(value=datetime() as value):
            return _before(rows, value)
    return rows


def _from(rows: RowRange, value: datetime) -> RowRange:
    second = _second_of(value)
    if second is None:
        return rows
    return replace(rows, expires_from=second if rows.expires_from is None else max(rows.expires_from, second))


def _before(rows: RowRange, value: datetime) -> RowRange:
    second = _second_of(value)
    if second is None:
        return rows
    following = second + _SECOND
    return replace(rows, expires_before=following if rows.expires_before is None else min(rows.expires_before, following))


def _second_of(value: datetime) -> datetime | None:
    """The whole second of an aware time, in UTC without zone: databases round fractions in ways of their own."""
    if value.tzinfo is None or not _FIRST_YEAR <= value.year <= _LAST_YEAR:
        return None
    return value.astimezone(UTC).replace(tzinfo=None, microsecond=0)
