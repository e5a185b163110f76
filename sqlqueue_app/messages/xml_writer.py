"""Messages as XML in the form of the XML serializer of NServiceBus 6 and later, to the letter (transport reference §6.5).

A reader of .NET finds members by their exact names: message types for it are written with `names="pascal"`.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final
from uuid import UUID

from sqlqueue_app.messages.hints import alternatives, array_items, bare, is_optional, is_value_type, mapping_items
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
from sqlqueue_app.messages.shapes import PASCAL, is_mappable, members_of, pascal
from sqlqueue_app.messages.times import format_iso_duration
from sqlqueue_app.messages.xml_document import XSI

_NAMESPACE: Final = "http://tempuri.net/"
_XSD: Final = "http://www.w3.org/2001/XMLSchema"
# Where an element has neither content nor attributes, NServiceBus writes a line break.
_NOTHING: Final = "\n"
_INT32: Final = range(-(2**31), 2**31)
_NAME: Final = re.compile(r"[^\W\d][\w.\-]*")
# What no XML 1.0 document holds, not even escaped.
_NO_CHARACTER: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_ESCAPES: Final = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "\r": "&#xD;"})


def write_xml(value: Any, names: str, types: Sequence[str]) -> str:
    """The document of a message; `types` are the full names of its type and its base types, `names` spells members of classes.

    Raises Misfit for what XML or .NET could not hold. May raise RecursionError of values nested without end.
    """
    if not types:
        raise Misfit("XML names the type of the message, and there is none: send a registered class, or a type name and a body")
    space, _, full = types[0].rpartition(".")
    root = full.rpartition("+")[2]
    _check_name(root)
    bases = "".join(f' xmlns:baseType{index or ""}="{_attribute(base)}"' for index, base in enumerate(types[1:]))
    start = f'<{root} xmlns:xsi="{XSI}" xmlns:xsd="{_XSD}"{bases} xmlns="{_NAMESPACE}{_attribute(space)}">'
    out: list[str] = ['<?xml version="1.0"?>', start]
    _Writer(names == PASCAL, out).members(value)
    out.append(f"</{root}>")
    return "".join(out)


class _Writer:
    def __init__(self, as_pascal: bool, out: list[str]) -> None:
        self._as_pascal = as_pascal
        self._out = out

    def members(self, value: Any, alias: Any = None) -> bool:
        """Write the members of a message or of an object in it; whether there were any. `alias` says more of a generic class."""
        kind: type = type(value)
        if isinstance(value, Mapping):
            return self._all((_key(name), f"[{name!r}]", item, Any) for name, item in value.items())
        if not is_mappable(kind):
            raise Misfit(f"{kind.__name__} cannot be written as XML ({value!r:.200}); make it a dataclass, a dict or text")
        members = members_of(alias or kind)
        return self._all(
            (pascal(member.name) if self._as_pascal else member.name, f".{member.name}", getattr(value, member.name), member.hint)
            for member in members
            if member.kept
        )

    def _all(self, entries: Iterable[tuple[str, str, Any, Any]]) -> bool:
        seen: set[str] = set()
        before = len(self._out)
        for name, step, item, hint in entries:
            if name in seen:
                raise Misfit(f"two members would both be written as {name!r}; rename one of them")
            seen.add(name)
            try:
                self._entry(name, item, hint)
            except Misfit as misfit:
                misfit.path.append(step)
                raise
        return len(self._out) > before

    def _entry(self, name: str, value: Any, hint: Any) -> None:
        if value is None:
            # What is null is said of a value, and left out of a reference.
            if is_optional(bare(hint)) and all(map(is_value_type, alternatives(bare(hint)))):
                self._out.append(f'<{name} xsi:nil="true"></{name}>')
        else:
            self._element(name, value, hint)

    def _element(self, name: str, value: Any, hint: Any) -> None:
        _check_name(name)
        text = _text_of(value)
        if text is not None:
            self._out.append(f"<{name}>{text}</{name}>")
            return
        self._out.append(f"<{name}>")
        written = self._content(value, bare(hint))
        self._out.append(f"</{name}>" if written else f"{_NOTHING}</{name}>")

    def _content(self, value: Any, hint: Any) -> bool:
        kinds = alternatives(hint)
        own: type = type(value)
        if is_mappable(own):  # a named tuple, too
            return self.members(value, next((kind for kind in kinds if typing.get_origin(kind) is own), None))
        if isinstance(value, Mapping):
            pair = next(filter(None, map(mapping_items, kinds)), None)
            return self.members(value) if pair is None else self._pairs(value, *pair)
        if isinstance(value, (list, tuple, set, frozenset)):
            return self._items(value, next(filter(None, map(array_items, kinds)), [Any]))
        return self.members(value)

    def _items(self, values: Iterable[Any], hints: list[Any]) -> bool:
        index = -1
        for index, item in enumerate(values):
            hint = bare(hints[min(index, len(hints) - 1)])
            name = _type_name(item if item is not None else next(iter(alternatives(hint))))
            try:
                # As .NET has it: the word null in the place of a value, an element without content in that of an object.
                if item is None:
                    self._out.append(f"<{name}>{'null' if all(map(is_value_type, alternatives(hint))) else _NOTHING}</{name}>")
                else:
                    self._element(name, item, hint)
            except Misfit as misfit:
                misfit.path.append(f"[{index}]")
                raise
        return index >= 0

    def _pairs(self, values: Mapping[Any, Any], key_hint: Any, item_hint: Any) -> bool:
        entry = f"KeyValuePairOf{_type_name(bare(key_hint))}And{_type_name(alternatives(bare(item_hint))[0])}"
        for key, item in values.items():
            self._out.append(f"<{entry}>")
            try:
                self._element("Key", key, key_hint)
                self._entry("Value", item, item_hint)
            except Misfit as misfit:
                misfit.path.append(f"[{key!r}]")
                raise
            self._out.append(f"</{entry}>")
        return bool(values)


def _text_of(value: Any) -> str | None:
    """The text of a single value, escaped; None for what has parts."""
    if isinstance(value, Enum):
        # .NET knows the members of an enum by name; one of texts is no enum there.
        return _escaped(value.value if isinstance(value.value, str) else (value.name or str(value.value)).replace("|", ", "))
    write = _SCALARS.get(type(value)) or next((write for kind, write in _SCALARS.items() if isinstance(value, kind)), None)
    return None if write is None else write(value)


def _escaped(text: str) -> str:
    if (found := _NO_CHARACTER.search(text)) is not None:
        raise Misfit(f"XML cannot hold the character {found.group()!r}; send it as bytes, or as JSON")
    return str(text).translate(_ESCAPES)


def _attribute(text: str) -> str:
    return _escaped(text).replace('"', "&quot;")


def _duration(value: timedelta) -> str:
    try:
        return format_iso_duration(value)
    except ValueError as error:
        raise Misfit(str(error)) from None


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise Misfit(f"the key {key!r} is {type(key).__name__}; expected str: it becomes the name of an element")
    return key


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise Misfit(f"{name!r} cannot be the name of an XML element; expected letters, digits, '_', '.' and '-'")


def _type_name(found: Any) -> str:
    """The name that .NET has for the type of a value, or for a type."""
    if type(found) is int:
        return "Int32" if found in _INT32 else "Int64"
    kind = found if isinstance(found, type) else typing.get_origin(found) or type(found)
    for base, name in _TYPE_NAMES.items():
        if issubclass(kind, base) and not issubclass(kind, Enum):
            return name
    return kind.__name__ if _NAME.fullmatch(kind.__name__) else "Item"


_SCALARS: Final[dict[type, Callable[[Any], str]]] = {
    str: _escaped,
    bool: bool_text,
    int: integer_text,
    float: float_text,
    Decimal: decimal_text,
    datetime: datetime_text,
    date: date_text,
    time: time_text,
    timedelta: _duration,
    UUID: str,
    bytes: bytes_text,
    bytearray: bytes_text,
    memoryview: bytes_text,
}
_TYPE_NAMES: Final[dict[type, str]] = {
    str: "String",
    bool: "Boolean",
    int: "Int32",
    float: "Double",
    Decimal: "Decimal",
    datetime: "DateTime",
    date: "DateOnly",
    time: "TimeOnly",
    timedelta: "TimeSpan",
    UUID: "Guid",
    bytes: "ArrayOfByte",
    list: "List",
    dict: "Dictionary",
}
