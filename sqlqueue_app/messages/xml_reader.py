"""XML as NServiceBus writes it, made into the values that the JSON of the same message would have (transport reference §6.5).

XML has no types: what `<Quantity>2</Quantity>` is, only the class of the message knows. So the type hints go along here, and the
reader of JSON does the rest, with its errors that name the place.
"""

from __future__ import annotations

import enum
import re
import typing
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Final
from uuid import UUID

from sqlqueue_app.messages.errors import SeveralMessages
from sqlqueue_app.messages.hints import MAPPINGS, alternatives, array_items, bare, is_optional, is_value_type, mapping_items
from sqlqueue_app.messages.json_reader import reader_for
from sqlqueue_app.messages.misfit import Misfit
from sqlqueue_app.messages.shapes import PASCAL, folded, is_mappable, members_of
from sqlqueue_app.messages.times import format_timespan, parse_iso_duration
from sqlqueue_app.messages.xml_document import Element, messages_in

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,40}")
_BOOLS: Final = {"true": True, "1": True, "false": False, "0": False}
# A member of type object says by its namespace what it is.
_NET_TYPES: Final[dict[str, Any]] = {
    "Boolean": bool, "Byte": int, "SByte": int, "Int16": int, "UInt16": int, "Int32": int, "UInt32": int, "Int64": int,
    "UInt64": int, "Single": float, "Double": float, "Decimal": Decimal, "TimeSpan": timedelta,
}  # fmt: skip


def decode_xml(body: bytes, hint: Any) -> Any:
    """The body as decoded JSON would be, for a reader of `hint`; without types (dict) every value is text, but for nil.

    Raises MessageBodyError for what is no XML, and of that SeveralMessages for several messages in one body.
    """
    messages = messages_in(body)
    if len(messages) != 1:
        raise SeveralMessages(f"the body holds {len(messages)} messages; expected one: let the sender send each by itself")
    return plain_of(messages[0], hint)


def plain_of(element: Element, hint: Any) -> Any:
    """The value of an element as JSON would have it, so far as the hint says; what does not fit stays text."""
    hint = bare(hint)
    if element.is_nil:
        return None
    kinds = alternatives(hint)
    if is_optional(hint) and not element.children and _is_null(element.text, kinds):
        return None
    if len(kinds) != 1:
        return _first_that_fits(element, kinds)
    return _value(element, kinds[0])


def _is_null(text: str, kinds: tuple[Any, ...]) -> bool:
    """As .NET reads a nullable value: nothing, white space, or the word null. Texts, lists and objects may be empty."""
    return text.strip() in ("", "null") and all(map(is_value_type, kinds))


def _first_that_fits(element: Element, kinds: tuple[Any, ...]) -> Any:
    for kind in kinds:
        found = _value(element, kind)
        try:
            reader_for(kind, PASCAL)(found)
        except Misfit:
            continue
        return found
    return _untyped(element)


def _value(element: Element, kind: Any) -> Any:
    if (items := array_items(kind)) is not None:
        return [plain_of(child, items[min(index, len(items) - 1)]) for index, child in enumerate(element.children)]
    if (pair := mapping_items(kind)) is not None:
        return _mapping(element, *pair)
    if typing.get_origin(kind) is typing.Literal:
        return next((arg for arg in typing.get_args(kind) if str(arg) == element.text), element.text)
    if not isinstance(kind, type):
        return _untyped(element)
    if kind in _SCALARS or issubclass(kind, enum.Enum):
        return _untyped(element) if element.children else _scalar(element.text, kind)
    if kind in MAPPINGS:
        return _collected([(child.name, _untyped(child)) for child in element.children])
    plain: type = kind  # the checker has narrowed the name by now
    if is_mappable(plain):
        return _object(element, {member.name: member.hint for member in members_of(plain)})
    return _untyped(element)


def _object(element: Element, hints: dict[str, Any]) -> dict[str, Any]:
    by_folded = {folded(name): hint for name, hint in hints.items()}
    return _collected([(child.name, plain_of(child, by_folded.get(folded(child.name), Any))) for child in element.children])


def _collected(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The pairs as a dict; a name that comes more than once has a list of its values."""
    found: dict[str, list[Any]] = {}
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return {name: values[0] if len(values) == 1 else values for name, values in found.items()}


def _mapping(element: Element, key_hint: Any, item_hint: Any) -> dict[Any, Any]:
    """From elements with a Key and a Value each, whatever their name is."""
    found = {}
    for entry in element.children:
        parts = {part.name: part for part in entry.children}
        if "Key" not in parts:
            raise Misfit(f"expected an entry with Key and Value, got the element {entry.name!r}")
        key = _scalar(parts["Key"].text, str if key_hint is int else bare(key_hint))
        found[key] = plain_of(parts["Value"], item_hint) if "Value" in parts else None
    return found


def _untyped(element: Element) -> Any:
    if element.is_nil:
        return None
    if element.children:
        return _collected([(child.name, _untyped(child)) for child in element.children])
    return _scalar(element.text, _NET_TYPES.get(element.namespace, str))


def _scalar(text: str, kind: Any) -> Any:
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return text.strip()
    return _SCALARS.get(kind, _same)(text)


def _same(text: str) -> str:
    return text


def _stripped(text: str) -> str:
    return text.strip()


def _bool(text: str) -> Any:
    return _BOOLS.get(text.strip(), text)


def _integer(text: str) -> Any:
    return int(text) if _INTEGER.fullmatch(text.strip()) else text


def _number(text: str) -> Any:
    try:
        return Decimal(text.strip())
    except InvalidOperation:
        return text


def _duration(text: str) -> str:
    try:
        return format_timespan(parse_iso_duration(text))
    except ValueError:
        return text


_SCALARS: Final[dict[Any, Callable[[str], Any]]] = {
    str: _same,
    bytes: _stripped,
    bool: _bool,
    int: _integer,
    float: _number,
    Decimal: _number,
    timedelta: _duration,
    datetime: _stripped,
    date: _stripped,
    time: _stripped,
    UUID: _stripped,
}
