"""Values as JSON text, in the forms that the JSON serializers of NServiceBus read (transport reference §6.5, §18).

The standard encoder cannot write a Decimal as a number without losing digits, and libraries that can (msgspec, pydantic)
write durations as ISO text, which .NET refuses; hence a writer of our own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final
from uuid import UUID

from sqlqueue_app.messages.misfit import Misfit
from sqlqueue_app.messages.scalar_text import (
    bool_text,
    bytes_text,
    date_text,
    datetime_text,
    decimal_text,
    float_text,
    integer_text,
    time_text,
)
from sqlqueue_app.messages.shapes import PASCAL, is_mappable, member_names, pascal
from sqlqueue_app.messages.times import format_timespan

_Write = Callable[[Any], str]

# In C, so twice as fast as we are; asked for values alone that it writes to the letter as we do.
_encode: Final = json.JSONEncoder(ensure_ascii=False, check_circular=False, allow_nan=False, separators=(",", ":")).encode
_STANDARD: Final = frozenset({str, int, float, bool, type(None)})
_TEXT: Final = frozenset({str})

_text: Final = json.JSONEncoder(ensure_ascii=False).encode


def write_json(value: Any, names: str) -> str:
    """The compact JSON text of a value; raises :class:`Misfit` for what JSON or .NET could not hold.

    ``names`` spells the members of classes (see :data:`sqlqueue_app.messages.shapes.NAMES`); keys of dictionaries are
    data and stay as they are. May raise RecursionError and OverflowError of values nested without end.
    """
    as_pascal = names == PASCAL
    plain = _object_of(value, as_pascal)
    if _is_plain(plain):
        try:
            return _encode(plain)
        except ValueError:
            pass  # NaN, or more digits than Python converts: written below, it is named with its place
    out: list[str] = []
    _write(value, out, as_pascal)
    return "".join(out)


def _object_of(value: Any, as_pascal: bool) -> Any:
    """The members of a message as a dictionary; what is none comes back as it is."""
    kind: type = type(value)
    if kind is dict or kind is list or not is_mappable(kind):
        return value
    members = member_names(kind)
    found = {pascal(name) if as_pascal else name: getattr(value, name) for name in members}
    return found if len(found) == len(members) else value


def _is_plain(value: Any) -> bool:
    """Whether the standard encoder writes the value as we do: text as keys, and nothing that it knows otherwise or not at all."""
    kind = type(value)
    if kind is dict:
        return _TEXT.issuperset(map(type, value)) and all(type(item) in _STANDARD or _is_plain(item) for item in value.values())
    return kind is list and all(type(item) in _STANDARD or _is_plain(item) for item in value)


def _write(value: Any, out: list[str], as_pascal: bool) -> None:
    kind: type = type(value)
    write = _SCALARS.get(kind)
    if write is not None:
        out.append(write(value))
    elif isinstance(value, Enum):
        _write(value.value, out, as_pascal)
    elif is_mappable(kind):
        names = member_names(kind)
        pairs = ((pascal(name) if as_pascal else name, f".{name}", getattr(value, name)) for name in names)
        _write_object(pairs, out, as_pascal)
    elif isinstance(value, Mapping):
        _write_object(((_key(key), f"[{key!r}]", item) for key, item in value.items()), out, as_pascal)
    elif isinstance(value, (list, tuple, set, frozenset)):
        _write_array(value, out, as_pascal)
    else:
        out.append(_scalar_of(value)(value))


def _write_object(pairs: Iterable[tuple[str, str, Any]], out: list[str], as_pascal: bool) -> None:
    seen: set[str] = set()
    before = "{"
    for name, step, value in pairs:
        if name in seen:
            raise Misfit(f"two members would both be written as {name!r}; rename one of them")
        seen.add(name)
        out.append(f"{before}{_text(name)}:")
        before = ","
        try:
            _write(value, out, as_pascal)
        except Misfit as misfit:
            misfit.path.append(step)
            raise
    out.append("}" if seen else "{}")


def _write_array(values: Iterable[Any], out: list[str], as_pascal: bool) -> None:
    index = -1
    for index, value in enumerate(values):
        out.append("," if index else "[")
        try:
            _write(value, out, as_pascal)
        except Misfit as misfit:
            misfit.path.append(f"[{index}]")
            raise
    out.append("]" if index >= 0 else "[]")


def _key(key: Any) -> str:
    if isinstance(key, Enum):
        key = key.value
    if isinstance(key, str):
        return key
    if isinstance(key, (int, UUID)) and not isinstance(key, bool):
        return str(key)
    raise Misfit(f"the key {key!r} is {type(key).__name__}; expected str, int or UUID")


def _scalar_of(value: Any) -> _Write:
    # Subclasses of the types below: SafeString, a driver's own datetime. bool and datetime stand before their bases.
    for kind, write in _SCALARS.items():
        if isinstance(value, kind):
            return write
    raise Misfit(f"{type(value).__name__} cannot be written as JSON ({value!r}); make it a dataclass, a dict or text")


def _timespan(value: timedelta) -> str:
    try:
        return f'"{format_timespan(value)}"'
    except ValueError as error:
        raise Misfit(str(error)) from None


def _quoted(text: Callable[[Any], str]) -> _Write:
    return lambda value: f'"{text(value)}"'


_SCALARS: Final[dict[type, _Write]] = {
    str: _text,
    type(None): lambda _: "null",
    bool: bool_text,
    int: integer_text,
    float: float_text,
    Decimal: decimal_text,
    datetime: _quoted(datetime_text),
    date: _quoted(date_text),
    time: _quoted(time_text),
    timedelta: _timespan,
    UUID: _quoted(str),
    bytes: _quoted(bytes_text),
    bytearray: _quoted(bytes_text),
    memoryview: _quoted(bytes_text),
}
