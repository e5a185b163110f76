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
from sqlqueue_app.messages.shapes import PASCAL, folded, mapped_class, members_of
from sqlqueue_app.messages.times import format_timespan, parse_iso_duration
from sqlqueue_app.messages.tries import count_failed_try
from sqlqueue_app.messages.xml_document import Element, messages_in

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,40}")
_NULL_TEXT: Final = "\n"
_NO_NUMBERS: Final = {"NaN": "NaN", "INF": "Infinity", "-INF": "-Infinity"}
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
    kinds = alternatives(hint)
    if element.is_nil and (is_optional(hint) or not any(map(_may_be_empty, kinds))):
        return None
    if is_optional(hint) and not element.children and _is_null(element.text, kinds):
        return None
    if len(kinds) != 1:
        return _first_that_fits(element, kinds)
    return _value(element, kinds[0])


def _may_be_empty(kind: Any) -> bool:
    """Whether a kind has a value for an element without content, as a text or a list has."""
    return kind in (str, bytes) or array_items(kind) is not None or mapping_items(kind) is not None


def _is_null(text: str, kinds: tuple[Any, ...]) -> bool:
    """As .NET reads a nullable value: nothing, white space, or the word null; and an object: nothing. Texts and lists may be empty.

    White space stands for an object without members, and for a null in a list. A class that needs members makes it the latter.
    """
    if all(map(is_value_type, kinds)):
        return text.strip().lower() in ("", "null")
    classes = [kind for kind in kinds if mapped_class(kind) is not None]
    if len(classes) < len(kinds):
        return False
    return not text or (text.isspace() and all(any(member.required for member in members_of(kind)) for kind in classes))


def _first_that_fits(element: Element, kinds: tuple[Any, ...]) -> Any:
    for kind in kinds:
        found = _value(element, kind)
        try:
            reader_for(kind, PASCAL)(found)
        except Misfit:
            count_failed_try()
            continue
        return found
    return _untyped(element)


def _value(element: Element, kind: Any) -> Any:
    if (items := array_items(kind)) is not None:
        return [_item(child, items[min(index, len(items) - 1)]) for index, child in enumerate(element.children)]
    if (pair := mapping_items(kind)) is not None:
        return _mapping(element, *pair)
    if typing.get_origin(kind) is typing.Literal:
        return next((arg for arg in typing.get_args(kind) if str(arg) == element.text), element.text)
    if isinstance(kind, type) and (kind in _SCALARS or issubclass(kind, enum.Enum)):
        return _untyped(element) if element.children else _scalar(element.text, kind)
    if kind in MAPPINGS:
        return _collected([(child.name, _untyped(child)) for child in element.children])
    return _untyped(element) if mapped_class(kind) is None else _object(element, kind)


def _item(element: Element, hint: Any) -> Any:
    """An item of a list. .NET writes a line break for a null among texts."""
    is_null = element.text == _NULL_TEXT and not element.children and is_optional(bare(hint)) and alternatives(bare(hint)) == (str,)
    return None if is_null else plain_of(element, hint)


def _object(element: Element, kind: Any) -> dict[str, Any]:
    members = members_of(kind)
    # As .NET has it, a value without content is not there: it keeps its default.
    values = {folded(each.name) for each in members if not each.required and is_value_type(bare(each.hint))}
    by_folded = {folded(member.name): member.hint for member in members}
    children = [each for each in element.children if each.children or each.text or folded(each.name) not in values]
    return _collected([(child.name, plain_of(child, by_folded.get(folded(child.name), Any))) for child in children])


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
        parts = {folded(part.name): part for part in entry.children}
        if "key" not in parts:
            raise Misfit(f"expected an entry with Key and Value, got the element {entry.name!r}")
        key = _scalar(parts["key"].text, str if key_hint is int else bare(key_hint))
        found[key] = plain_of(parts["value"], item_hint) if "value" in parts else None
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


def _float(text: str) -> Any:
    return _NO_NUMBERS.get(text.strip()) or _number(text)


def _number(text: str) -> Any:
    try:
        number = Decimal(text.strip())
    except InvalidOperation:
        return text
    # A signaling NaN raises in comparisons, and no NaN is a number of a body.
    return text if number.is_nan() else number


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
    float: _float,
    Decimal: _number,
    timedelta: _duration,
    datetime: _stripped,
    date: _stripped,
    time: _stripped,
    UUID: _stripped,
}
