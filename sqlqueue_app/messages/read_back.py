"""The check before a body is written: values that a handler with the same class could not read back are refused."""

from __future__ import annotations

import inspect
import json
import types
import typing
from collections.abc import Callable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import Any
from uuid import UUID

from sqlqueue_app.messages.errors import MessageTypeError
from sqlqueue_app.messages.json import ConversionError, alternative_reader, at, reader_for, write_json
from sqlqueue_app.messages.type_hints import (
    AS_IS,
    alternatives,
    array_items,
    backtracking_budget,
    bare,
    is_optional,
    mapped_class,
    mapping_items,
    members_of,
    spend_budget,
)
from sqlqueue_app.messages.xml import decoded_again

Check = Callable[[Any], None]
"""Raises :class:`ConversionError` for a value that does not fit its hint."""


@lru_cache(maxsize=2048)
def object_check(kind: Any, as_xml: bool) -> Check:
    """The check of an object of a class, or of an alias of a generic class, member by member.

    It runs no constructor, except for values of unions whose alternatives look alike.
    """
    try:
        members = [member for member in members_of(kind) if member.kept]
    except MessageTypeError:
        return _accept  # a class that this process can only send
    checks = [(each.name, *_member_check(each.hint, as_xml)) for each in members]

    def check(value: Any) -> None:
        for name, leaf, check_member in checks:
            if type(found := getattr(value, name)) is not leaf:
                at(f".{name}", check_member, found)

    return check if checks else _accept


def _member_check(hint: Any, as_xml: bool) -> tuple[type | None, Check]:
    """The type whose values need no check, and the check for others."""
    try:
        return _leaf(bare(hint), as_xml), _check_for(hint, as_xml)
    except MessageTypeError:
        return None, _accept  # a type that Pydantic checks, or that only the receiver can read


def _accept(_: Any) -> None:
    pass


def _check_for(hint: Any, as_xml: bool) -> Check:
    """The check for a type hint: accepts the declared type, and values that can be read as it once written.

    A value for XML has to be readable from JSON, too: text for a number is an error in both.
    """
    hint = bare(hint)
    if hint in (Any, object) or isinstance(hint, typing.TypeVar):
        return _accept
    read = reader_for(hint, AS_IS)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return _naming(hint, _union_check(hint, as_xml))
    cls = mapped_class(hint)
    instances = () if cls is None or typing.is_typeddict(cls) else (cls,)
    leaf, check_items = _leaf(hint, as_xml), _items_check(hint, as_xml)

    def check(value: Any) -> None:
        if type(value) is leaf:
            return
        if isinstance(value, instances):
            object_check(hint, as_xml)(value)
        elif check_items is not None and type(value) is list:
            check_items(value)
        else:
            found = read(_decoded(write_json(value, AS_IS)))
            if as_xml:
                found = read(decoded_again(value, hint))
            if type(value) is hint and isinstance(value, Enum) and found is not value:
                raise _ChangedError(
                    f"{value} is read back as {found}, which is written as the same value: change one of the values"
                )

    return _naming(hint, check)


class _ChangedError(ConversionError):
    """A value can be read back, but not as it was."""


def _leaf(hint: Any, as_xml: bool) -> type | None:
    """The type of values that are always read back, if the bare hint has one."""
    if not isinstance(hint, type) or typing.get_origin(hint) is not None or mapped_class(hint) is not None:
        return None
    return None if issubclass(hint, Enum) and not _is_read_back(hint, as_xml) else hint


def _is_read_back(cls: type[Enum], as_xml: bool) -> bool:
    read = reader_for(cls, AS_IS)
    try:
        return all(read(decoded_again(member, cls) if as_xml else _decoded(write_json(member, AS_IS))) is member for member in cls)
    except ConversionError:
        return False


def _decoded(text: str) -> Any:
    return json.loads(text, parse_float=Decimal)


def _naming(hint: Any, check: Check) -> Check:
    """The check with an error that names the hint, unless the value does not fit further inside."""

    def check_and_name(value: Any) -> None:
        try:
            return check(value)
        except ConversionError as mismatch:
            if mismatch.path or isinstance(mismatch, _ChangedError):
                raise
        found = f"{type(value).__qualname__} ({value!r:.60})"
        raise ConversionError(f"expected {_named(hint)}, got {found}: convert the value, or change the annotation")

    return check_and_name


def _named(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and typing.get_origin(hint) is None else str(hint).replace("typing.", "")


def _items_check(hint: Any, as_xml: bool) -> Check | None:
    """The check of a list item by item; None for a hint without items."""
    items = array_items(hint)
    if items is None:
        return None
    args = typing.get_args(hint)
    length = len(args) if typing.get_origin(hint) is tuple and args and args[-1] is not Ellipsis else None
    leaves = [_leaf(bare(item), as_xml) for item in items]
    checks = [_check_for(item, as_xml) for item in items]
    last = len(items) - 1

    def check(values: list[Any]) -> None:
        if length is not None and len(values) != length:
            raise ConversionError(f"expected {length} values")
        for index, value in enumerate(values):
            which = min(index, last)
            if type(value) is not leaves[which]:
                at(f"[{index}]", checks[which], value)

    return check


def _union_check(hint: Any, as_xml: bool) -> Check:
    kinds = alternatives(hint)
    nullable = is_optional(hint)
    checks = [_check_for(kind, as_xml) for kind in kinds]
    choose = None if not as_xml and _are_distinct(kinds) else alternative_reader(kinds, AS_IS, "one of these")

    def check(value: Any) -> None:
        if value is None and nullable:
            return
        if len(checks) == 1:
            checks[0](value)
            return
        own = _own(value, kinds)
        fitting = _fitting(value, checks, own or range(len(checks)))
        if choose is None or not own:
            return  # a value of another type is converted by the first alternative that reads it
        text = write_json(value, AS_IS)
        with backtracking_budget(len(text)):
            index, found = choose(decoded_again(value, hint) if as_xml else _decoded(text))
        if index not in fitting and not _is_harmless(value, found):
            names = f"{_named(kinds[fitting[0]])} is read back as {_named(kinds[index])}"
            raise _ChangedError(f"{names} ({value!r:.60}): change the order of {_named(hint)}, or the annotation")

    return check


def _is_harmless(value: Any, found: Any) -> bool:
    """Whether a value of another type serves as well: an equal int for a Decimal, an equal member of a StrEnum for text."""
    return found == value and (
        type(found) is int if type(value) is Decimal else isinstance(found, Enum) and isinstance(found, type(value))
    )


def _fitting(value: Any, checks: list[Check], candidates: Sequence[int]) -> list[int]:
    """The candidates whose check accepts the value; ConversionError if there are none, that of a single candidate unchanged."""
    found = []
    for index in candidates:
        try:
            checks[index](value)
        except ConversionError:
            if len(candidates) == 1:
                raise
            spend_budget()
        else:
            found.append(index)
    if not found:
        raise ConversionError("no alternative fits")
    return found


def _own(value: Any, kinds: tuple[Any, ...]) -> list[int]:
    """The alternatives of which a value is by its Python type: exactly, or else as a subclass."""
    exactly = [index for index, kind in enumerate(kinds) if _is_of(value, kind, exactly=True)]
    return exactly or [index for index, kind in enumerate(kinds) if _is_of(value, kind, exactly=False)]


def _is_of(value: Any, hint: Any, *, exactly: bool) -> bool:
    hint = bare(hint)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint in (Any, object) or isinstance(hint, typing.TypeVar):
        return True
    if origin is typing.Literal:
        return any(type(arg) is type(value) and arg == value for arg in args)
    if origin in (typing.Union, types.UnionType):
        return any(_is_of(value, arg, exactly=exactly) for arg in args)
    cls = dict if typing.is_typeddict(origin or hint) else type(None) if hint is None else origin or hint
    is_one = type(value) is cls if exactly and not inspect.isabstract(cls) else isinstance(value, cls)
    if not is_one or isinstance(value, (str, bytes)):
        return is_one and array_items(hint) is None
    if (items := array_items(hint)) is not None:
        return all(_is_of(item, items[min(index, len(items) - 1)], exactly=exactly) for index, item in enumerate(value))
    pair = mapping_items(hint)
    return pair is None or all(_is_of(item, pair[1], exactly=exactly) for item in value.values())


def _are_distinct(kinds: tuple[Any, ...]) -> bool:
    """Whether the form of a value in JSON shows its alternative, as for `int | str`; False if that takes a closer look."""
    forms = [_form(kind) for kind in kinds]
    return None not in forms and len(set(forms)) == len(forms)


def _form(kind: Any) -> str | None:
    if kind in (int, bool, str):
        return str(kind)
    if kind in (datetime, date, time, timedelta, UUID, bytes):
        return _form(str)
    return "array" if array_items(kind) is not None else "object" if mapped_class(kind) is not None else None
