"""Decoded JSON as typed values: the dataclass that a handler asked for, from what a .NET or Python peer wrote."""

from __future__ import annotations

import base64
import collections.abc
import math
import types
import typing
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from enum import Enum
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

from sqlqueue_app.messages.enum_members import find_member
from sqlqueue_app.messages.errors import MessageTypeError
from sqlqueue_app.messages.hints import MAPPINGS, bare
from sqlqueue_app.messages.misfit import Misfit
from sqlqueue_app.messages.shapes import (
    PASCAL,
    Member,
    camel,
    construct,
    folded,
    is_mappable,
    is_model,
    mapped_class,
    members_of,
    pascal,
)
from sqlqueue_app.messages.times import parse_timespan
from sqlqueue_app.messages.tries import count_failed_try

Reader = Callable[[Any], Any]
"""Makes the typed value of a decoded JSON value; raises Misfit where it does not fit."""

# A whole number written as 1e999999999 would fill the memory once it is an int.
_LONGEST_INTEGER: Final = 40
# As Newtonsoft writes them; JSON has no numbers for them.
_NO_NUMBERS: Final = ("NaN", "Infinity", "-Infinity")

# Core 5 says the type of a dictionary among its entries where it is not that of the member.
_NET_MAPPING: Final = "System.Collections."

_LISTS: Final = (
    list,
    collections.abc.Sequence,
    collections.abc.MutableSequence,
    collections.abc.Collection,
    collections.abc.Iterable,
)
_SETS: Final = {set: set, collections.abc.MutableSet: set, frozenset: frozenset, collections.abc.Set: frozenset}


def reader_for(hint: Any, names: str) -> Reader:
    """The reader of a type hint; raises :class:`MessageTypeError` for a hint that has none.

    ``names`` says which spelling of a member counts where a body holds several; any spelling is found.
    """
    hint = bare(hint)
    if hint in (Any, object) or isinstance(hint, typing.TypeVar):
        return _anything
    if hint is None:
        return _SCALARS[type(None)]
    if isinstance(hint, type) and typing.get_origin(hint) is None:
        return _reader_of_class(hint, names)
    return _reader_of_generic(hint, typing.get_origin(hint), typing.get_args(hint), names)


def _reader_of_class(cls: type, names: str) -> Reader:
    scalar = _SCALARS.get(cls)
    if scalar is not None:
        return scalar
    if issubclass(cls, Enum):
        return lambda value: _enum(cls, value)
    plain: type = cls  # the checker has narrowed the name by now
    if is_mappable(plain):
        # Looked up at the first value, so that a class may hold itself.
        return lambda value: _object_reader(plain, names)(value)
    if cls in _LISTS or cls in _SETS or cls in MAPPINGS or cls is tuple:
        return _reader_of_generic(cls, cls, (), names)
    raise _unknown(cls)


def _reader_of_generic(hint: Any, origin: Any, args: tuple[Any, ...], names: str) -> Reader:
    if origin in (typing.Union, types.UnionType):
        return _union(args, names)
    if origin is typing.Literal:
        return _literal(args)
    if origin is tuple:
        return _tuple(args, names)
    if origin in _LISTS:
        return _array(reader_for(args[0], names) if args else _anything, list)
    if origin in _SETS:
        return _array(reader_for(args[0], names) if args else _anything, _SETS[origin])
    if origin in MAPPINGS:
        key, item = args or (str, Any)
        return _mapping(_key_reader(key), reader_for(item, names))
    if mapped_class(hint) is not None:
        return lambda value: _object_reader(hint, names)(value)
    raise _unknown(hint)


@lru_cache(maxsize=2048)
def _object_reader(kind: Any, names: str) -> Reader:
    """The reader of a class, or of an alias of a generic one."""
    cls: type = typing.get_origin(kind) or kind
    members = [member for member in members_of(kind) if member.settable]
    own = {member.name for member in members}
    plans = [(member, _spellings(member, own, names), _member_reader(cls, member, names)) for member in members]

    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise _expected(f"an object for {cls.__qualname__}", value)
        arguments: dict[str, Any] = {}
        others: dict[str, str] | None = None
        for member, spellings, read_member in plans:
            key = next((spelling for spelling in spellings if spelling in value), None)
            if key is None:
                if others is None:
                    others = {folded(name): name for name in reversed(value) if name not in own}
                key = others.get(folded(member.name))
            if key is not None:
                arguments[member.name] = _at(f".{member.name}", read_member, value[key])
            elif member.required:
                raise Misfit(f"{cls.__qualname__} needs the member {member.name!r}, which has no default; {_has(value)}")
        try:
            return construct(cls, arguments)
        except (ValueError, TypeError, ArithmeticError) as error:
            raise Misfit(f"{cls.__qualname__} refused its members: {error}") from error

    return read


def _spellings(member: Member, own: set[str], names: str) -> tuple[str, ...]:
    """The exact names to look for first; another member's own name is never among them."""
    spelled = dict.fromkeys((pascal(member.name), camel(member.name)))
    wanted = [*spelled, member.name] if names == PASCAL else [member.name, *spelled]
    return tuple(name for name in wanted if name == member.name or name not in own)


def _member_reader(cls: type, member: Member, names: str) -> Reader:
    try:
        return reader_for(member.hint, names)
    except MessageTypeError as error:
        if is_model(cls):
            return _anything  # a type that Pydantic knows, and checks
        raise MessageTypeError(f"{cls.__qualname__}.{member.name}: {error}") from None


def _at(step: str, read: Reader, value: Any) -> Any:
    try:
        return read(value)
    except Misfit as misfit:
        misfit.path.append(step)
        raise


def _array(item: Reader, make: Callable[[list[Any]], Any]) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not list:
            value = _typed_array(value)
        return make([_at(f"[{index}]", item, entry) for index, entry in enumerate(value)])

    return read


def _typed_array(value: Any) -> list[Any]:
    """What core 5 makes of an array whose type is not that of the member: an object with the type and the values."""
    found = value.get("$values") if type(value) is dict else None
    if type(found) is not list:
        raise _expected("an array", value)
    return found


def _tuple(args: tuple[Any, ...], names: str) -> Reader:
    if not args or (len(args) == 2 and args[1] is Ellipsis):
        return _array(reader_for(args[0], names) if args else _anything, tuple)
    items = [reader_for(arg, names) for arg in args]

    def read(value: Any) -> tuple[Any, ...]:
        if type(value) is not list or len(value) != len(items):
            raise _expected(f"an array of {len(items)}", value)
        return tuple(_at(f"[{n}]", item, entry) for n, (item, entry) in enumerate(zip(items, value, strict=True)))

    return read


def _mapping(key: Reader, item: Reader) -> Reader:
    def read(value: Any) -> dict[Any, Any]:
        if type(value) is not dict:
            raise _expected("an object", value)
        if str(value.get("$type")).startswith(_NET_MAPPING):
            value = {name: entry for name, entry in value.items() if name != "$type"}
        return {_at(f"[{name!r}]", key, name): _at(f"[{name!r}]", item, entry) for name, entry in value.items()}

    return read


def _key_reader(hint: Any) -> Reader:
    if hint is int:
        return _integer_key
    return reader_for(hint, PASCAL)


def _union(args: tuple[Any, ...], names: str) -> Reader:
    readers = [reader_for(arg, names) for arg in args if arg is not type(None)]
    nullable = len(readers) < len(args)

    def read(value: Any) -> Any:
        if value is None and nullable:
            return None
        if len(readers) == 1:
            return readers[0](value)
        for reader in readers:
            try:
                return reader(value)
            except Misfit:
                count_failed_try()
        raise _expected(" or ".join(_named(arg) for arg in args), value)

    return read


def _literal(args: tuple[Any, ...]) -> Reader:
    def read(value: Any) -> Any:
        for arg in args:
            if isinstance(arg, Enum):
                if find_member(type(arg), value) is arg:
                    return arg
            elif arg == value and type(arg) is type(value):
                return arg
        raise _expected(" or ".join(map(repr, args)), value)

    return read


def _enum(cls: type[Enum], value: Any) -> Enum:
    if (found := find_member(cls, value)) is None:
        raise _expected(f"a value or name of {cls.__qualname__}", value)
    return found


def _anything(value: Any) -> Any:
    return value


def _null(value: Any) -> None:
    if value is not None:
        raise _expected("null", value)


def _exactly(kind: type, what: str) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise _expected(what, value)
        return value

    return read


def _integer(value: Any) -> int:
    if type(value) is int:
        return value
    if type(value) is Decimal and value.adjusted() < _LONGEST_INTEGER and value == value.to_integral_value():
        return int(value)
    raise _expected("a whole number", value)


def _integer_key(value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise _expected("a whole number as key", value) from None


def _float(value: Any) -> float:
    if type(value) is str and value in _NO_NUMBERS:
        return float(value)
    if type(value) in (int, Decimal):
        try:
            number = float(value)
        except OverflowError:
            number = float("inf")
        if math.isfinite(number):
            return number
    raise _expected("a number that fits a float", value)


def _decimal(value: Any) -> Decimal:
    # As text too: many writers, Django's among them, keep the digits of money that way.
    if type(value) in (int, Decimal, str):
        try:
            number = Decimal(value)
        except InvalidOperation:
            number = Decimal("nan")
        if number.is_finite():
            return number
    raise _expected("a decimal number", value)


def _from_text(make: Callable[[str], Any], what: str) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is str:
            try:
                return make(value)
            except ValueError:
                pass
        raise _expected(what, value)

    return read


def _make_bytes(text: str) -> bytes:
    # .NET takes white space in it, too; PostgreSQL's encode() breaks the lines.
    return base64.b64decode("".join(text.split()), validate=True)


def _make_date(text: str) -> date:
    # A DateTime of .NET is what older contracts have for a date.
    return datetime.fromisoformat(text).date() if len(text) > 10 else date.fromisoformat(text)


_SCALARS: Final[dict[Any, Reader]] = {
    dict: _exactly(dict, "an object"),
    str: _exactly(str, "text"),
    bool: _exactly(bool, "true or false"),
    type(None): _null,
    int: _integer,
    float: _float,
    Decimal: _decimal,
    datetime: _from_text(datetime.fromisoformat, "a date and time like '2026-11-20T10:11:12Z'"),
    date: _from_text(_make_date, "a date like '2026-11-20'"),
    time: _from_text(time.fromisoformat, "a time like '10:11:12'"),
    timedelta: _from_text(parse_timespan, "a duration like '1.02:03:04.0050000'"),
    UUID: _from_text(UUID, "a GUID"),
    bytes: _from_text(_make_bytes, "base64 text"),
}


def _expected(what: str, value: Any) -> Misfit:
    return Misfit(f"expected {what}, got {_shown(value)}")


def _shown(value: Any) -> str:
    if value is None or type(value) is bool:
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return f"an array of {len(value)}"
    if isinstance(value, str):
        return repr(value) if len(value) <= 60 else f"{value[:60]!r}... ({len(value)} characters)"
    return f"the number {value:.40}" if isinstance(value, Decimal) else f"the number {value:d}"


def _has(value: dict[str, Any]) -> str:
    return f"the body has {', '.join(map(repr, list(value)[:20]))}" if value else "the body is empty"


def _named(hint: Any) -> str:
    return "null" if hint is type(None) else getattr(hint, "__name__", str(hint))


def _unknown(hint: Any) -> MessageTypeError:
    return MessageTypeError(
        f"nothing in JSON can be read as {hint!r}; use a dataclass, an Enum, str, int, float, bool, Decimal, datetime, "
        "date, time, timedelta, UUID, bytes, list, set, tuple, dict or Any"
    )
