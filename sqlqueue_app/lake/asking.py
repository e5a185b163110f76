"""What is looked for in a lake: filters, a range of time, and where to go on; and the conditions that say it to the engine."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from sqlqueue_app.lake.data_files import SEARCHED

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICRO: Final = timedelta(microseconds=1)
_CURSOR: Final = re.compile(r"(-?[0-9]{1,18})\.([0-9]{1,19})\.(.{0,400})", re.DOTALL)
# The queue of a row stands in the path of its file alone; it tells rows of the same instant and number apart.
QUEUE: Final = r"regexp_extract(filename, 'queue=([^/]*)', 1)"


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in the results: they go on behind it. `queue` as it stands in paths."""

    counted_at: datetime
    row_version: int
    queue: str

    def __str__(self) -> str:
        return f"{(self.counted_at - _EPOCH) // _MICRO}.{self.row_version}.{self.queue}"

    @classmethod
    def read(cls, text: str) -> Cursor | None:
        """The place that a text names; None for any other text."""
        found = _CURSOR.fullmatch(text)
        if found is None:
            return None
        try:
            at = instant(int(found[1]))
        except OverflowError:
            return None
        row_version = int(found[2])
        return cls(at, row_version, found[3]) if row_version < 2**63 else None


def instant(micros: int) -> datetime:
    """Microseconds since 1970 as an instant."""
    return _EPOCH + micros * _MICRO


@dataclass(frozen=True, slots=True)
class Asked:
    """What is looked for; what is empty is no filter.

    In `message_type` and `endpoint` a ``*`` stands for any characters. `text` stands in headers or body, in any case.
    From `since` on, before `until`; `after` is the last message of the portion before this one. `headers`: they are read, too.
    """

    conversation: str = ""
    message_id: str = ""
    message_type: str = ""
    endpoint: str = ""
    text: str = ""
    tables: tuple[str, ...] = SEARCHED
    since: datetime | None = None
    until: datetime | None = None
    after: Cursor | None = None
    size: int = 50
    headers: bool = False

    @property
    def is_by_id(self) -> bool:
        """Whether few messages fit, which the filters of the files find wherever they are."""
        return bool(self.conversation or self.message_id)


@dataclass(slots=True)
class Conditions:
    """A part of a statement with its values; they are never written into its text."""

    sql: list[str]
    values: list[object]

    def add(self, sql: str, *values: object) -> None:
        """One more condition, which must hold as well."""
        self.sql.append(sql)
        self.values += values

    @property
    def text(self) -> str:
        """All of them."""
        return " AND ".join(self.sql) or "TRUE"


def conditions_of(asked: Asked, begin: datetime | None, end: datetime | None) -> Conditions:
    """The filters, from `begin` on and before `end`."""
    found = Conditions([], [])
    if begin is not None:
        found.add("counted_at >= ?", begin)
    if end is not None:
        found.add("counted_at < ?", end)
    if asked.after is not None:
        # The first condition says less than the second, but the reader of files understands it.
        found.add("counted_at <= ?", asked.after.counted_at)
        found.add(
            f"(counted_at < ? OR (row_version, {QUEUE}) < (?, ?))",
            asked.after.counted_at,
            asked.after.row_version,
            asked.after.queue,
        )
    for column, wanted in (("conversation_id", asked.conversation), ("message_id", asked.message_id)):
        if wanted:
            found.add(f"{column} = ?", wanted)
    for column, wanted in (("message_type", asked.message_type), ("endpoint", asked.endpoint)):
        if "*" in wanted:
            found.add(f"{column} LIKE ? ESCAPE '\\'", _like(wanted.split("*")))
        elif wanted:
            found.add(f"{column} = ?", wanted)
    if asked.text:
        pattern = _pattern(asked.text)
        # A body that is no text in UTF-8 is NULL here, and does not hold the text.
        found.add("(regexp_matches(headers, ?) OR regexp_matches(try(decode(body)), ?))", pattern, pattern)
    return found


def _like(parts: Iterable[str]) -> str:
    return "%".join(re.sub(r"([\\%_])", r"\\\1", part) for part in parts)


def _pattern(text: str) -> str:
    """The text as a regular expression of RE2: as it is, or as JSON writes it; in any case. Much faster than ILIKE."""
    found = {text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}
    return "(?i)" + "|".join(re.escape(each) for each in sorted(found))
