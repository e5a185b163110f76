"""Rows as the text of a file, CSV or JSON. Instants are ISO 8601 in UTC, durations are seconds."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final
from uuid import UUID

from sqlqueue_app.status.texts import iso_utc

# Characters that a spreadsheet reads as the begin of a formula (OWASP, CSV injection).
_FORMULA: Final = re.compile(r"[=+\-@\t\r]")
_NUMBER: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?\Z")


def values_of(columns: Mapping[str, str | Callable[[Any], object]], rows: Iterable[Any]) -> Iterator[list[object]]:
    """The values of objects: each column is a function, or the name of an attribute, with dots for one that may be None."""
    readers = [each if callable(each) else partial(_attribute, names=each.split(".")) for each in columns.values()]
    return ([read(row) for read in readers] for row in rows)


def _attribute(value: Any, names: Sequence[str]) -> Any:
    for name in names:
        value = None if value is None else getattr(value, name)
    return value


class _Echo:
    """A file for csv that returns each line."""

    def write(self, text: str) -> str:
        """Return the line, which `writerow` passes on."""
        return text


def csv_lines(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """The lines of a CSV file in UTF-8. A text that a spreadsheet would read as a formula is prefixed by an apostrophe."""
    # The byte order mark marks the file as UTF-8 for spreadsheets.
    writer = csv.writer(_Echo())
    yield "\ufeff" + str(writer.writerow(columns))
    for row in rows:
        yield str(writer.writerow([_cell(value) for value in row]))


def _cell(value: Any) -> Any:
    plain = _plain(value)
    if isinstance(plain, list | dict):
        return json.dumps(plain, ensure_ascii=False)
    if isinstance(plain, str):
        # Some readers stop at NUL.
        text = plain.replace("\0", "\N{SYMBOL FOR NULL}")
        return f"'{text}" if _FORMULA.match(text) and not _NUMBER.match(text) else text
    return plain


def json_lines(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """The lines of a JSON array of objects."""
    begin = "[\n"
    for row in rows:
        # Escaped beyond ASCII: also halves of surrogate pairs, which UTF-8 cannot hold.
        yield begin + json.dumps(dict(zip(columns, map(_plain, row), strict=True)))
        begin = ",\n"
    yield "[]\n" if begin == "[\n" else "\n]\n"


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return iso_utc(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, UUID):
        return str(value)
    return value
