"""Texts shared by pages, notifications and commands: placeholders, numbers, durations, instants, names in addresses, files."""

from __future__ import annotations

import csv
import enum
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from typing import Any, Final
from uuid import UUID

from django.contrib.admin.utils import quote
from django.utils import timezone
from django.utils.formats import number_format
from django.utils.translation import get_language, gettext as _, gettext_lazy, ngettext

# The attributes of inputs for names and secrets: browsers neither store nor autocorrect them.
PLAIN_INPUT: Final = {"autocomplete": "off", "autocapitalize": "off", "spellcheck": "false"}


class Words(dict[str, str]):
    """Values by the names of placeholders; a question mark for missing ones. Whole numbers follow the active language."""

    def __init__(self, subject: str, details: object) -> None:
        known: Mapping[str, Any] = details if isinstance(details, dict) else {}
        super().__init__({str(name): _as_text(value) for name, value in known.items()})
        self["subject"] = subject

    def __missing__(self, name: str) -> str:
        return "?"


def _as_text(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return number(value)
    return str(value)


class Unit(enum.Enum):
    """A unit with its seconds."""

    DAYS = 86_400
    HOURS = 3_600
    MINUTES = 60
    SECONDS = 1


def two_units(value: timedelta) -> tuple[bool, tuple[tuple[int, Unit], ...]]:
    """Whether the duration is negative, and its size in the largest fitting unit and the next one; rounded to seconds."""
    left = round(abs(value.total_seconds()))
    negative = value < timedelta() and left > 0
    units = list(Unit)
    first = next((unit for unit in units if left >= unit.value), Unit.SECONDS)
    amount, left = divmod(left, first.value)
    if first is Unit.SECONDS:
        return negative, ((amount, first),)
    second = units[units.index(first) + 1]
    return negative, ((amount, first), (left // second.value, second))


@lru_cache(maxsize=4096)
def _formatted(value: float, places: int, _language: str | None) -> str:
    """A number in the current language, cached because a page has thousands of them, most of them equal."""
    return str(number_format(value, decimal_pos=places, force_grouping=True))


def number(value: int) -> str:
    """A number with thousands separators."""
    return _formatted(value, 0, get_language())


def rounded(value: float, places: int) -> str:
    """Round and format a number; Django only truncates digits."""
    return _formatted(round(value, places) if places else round(value), places, get_language())


FEW: Final = 5


def first_names(names: Sequence[str]) -> str:
    """The first few names, and the number of the others: an error queue may have hundreds of endpoints."""
    text, left = ", ".join(names[:FEW]), len(names) - FEW
    return text if left <= 0 else _("%(names)s and %(count)s more") % {"names": text, "count": number(left)}


def size_of(value: int | None) -> str:
    """A number of bytes with a suitable unit; NULL for None."""
    if value is None:
        return _("NULL")
    if value < 1024:
        return ngettext("%(count)s byte", "%(count)s bytes", value) % {"count": number(value)}
    for unit, factor in ((_("KiB"), 1024), (_("MiB"), 1024**2)):
        if value < factor * 1024:
            return f"{rounded(value / factor, 1)} {unit}"
    return rounded(value / 1024**3, 1) + " " + _("GiB")


_UNITS = {
    Unit.DAYS: gettext_lazy("%(n)s d"),
    Unit.HOURS: gettext_lazy("%(n)s h"),
    Unit.MINUTES: gettext_lazy("%(n)s min"),
    Unit.SECONDS: gettext_lazy("%(n)s s"),
}


def in_units(parts: Iterable[tuple[int, Unit]]) -> str:
    """Amounts with their units."""
    return " ".join(str(_UNITS[unit]) % {"n": number(amount)} for amount, unit in parts)


def duration(value: timedelta) -> str:
    """The two largest units; negative durations with a minus sign."""
    negative, parts = two_units(value)
    return ("\N{MINUS SIGN}" if negative else "") + in_units(parts)


def precise_duration(value: timedelta | float | None) -> str:
    """Like `duration`, for a length or a number of seconds, but below a minute in seconds with digits; empty for None.

    All of them are in seconds, so that those of a column can be compared.
    """
    if value is None:
        return ""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    length = abs(seconds)
    if length >= 59.5:
        return duration(timedelta(seconds=seconds))
    places = 0 if not length or length >= 10 else 1 if length >= 1 else 3
    text = rounded(length, places) if not 0 < length < 0.0005 else f"< {rounded(0.001, 3)}"
    return ("\N{MINUS SIGN}" if seconds < 0 else "") + _("%(n)s s") % {"n": text}


_DOTS = re.compile(r"\.{1,2}\Z")
_QUOTED = re.compile("_[0-9A-F]{2}")
# Characters that would end the segment of a path, or be changed on the way.
_UNSAFE = re.compile(r"[/\\\x00-\x1f\x7f]")


def path_of(name: str) -> str:
    """The name as one segment of a path: unchanged where possible, else quoted as the admin quotes keys. It is unique."""
    if _DOTS.match(name):
        return name.replace(".", "_2E")
    return quote(name) if _UNSAFE.search(name) or _QUOTED.search(name) else name


def text_of_path(path: str) -> str:
    """The name of a segment of a path, if the names are not known: the reverse of `path_of`."""
    return _QUOTED.sub(lambda found: chr(int(found[0][1:], 16)), path)


def in_utc(instant: datetime) -> datetime:
    """The instant in UTC; a naive one, as Django returns with USE_TZ off, is in the default time zone."""
    aware = timezone.make_aware(instant, timezone.get_default_timezone()) if timezone.is_naive(instant) else instant
    return aware.astimezone(UTC)


def in_site_zone(instant: datetime) -> datetime:
    """The instant in the current time zone; in UTC if it is beyond the calendar there."""
    utc = in_utc(instant)
    try:
        return timezone.localtime(utc)
    except OverflowError:
        return utc


def iso_utc(instant: datetime) -> str:
    """An instant for machines."""
    return in_utc(instant).isoformat(timespec="milliseconds").replace("+00:00", "Z")


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
