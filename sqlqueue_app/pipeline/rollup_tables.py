"""The rollup tables that the admin shows: the rollups of a batch are added to them. Needs no Spark."""

from __future__ import annotations

import unicodedata
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Final

from django.db import connections, models

from sqlqueue_app.lake.columns import TOP_N
from sqlqueue_app.lake.sketches import EPOCH, Row, add_up_rows, from_json, start_of, to_json, top_rows
from sqlqueue_app.models import ConversationEdge, EndpointSeen, GroupFigures, MessageFigures, NotableMessage, QueueFigures, UsageDay
from sqlqueue_app.tables.rows import cut_text

_PARAMETERS: Final = 2_000
"""Parameters per statement: SQL Server accepts 2,100."""

_BYTES: Final = 600
"""UTF-8 bytes of a name: three fit into an index row of PostgreSQL, which holds 2,704."""

_KATAKANA: Final = {hiragana: hiragana + 0x60 for hiragana in range(0x3041, 0x3097)}
_KEYS_PER_QUERY: Final = 500
_DAY: Final = 86_400


@dataclass(frozen=True, slots=True)
class _Table:
    """A rollup table: key columns, lookup column, and the step lengths it stores, in seconds."""

    model: type[models.Model]
    keys: tuple[str, ...]
    lookup: str
    lengths: tuple[int, ...] = ()


_TABLES: Final[Mapping[str, _Table]] = {
    "minutes": _Table(MessageFigures, ("endpoint", "message_type", "seconds", "at"), "at", (60, 3_600, _DAY)),
    "groups": _Table(GroupFigures, ("group_id", "seconds", "at"), "at", (3_600, _DAY)),
    "edges": _Table(ConversationEdge, ("sender", "receiver", "message_type", "seconds", "at"), "at", (3_600, _DAY)),
    "endpoints": _Table(EndpointSeen, ("endpoint", "machine", "host_id"), "endpoint"),
    "queues": _Table(QueueFigures, ("queue", "day"), "day"),
    "usage": _Table(UsageDay, ("endpoint", "day"), "day"),
}
_LABELS: Final = frozenset({"classifier", "title", "host"})
"""Descriptive columns, neither key nor additive: the value that was seen last wins."""


def add_rollups(alias: str, collected: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Add the rollup rows of a batch, by lake table, to the rollup tables of the app, for all step lengths.

    Call it inside the transaction that records the batch, in one process at a time: rows are read, added up and replaced. The
    number of statements grows with the rows, not with the messages. Names are cut to the length of their column and index. Raises
    the database's errors; roll the transaction back then.
    """
    same = _folding(alias)
    for name, table in _TABLES.items():
        rows = [_fitted(table.model, row) for row in collected.get(name, ())]
        for length in table.lengths or (0,):
            if length:
                rows = [{**row, "seconds": length, "at": start_of(row["at"], length)} for row in rows]
            rows = _add_up(rows, table.keys, same)
            _add(alias, table, rows, length, same)
    _add_top_messages(alias, collected.get("notable", ()))


def _add(alias: str, table: _Table, rows: list[Row], length: int, same: Callable[[Any], Any]) -> None:
    """Merge rows with distinct keys into the table."""
    touched = {_key(row, table.keys, same) for row in rows}
    old = [row for row in _existing(alias, table, rows, length) if _key(row, table.keys, same) in touched]
    _replace(alias, table.model, [row["id"] for row in old], _add_up([*old, *rows], table.keys, same))


def _add_up(rows: list[Row], keys: tuple[str, ...], same: Callable[[Any], Any]) -> list[Row]:
    """Add rows up by key; the label that was seen last wins."""
    marked = [{**row, "key": _key(row, keys, same)} for row in rows]
    by_age = sorted(marked, key=lambda row: row.get("last_seen", EPOCH))
    labels = {row["key"]: {name: row[name] for name in _LABELS & row.keys()} for row in by_age}
    apart = {*_LABELS, *keys, "id"}
    sums = add_up_rows(({name: row[name] for name in row if name not in apart} for row in marked), ("key",))
    first: dict[Any, Row] = {}
    for row in marked:
        first.setdefault(row["key"], {name: row[name] for name in keys})
    return [{**row, **first[row["key"]], **labels[row["key"]]} for row in sums]


def _key(row: Row, keys: tuple[str, ...], same: Callable[[Any], Any]) -> tuple[Any, ...]:
    return tuple(same(row[name]) for name in keys)


def _folding(alias: str) -> Callable[[Any], Any]:
    """Normalise keys as the database compares them: most collations of SQL Server ignore case, width, kana and trailing spaces."""
    return _folded if connections[alias].vendor == "microsoft" else lambda value: value


def _folded(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    folded = unicodedata.normalize("NFKC", value).casefold().translate(_KATAKANA)
    # Collations ignore invisible characters, older ones all beyond 16 bits: the index considers such keys equal.
    return "".join(each for each in folded if each.isprintable() and each <= "\uffff").rstrip(" ")


def _fitted(model: type[models.Model], row: Mapping[str, Any]) -> Row:
    """The model's columns, with texts that every database accepts."""
    fitted: Row = {}
    for field in model._meta.concrete_fields:
        if field.name not in row:
            continue
        value = row[field.name]
        if field.name.endswith("_sketch"):
            value = dict(value or {})
        elif isinstance(field, models.UUIDField):
            value = uuid.UUID(str(value))
        elif isinstance(value, str):
            value = cut_text(value, field.max_length)
            if field.max_length is not None:
                # A name is cut to its column and index; a text without a maximum length stays whole.
                value = value.encode()[:_BYTES].decode(errors="ignore")
        fitted[field.name] = value
    return fitted


def _existing(alias: str, table: _Table, rows: list[Row], length: int) -> Iterator[Row]:
    """Stored rows with the same value in the lookup column: a superset of those with the same keys."""
    values = sorted({row[table.lookup] for row in rows})
    found = table.model._default_manager.using(alias)
    for part in _chunks(values, _KEYS_PER_QUERY):
        chosen = {f"{table.lookup}__in": part, **({"seconds": length} if length else {})}
        for row in found.filter(**chosen).values():
            yield {name: from_json(value) if name.endswith("_sketch") else value for name, value in row.items()}


def _replace(alias: str, model: type[models.Model], old: list[int], rows: list[Row]) -> None:
    manager = model._default_manager.using(alias)
    for part in _chunks(old, _PARAMETERS // 2):
        manager.filter(pk__in=part).delete()
    names = [field.name for field in model._meta.concrete_fields if not field.primary_key]
    objects = [
        model(**{name: to_json(row[name]) if name.endswith("_sketch") else row[name] for name in names if name in row})
        for row in rows
    ]
    manager.bulk_create(objects, batch_size=_PARAMETERS // len(names))


def _chunks(values: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (values[start : start + size] for start in range(0, len(values), size))


def _add_top_messages(alias: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Keep the top N messages per day and kind, of stored and new ones."""
    fitted = [_fitted(NotableMessage, row) for row in rows]
    days: list[date] = sorted({row["day"] for row in fitted})
    old: list[Row] = []
    for part in _chunks(days, _KEYS_PER_QUERY):
        old += map(dict, NotableMessage.objects.using(alias).filter(day__in=part).values())
    found: dict[tuple[date, str], list[Row]] = {}
    for row in [*old, *fitted]:
        found.setdefault((row["day"], row["kind"]), []).append(row)
    kept = [row for each in found.values() for row in top_rows(each, TOP_N)]
    _replace(alias, NotableMessage, [row["id"] for row in old], kept)
