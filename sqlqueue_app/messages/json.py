"""JSON bodies: convert decoded JSON to the typed values of a handler, and values to JSON that NServiceBus reads."""

from __future__ import annotations

import base64
import collections.abc
import json
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from enum import Enum
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

from sqlqueue_app.messages.errors import MessageTypeError
from sqlqueue_app.messages.times import format_timespan, parse_timespan
from sqlqueue_app.messages.type_hints import (
    AS_IS,
    MAPPINGS,
    PASCAL,
    Member,
    alternatives,
    bare,
    camel,
    construct,
    exact_first,
    find_member,
    folded,
    is_mappable,
    is_model,
    is_optional,
    mapped_class,
    member_names,
    members_of,
    pascal,
    spend_budget,
)


class ConversionError(Exception):
    """A value does not fit; ``path`` grows from the inside out. Never leaves the serializers."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: list[str] = []

    def __str__(self) -> str:
        where = "".join(reversed(self.path)).lstrip(".")
        return f"{where}: {self.reason}" if where else self.reason


Reader = Callable[[Any], Any]
"""Converts a decoded JSON value to the typed value; raises ConversionError if it does not fit."""

# A whole number written as 1e999999999 would exhaust the memory as an int.
_MAX_INTEGER_DIGITS: Final = 40
# Written as text by Newtonsoft, because JSON has no such numbers.
_NO_NUMBERS: Final = ("NaN", "Infinity", "-Infinity")

# Core 5 adds the type of a dictionary to its entries if it differs from the type of the member.
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
    """The reader for a type hint. Raises :class:`MessageTypeError` for an unsupported hint.

    ``names`` selects the spelling of a member that wins if a body contains several; any spelling is found.
    """
    hint = bare(hint)
    if hint in (Any, object) or isinstance(hint, typing.TypeVar):
        return _anything
    origin = typing.get_origin(hint)
    if hint is None:
        return _SCALARS[type(None)]
    if isinstance(hint, type) and origin is None:
        return _reader_of_class(hint, names)
    return _reader_of_generic(hint, origin, typing.get_args(hint), names)


def _reader_of_class(cls: type, names: str) -> Reader:
    scalar = _SCALARS.get(cls)
    if scalar is not None:
        return scalar
    if issubclass(cls, Enum):
        return lambda value: _enum(cls, value)
    plain: type = cls  # the type checker has narrowed `cls` here
    if is_mappable(plain):
        # Looked up at the first value, so that a class may contain itself.
        return lambda value: _object_reader(plain, names)(value)
    if cls in _LISTS or cls in _SETS or cls in MAPPINGS or cls is tuple:
        return _reader_of_generic(cls, cls, (), names)
    raise _unknown(cls)


def _reader_of_generic(hint: Any, origin: Any, args: tuple[Any, ...], names: str) -> Reader:
    if origin in (typing.Union, types.UnionType):
        return _union(hint, names)
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
    """The reader for a class or an alias of a generic class."""
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
                key = next((others[found] for found in map(folded, member.names) if found in others), None)
            if key is not None:
                arguments[member.name] = at(f".{member.name}", read_member, value[key])
            elif member.required:
                raise ConversionError(f"{cls.__qualname__} needs the member {member.name!r}, which has no default; {_has(value)}")
        try:
            return construct(cls, arguments)
        except (ValueError, TypeError, ArithmeticError) as error:
            raise ConversionError(f"{cls.__qualname__} refused its members: {error}") from error

    return read


def _spellings(member: Member, own: set[str], names: str) -> tuple[str, ...]:
    """The exact names to try first, without the names of other members."""
    spelled = dict.fromkeys((pascal(member.name), camel(member.name)))
    wanted = [*spelled, member.name, *member.aliases] if names != AS_IS else [member.name, *spelled, *member.aliases]
    return tuple(name for name in wanted if name == member.name or name not in own)


def _member_reader(cls: type, member: Member, names: str) -> Reader:
    try:
        return reader_for(member.hint, names)
    except MessageTypeError as error:
        if is_model(cls):
            return _anything  # a type that Pydantic checks
        raise MessageTypeError(f"{cls.__qualname__}.{member.name}: {error}") from None


def at(step: str, read: Reader, value: Any) -> Any:
    """Read a value; a mismatch gets the step in its path."""
    try:
        return read(value)
    except ConversionError as mismatch:
        mismatch.path.append(step)
        raise


def _array(item: Reader, make: Callable[[list[Any]], Any]) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not list:
            value = _typed_array(value)
        found = [at(f"[{index}]", item, entry) for index, entry in enumerate(value)]
        try:
            return make(found)
        except TypeError as error:  # an object in a set
            raise ConversionError(f"the items do not fit a set: {error}") from None

    return read


def _typed_array(value: Any) -> list[Any]:
    """Unwrap an array that core 5 wrote as an object with type and values, because its type differs from the member's."""
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
        return tuple(at(f"[{n}]", item, entry) for n, (item, entry) in enumerate(zip(items, value, strict=True)))

    return read


def _mapping(key: Reader, item: Reader) -> Reader:
    def read(value: Any) -> dict[Any, Any]:
        if type(value) is not dict:
            raise _expected("an object", value)
        if str(value.get("$type")).startswith(_NET_MAPPING):
            value = {name: entry for name, entry in value.items() if name != "$type"}
        return {at(f"[{name!r}]", key, name): at(f"[{name!r}]", item, entry) for name, entry in value.items()}

    return read


def _key_reader(hint: Any) -> Reader:
    return _from_text(int, "a whole number as key") if hint is int else reader_for(hint, PASCAL)


def _union(hint: Any, names: str) -> Reader:
    kinds, nullable = alternatives(hint), is_optional(hint)
    expected = " or ".join(map(_named, typing.get_args(hint)))
    choose = alternative_reader(kinds, names, expected)
    only = reader_for(kinds[0], names) if len(kinds) == 1 else None

    def read(value: Any) -> Any:
        if value is None and nullable:
            return None
        return choose(value)[1] if only is None else only(value)

    return read


def alternative_reader(kinds: tuple[Any, ...], names: str, expected: str) -> Callable[[Any], tuple[int, Any]]:
    """A function that reads a value with the first alternative of a union that fits; returns its index and the typed value."""
    readers = [reader_for(kind, names) for kind in kinds]
    order = exact_first(kinds)

    def choose(value: Any) -> tuple[int, Any]:
        for index in order(value):
            try:
                return index, readers[index](value)
            except ConversionError:
                spend_budget()
        raise _expected(expected, value)

    return choose


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
    if type(value) is float:
        value = _exact(value)
    found = find_member(cls, value)
    if found is None:
        found = _written_members(cls).get(write_json(value, AS_IS))
    if found is None:
        raise _expected(f"a value or name of {cls.__qualname__}", value)
    return found


@lru_cache(maxsize=1024)
def _written_members(cls: type[Enum]) -> dict[str, Enum]:
    """The members by the JSON text of their values as they are decoded: a date is text there, a tuple is an array."""
    found: dict[str, Enum] = {}
    for member in cls:
        try:
            found.setdefault(write_json(decoded(write_json(member.value, AS_IS)), AS_IS), member)
        except ConversionError:
            continue  # a value without a form in JSON is found by name only
    return found


def decoded(text: str) -> Any:
    """The value of a text of `write_json`, decoded as a body is before its reader gets it."""
    return json.loads(text, parse_float=Decimal)


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


def _exact(value: float) -> Decimal:
    """The number as any writer but ours would have written it: a float comes from our own form of floats in a dict."""
    return Decimal(repr(value))


def _integer(value: Any) -> int:
    if type(value) is int:
        return value
    if type(value) is float:
        value = _exact(value)
    if type(value) is Decimal and value.adjusted() < _MAX_INTEGER_DIGITS and value == value.to_integral_value():
        return int(value)
    raise _expected("a whole number", value)


def _float(value: Any) -> float:
    if type(value) is float:
        return value
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
    # Also text: many writers, including Django, use it to keep all digits of amounts.
    if type(value) in (int, Decimal, str, float):
        try:
            number = Decimal(value) if type(value) is not float else _exact(value)
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
    # .NET accepts white space; PostgreSQL's encode() adds line breaks.
    return base64.b64decode("".join(text.split()), validate=True)


def _make_date(text: str) -> date:
    # Older contracts use a DateTime of .NET for a date.
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


def _expected(what: str, value: Any) -> ConversionError:
    return ConversionError(f"expected {what}, got {_shown(value)}")


def _shown(value: Any) -> str:
    if value is None or type(value) is bool:
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return f"an array of {len(value)}"
    if isinstance(value, str):
        return repr(value) if len(value) <= 60 else f"{value[:60]!r}... ({len(value)} characters)"
    return f"the number {value:.40}" if isinstance(value, Decimal) else f"the number {value!r:.60}"


def _has(value: dict[str, Any]) -> str:
    return f"the body has {', '.join(map(repr, list(value)[:20]))}" if value else "the body is empty"


def _named(hint: Any) -> str:
    return "null" if hint is type(None) else getattr(hint, "__name__", str(hint))


def _unknown(hint: Any) -> MessageTypeError:
    return MessageTypeError(
        f"nothing in JSON can be read as {hint!r}; use a dataclass, an Enum, str, int, float, bool, Decimal, datetime, "
        "date, time, timedelta, UUID, bytes, list, set, tuple, dict or Any"
    )


# The text of single values, shared by JSON and XML; raises ConversionError for values beyond the range of .NET.

# Beyond this size a Decimal keeps its exponent, because all its digits could exhaust the memory.
_PLAIN_DECIMAL: Final = 64


def bool_text(value: bool) -> str:
    """``true`` or ``false``."""
    return "true" if value else "false"


def float_text(value: float) -> str:
    """The shortest digits that yield the same number."""
    if not math.isfinite(value):
        raise ConversionError(f"a body cannot contain the number {value!r}")
    return float.__repr__(value)


def integer_text(value: int) -> str:
    """All digits."""
    try:
        return int.__repr__(value)
    except ValueError:
        raise ConversionError(f"the number has more digits than Python converts ({value.bit_length()} bits)") from None


def decimal_text(value: Decimal) -> str:
    """All digits, including trailing zeros."""
    if not value.is_finite():
        raise ConversionError(f"a body cannot contain the number {value!r}")
    exponent = value.as_tuple().exponent
    plain = isinstance(exponent, int) and -_PLAIN_DECIMAL <= exponent <= _PLAIN_DECIMAL
    return format(value, "f") if plain else str(value)


def datetime_text(value: datetime) -> str:
    """ISO 8601, with ``Z`` or the offset if the time has a zone."""
    offset = value.utcoffset()
    if offset is None:
        return value.isoformat()
    if offset % timedelta(minutes=1):
        # .NET does not support seconds in the offset of ISO 8601.
        try:
            value = value - offset
        except OverflowError:
            beyond = "before year 1" if offset > timedelta(0) else "after year 9999"
            raise ConversionError(
                f"the offset of {value!r} has seconds, and in UTC the time is {beyond}; use whole minutes"
            ) from None
        offset = timedelta(0)
    naive = value.replace(tzinfo=None).isoformat()
    if not offset:
        return f"{naive}Z"
    minutes = abs(offset) // timedelta(minutes=1)
    return f"{naive}{'-' if offset < timedelta(0) else '+'}{minutes // 60:02}:{minutes % 60:02}"


def date_text(value: date) -> str:
    """``2026-11-20``."""
    return value.isoformat()


def time_text(value: time) -> str:
    """``10:11:12``."""
    if value.tzinfo is not None:
        raise ConversionError(f"the time {value!r} has a time zone, which no receiver would understand; use a datetime")
    return value.isoformat()


def bytes_text(value: bytes | bytearray | memoryview) -> str:
    """Base64."""
    return base64.b64encode(value).decode("ascii")


_Write = Callable[[Any], str]
_Scalars = Mapping[type, _Write]

# Written in C, twice as fast as our writer; used only for values with exactly the same output.
_encode: Final = json.JSONEncoder(ensure_ascii=False, check_circular=False, allow_nan=False, separators=(",", ":")).encode
_STANDARD: Final = frozenset({str, int, float, bool, type(None)})
_STANDARD_IN_DICT: Final = _STANDARD - {float}
_TEXT: Final = frozenset({str})

_text: Final = json.JSONEncoder(ensure_ascii=False).encode


def write_json(value: Any, names: str) -> str:
    """The compact JSON text of a value. Raises :class:`ConversionError` for values that JSON or .NET cannot represent.

    The standard encoder cannot write a Decimal as a number without losing digits, and libraries that can (msgspec, pydantic) write
    durations as ISO text, which .NET rejects; hence a writer of our own (docs/internals/wire.md#bodies).

    ``names`` spells the members of classes (see :data:`sqlqueue_app.messages.type_hints.NAMES`); keys of dictionaries are
    data and stay unchanged. A dictionary has no annotations that distinguish float from Decimal, so a float has an exponent there,
    in a class too (see :func:`sqlqueue_app.messages.serializers.number_in_dict`). May raise RecursionError and OverflowError for
    infinitely nested values.
    """
    as_pascal = names != AS_IS
    kind: type = type(value)
    in_dict = not is_mappable(kind)
    plain = _object_of(value, as_pascal)
    if _is_plain(plain, _STANDARD_IN_DICT if in_dict else _STANDARD):
        try:
            return _encode(plain)
        except ValueError:
            pass  # NaN, or more digits than Python converts: the error raised below names the place
    out: list[str] = []
    _write(value, out, as_pascal, _SCALARS_IN_DICT if in_dict else _WRITTEN_SCALARS)
    return "".join(out)


def _object_of(value: Any, as_pascal: bool) -> Any:
    """The members of a message as a dictionary; any other value is returned unchanged."""
    kind: type = type(value)
    if kind is dict or kind is list or not is_mappable(kind):
        return value
    members = member_names(kind)
    found = {pascal(name) if as_pascal else name: getattr(value, name) for name in members}
    return found if len(found) == len(members) else value


def float_in_dict(value: float) -> str:
    """``1.5e0``: a form that is never used for a Decimal."""
    text = float_text(value)
    return text if "e" in text else f"{text}e0"


def _is_plain(value: Any, standard: frozenset[type]) -> bool:
    """Whether the standard encoder has the same output: all keys are text, and all types are ones that it writes as we do."""
    kind = type(value)
    if kind is dict:
        return _TEXT.issuperset(map(type, value)) and all(
            type(item) in standard or _is_plain(item, _STANDARD_IN_DICT if type(item) is dict else standard)
            for item in value.values()
        )
    return kind is list and all(
        type(item) in standard or _is_plain(item, _STANDARD_IN_DICT if type(item) is dict else standard) for item in value
    )


def _write(value: Any, out: list[str], as_pascal: bool, scalars: _Scalars) -> None:
    kind: type = type(value)
    write = scalars.get(kind)
    if write is not None:
        out.append(write(value))
    elif isinstance(value, Enum):
        _write(value.value, out, as_pascal, scalars)
    elif is_mappable(kind):
        names = member_names(kind)
        pairs = ((pascal(name) if as_pascal else name, f".{name}", getattr(value, name)) for name in names)
        _write_object(pairs, out, as_pascal, scalars)
    elif isinstance(value, Mapping):
        _write_object(((_key(key), f"[{key!r}]", item) for key, item in value.items()), out, as_pascal, _SCALARS_IN_DICT)
    elif isinstance(value, (list, tuple, set, frozenset)):
        _write_array(value, out, as_pascal, scalars)
    else:
        out.append(_scalar_of(value, scalars)(value))


def _write_object(pairs: Iterable[tuple[str, str, Any]], out: list[str], as_pascal: bool, scalars: _Scalars) -> None:
    seen: set[str] = set()
    before = "{"
    for name, step, value in pairs:
        if name in seen:
            raise ConversionError(f"two members would both be written as {name!r}; rename one of them")
        seen.add(name)
        out.append(f"{before}{_text(name)}:")
        before = ","
        try:
            _write(value, out, as_pascal, scalars)
        except ConversionError as mismatch:
            mismatch.path.append(step)
            raise
    out.append("}" if seen else "{}")


def _write_array(values: Iterable[Any], out: list[str], as_pascal: bool, scalars: _Scalars) -> None:
    index = -1
    for index, value in enumerate(values):
        out.append("," if index else "[")
        try:
            _write(value, out, as_pascal, scalars)
        except ConversionError as mismatch:
            mismatch.path.append(f"[{index}]")
            raise
    out.append("]" if index >= 0 else "[]")


def _key(key: Any) -> str:
    if isinstance(key, Enum):
        key = key.value
    if isinstance(key, str):
        return key
    if isinstance(key, (int, UUID, Decimal, date, time, timedelta)) and not isinstance(key, bool):
        return _scalar_of(key, _WRITTEN_SCALARS)(key).strip('"')
    raise ConversionError(f"the key {key!r} is {type(key).__name__}; expected str, int, UUID, Decimal, date, time or timedelta")


def _scalar_of(value: Any, scalars: _Scalars) -> _Write:
    # Subclasses of these types: SafeString, a driver's own datetime. bool and datetime precede their bases.
    for kind, write in scalars.items():
        if isinstance(value, kind):
            return write
    raise ConversionError(f"{type(value).__name__} cannot be written as JSON ({value!r}); make it a dataclass, a dict or text")


def _timespan(value: timedelta) -> str:
    try:
        return f'"{format_timespan(value)}"'
    except ValueError as error:
        raise ConversionError(str(error)) from None


def _quoted(text: Callable[[Any], str]) -> _Write:
    return lambda value: f'"{text(value)}"'


_WRITTEN_SCALARS: Final[dict[type, _Write]] = {
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
_SCALARS_IN_DICT: Final = {**_WRITTEN_SCALARS, float: float_in_dict}
