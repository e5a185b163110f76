"""Adds the figures of a batch to the tables that the admin shows."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Final

from django.db import connections, models

from sqlqueue_app.lake.columns import NOTABLE_ROWS
from sqlqueue_app.lake.sketches import from_json, to_json
from sqlqueue_app.lake.sums import Row, added_up, begin_of, most_notable
from sqlqueue_app.models import (
    ConversationEdge,
    EndpointSeen,
    GroupFigures,
    MessageFigures,
    NotableMessage,
    QueueFigures,
    UsageDay,
)

_PARAMETERS: Final = 2_000
"""Of one statement: SQL Server takes 2,100."""

_BYTES: Final = 600
"""Of a name in UTF-8: three of them fit into a row of an index of PostgreSQL, which takes 2,704."""

_ASKED_AT_ONCE: Final = 500
_DAY: Final = 86_400


@dataclass(frozen=True, slots=True)
class _Table:
    """A table of figures: its columns that say of what a row is, the lengths of time that it has, and what it is looked up by."""

    model: type[models.Model]
    keys: tuple[str, ...]
    looked_up_by: str
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
"""What describes a row and is neither a key nor added: the last one counts."""


def add_figures(alias: str, collected: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Add the rows of a batch, by the name of their table in the lake, to the tables of figures: to all lengths of time.

    To be called inside the transaction that records the batch, by one process at a time: what is there is read, added to, written
    again. Statements grow with the number of rows, not with that of messages. Names are cut to what their column and its index
    take. Raises the database's errors; then the transaction is to be rolled back.
    """
    same = _folding(alias)
    for name, table in _TABLES.items():
        rows = [_fitted(table.model, row) for row in collected.get(name, ())]
        for length in table.lengths or (0,):
            rows = _added([_of_length(row, length) for row in rows], table.keys, same)
            _add(alias, table, rows, length, same)
    _add_notable(alias, collected.get("notable", ()))


def _of_length(row: Row, length: int) -> Row:
    return {**row, "seconds": length, "at": begin_of(row["at"], length)} if length else row


def _add(alias: str, table: _Table, rows: list[Row], length: int, same: Callable[[Any], Any]) -> None:
    """Add rows, of which no two have the same keys, to those that there are."""
    touched = {_key(row, table.keys, same) for row in rows}
    old = [row for row in _existing(alias, table, rows, length) if _key(row, table.keys, same) in touched]
    _replace(alias, table.model, [row["id"] for row in old], _added([*old, *rows], table.keys, same))


def _added(rows: list[Row], keys: tuple[str, ...], same: Callable[[Any], Any]) -> list[Row]:
    """Added up by their keys; of what is no key and no number the last one."""
    marked = [{**row, "key": _key(row, keys, same)} for row in rows]
    labels = {row["key"]: {name: row[name] for name in _LABELS & row.keys()} for row in marked}
    apart = {*_LABELS, *keys, "id"}
    sums = added_up(({name: row[name] for name in row if name not in apart} for row in marked), ("key",))
    first: dict[Any, Row] = {}
    for row in marked:
        first.setdefault(row["key"], {name: row[name] for name in keys})
    return [{**row, **first[row["key"]], **labels[row["key"]]} for row in sums]


def _key(row: Row, keys: tuple[str, ...], same: Callable[[Any], Any]) -> tuple[Any, ...]:
    return tuple(same(row[name]) for name in keys)


def _folding(alias: str) -> Callable[[Any], Any]:
    """What makes one of two keys that the database takes for the same: on SQL Server most collations do not know large letters."""
    if connections[alias].vendor != "microsoft":
        return lambda value: value
    return lambda value: value.rstrip(" ").casefold() if isinstance(value, str) else value


def _fitted(model: type[models.Model], row: Mapping[str, Any]) -> Row:
    """The columns of the model, with texts that every database takes."""
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
            value = _cut(value.replace("\0", "\ufffd"), field.max_length)
        fitted[field.name] = value
    return fitted


def _cut(text: str, length: int | None) -> str:
    """As much of a name as its column and an index of it take; all of a text without a length."""
    return text if length is None else text[:length].encode()[:_BYTES].decode(errors="ignore")


def _existing(alias: str, table: _Table, rows: list[Row], length: int) -> Iterator[Row]:
    """The rows that there are with the same value of the column that they are looked up by, and then some."""
    asked = sorted({row[table.looked_up_by] for row in rows})
    found = table.model._default_manager.using(alias)
    for part in _portions(asked, _ASKED_AT_ONCE):
        chosen = {f"{table.looked_up_by}__in": part, **({"seconds": length} if length else {})}
        for row in found.filter(**chosen).values():
            yield {name: from_json(value) if name.endswith("_sketch") else value for name, value in row.items()}


def _replace(alias: str, model: type[models.Model], old: list[int], rows: list[Row]) -> None:
    """Write rows in the place of others."""
    manager = model._default_manager.using(alias)
    for part in _portions(old, _PARAMETERS // 2):
        manager.filter(pk__in=part).delete()
    names = [field.name for field in model._meta.concrete_fields if not field.primary_key]
    made = [
        model(**{name: to_json(row[name]) if name.endswith("_sketch") else row[name] for name in names if name in row})
        for row in rows
    ]
    manager.bulk_create(made, batch_size=_PARAMETERS // len(names))


def _portions(values: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (values[start : start + size] for start in range(0, len(values), size))


def _add_notable(alias: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Keep the most notable of each day, old and new together."""
    fitted = [_fitted(NotableMessage, row) for row in rows]
    days: list[date] = sorted({row["day"] for row in fitted})
    old: list[Row] = []
    for part in _portions(days, _ASKED_AT_ONCE):
        old += map(dict, NotableMessage.objects.using(alias).filter(day__in=part).values())
    found: dict[tuple[date, str], list[Row]] = {}
    for row in [*old, *fitted]:
        found.setdefault((row["day"], row["kind"]), []).append(row)
    kept = [row for each in found.values() for row in most_notable(each, NOTABLE_ROWS)]
    _replace(alias, NotableMessage, [row["id"] for row in old], kept)
