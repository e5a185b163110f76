"""Bodies: convert between the bytes of a message and the object that a handler receives.

The content type selects the format: XML for its own types, JSON for all others, as in NServiceBus receivers with unknown types.
"""

from __future__ import annotations

import functools
import inspect
import json
import math
import typing
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from types import UnionType
from typing import Any, Final, NoReturn
from uuid import UUID

from sqlqueue_app.messages.errors import MessageBodyError, MessageTypeError
from sqlqueue_app.messages.json import (
    ConversionError,
    Reader,
    alternative_reader,
    at,
    decoded,
    float_in_dict,
    reader_for,
    write_json,
)
from sqlqueue_app.messages.type_hints import (
    AS_IS,
    NAMES,
    alternatives,
    array_items,
    backtracking_budget,
    bare,
    is_mappable,
    is_optional,
    keeps_undeclared,
    mapped_class,
    mapping_items,
    members_of,
    spend_budget,
)
from sqlqueue_app.messages.types import resolve_enclosed
from sqlqueue_app.messages.xml import Element, decode_xml, decoded_again, messages_in, plain_of, write_xml

JSON_CONTENT_TYPE: Final = "application/json"
"""The header ContentType of bodies from :func:`serialize`; receivers compare it exactly."""

XML_CONTENT_TYPE: Final = "text/xml"
"""The content type of XML bodies, as NServiceBus writes it."""

CONTENT_TYPES: Final = {"json": JSON_CONTENT_TYPE, "xml": XML_CONTENT_TYPE}
"""The content type for each value of the setting ``SERIALIZER``."""

_JSON: Final = "json"
_SERIALIZERS: Final = {JSON_CONTENT_TYPE: _JSON, "text/json": _JSON, XML_CONTENT_TYPE: "xml", "application/xml": "xml"}
_UTF_16: Final = (b"\xff\xfe", b"\xfe\xff")

Writer = Callable[[object], bytes]
"""Writes the body of a message; raises :class:`MessageBodyError` as :func:`serialize` does."""


def serialize(message: object, names: str = AS_IS, content_type: str | None = None, types: Sequence[str] = ()) -> bytes:
    """The body of a message: compact JSON in UTF-8 without byte order mark, or XML according to the content type.

    ``message`` is a dataclass (or a class that maps like one), a dict or a list, of: those, ``None``, str, int, float,
    bool; Decimal as a number with all its digits, datetime as ISO text with ``T`` and ``Z`` or offset where aware, date,
    time, timedelta as TimeSpan text, UUID with dashes, Enum by value, bytes as base64. ``names="pascal_case"`` writes the
    members of classes as .NET spells them; keys of dicts are data and stay. XML follows NServiceBus, where an Enum has
    its name, a duration is ISO 8601, and the root is named by ``types``: the full names of the type and its base types.
    Raises :class:`MessageBodyError`, naming the place, for NaN, infinities and values without a form in JSON or XML.
    """
    return writer_for(names, content_type, types)(message)


def writer_for(names: str, content_type: str | None, types: Sequence[str]) -> Writer:
    """A function that works like :func:`serialize` with these arguments, which are evaluated only once."""
    if names not in NAMES:
        raise ValueError(f"names is {names!r}, expected one of {', '.join(NAMES)}")
    as_xml = is_xml(content_type)

    def write(message: object) -> bytes:
        kind: type = type(message)
        if kind is not dict and not is_mappable(kind) and not isinstance(message, (Mapping, list, tuple)):
            raise MessageBodyError(f"a body is a dataclass, a dict or a list; got {kind.__name__} ({message!r:.200})")
        try:
            if is_mappable(kind):
                _object_check(kind, as_xml)(message)
            return (write_xml(message, names, types) if as_xml else write_json(message, names)).encode("utf-8")
        except ConversionError as mismatch:
            raise MessageBodyError(f"the body of {kind.__qualname__} cannot be written: {mismatch}") from mismatch.__cause__
        except RecursionError:
            raise MessageBodyError(f"the body of {kind.__qualname__} is nested too deeply, or contains itself") from None
        except UnicodeEncodeError as error:
            raise MessageBodyError(
                f"the body of {kind.__qualname__} contains half of a surrogate pair ({error.object[error.start]!r})"
            ) from None

    return write


def deserialize(body: bytes, content_type: str | None, target: Any = None, names: str = AS_IS, default: str = _JSON) -> Any:
    """The message in a body: an instance of ``target``, or a dict by default.

    A content type that is neither JSON nor XML means ``default``, which is ``"json"`` or ``"xml"``, as the default
    serializer of an NServiceBus endpoint. JSON is in UTF-8, a byte order mark is accepted. XML must not have a document
    type; without ``target`` its values are text. ``target`` is a class of messages,
    ``dict``, or any type hint that :func:`serialize` supports. Members are found under their name or its Pascal, camel or
    snake spelling, in any case; unknown ones are ignored; missing ones take their default. An array of one object is
    read as the object (core 4 wrote that). In a dict, numbers with a fraction are Decimal, because a float loses cents,
    except for floats that :func:`serialize` wrote in a dict.

    Raises :class:`MessageBodyError`, naming type, member and value, for everything that does not fit, including ``null``,
    an empty body, JSON in UTF-16, and too deep nesting; :class:`SeveralMessages` for XML with several messages (see
    :func:`deserialize_element`). Raises :class:`MessageTypeError` if ``target`` cannot be mapped.
    """
    return body_reader(content_type, target, names, default)(body)


def body_reader(content_type: str | None, target: Any, names: str, default: str) -> Callable[[bytes], Any]:
    """A function that works like :func:`deserialize` for bodies of one content type; the arguments are evaluated only once."""
    hint = dict if target is None else target
    if is_xml(content_type, default):
        return functools.partial(_read_xml, hint, names)
    return _read_json_object if hint is dict else functools.partial(_read_json, hint, names)


def _read_xml(hint: Any, names: str, body: bytes) -> Any:
    with backtracking_budget(len(body)):
        try:
            found = decode_xml(body, hint)
        except ConversionError as mismatch:
            raise MessageBodyError(f"the body does not fit {_named(hint)}: {mismatch}") from None
        return _fitted(found, hint, names)


def _read_json(hint: Any, names: str, body: bytes) -> Any:
    found = _decode(body)
    with backtracking_budget(len(body)):
        return _fitted(found, hint, names)


def _read_json_object(body: bytes) -> dict[str, Any]:
    # The decoded value as it is, with no alternatives to try.
    found = _decode(body)
    return found if type(found) is dict else _fitted(found, dict, AS_IS)


def deserialize_element(element: Element, target: Any, names: str) -> Any:
    """The message in one of the elements of :func:`messages_in`; otherwise like :func:`deserialize`."""
    hint = dict if target is None else target
    with backtracking_budget(0):
        try:
            found = plain_of(element, hint)
        except ConversionError as mismatch:
            raise MessageBodyError(f"the body does not fit {_named(hint)}: {mismatch}") from None
        return _fitted(found, hint, names)


def _fitted(found: Any, hint: Any, names: str) -> Any:
    if found is None:
        raise MessageBodyError("the body is null; expected an object")
    if type(found) is list and (hint is dict or mapped_class(bare(hint)) is not None):
        found = _only_object(found)
    try:
        return _reader_for(hint, names)(found)
    except ConversionError as mismatch:
        raise MessageBodyError(f"the body does not fit {_named(hint)}: {mismatch}") from mismatch.__cause__
    except RecursionError:
        raise MessageBodyError("the body is nested too deeply") from None


def _only_object(found: list[Any]) -> Any:
    if not all(type(each) is dict for each in found):
        return found
    if len(found) == 1:
        return found[0]
    if found:
        raise MessageBodyError(
            f"the body holds several messages: expected an object, got an array of {len(found)}; let the sender send each by itself"
        )
    return found


@functools.lru_cache(maxsize=1000)
def _reader_of_class(kind: type, names: str) -> Reader:
    return reader_for(kind, names)


def _reader_for(hint: Any, names: str) -> Reader:
    # Handlers usually declare a class, which is hashable; other hints may not be.
    return _reader_of_class(hint, names) if type(hint) is type else reader_for(hint, names)


def media_type(content_type: str | None) -> str:
    """``Application/JSON; charset=utf-8`` → ``application/json``; ``None`` → the empty text."""
    return (content_type or "").partition(";")[0].strip().lower()


def type_names_in(body: bytes, content_type: str | None, default: str = _JSON) -> list[str]:
    """The type names in a body, which are only looked up, never imported: the ``$type`` of JSON, the root and base types of XML;
    empty without any. Raises :class:`MessageBodyError` for an unreadable body."""
    if is_xml(content_type, default):
        return [name for message in messages_in(body) for name in message.type_names]
    found = _decode(body)
    if type(found) is list and len(found) == 1:
        found = found[0]
    name = found.get("$type") if isinstance(found, dict) else None
    return resolve_enclosed(name) if isinstance(name, str) else []


def is_xml(content_type: str | None, default: str = _JSON) -> bool:
    """Whether bodies of a content type are XML; ``default`` decides for an unknown one."""
    return _SERIALIZERS.get(media_type(content_type), default) != _JSON


def _named(hint: Any) -> str:
    return getattr(hint, "__qualname__", str(hint))


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def number_in_dict(text: str) -> float | Decimal:
    """Parse a number with a fraction or exponent: a float in the form of `write_json`, else a Decimal with all digits."""
    if "e" in text and math.isfinite(number := float(text)) and float_in_dict(number) == text:
        return number
    return Decimal(text)


# json.loads() would create a decoder for each body.
_DECODER: Final = json.JSONDecoder(parse_float=number_in_dict, parse_constant=_refuse_constant)


def _decode(body: bytes) -> Any:
    raw = bytes(body)
    if not raw:
        raise MessageBodyError("the body is empty; expected a JSON object")
    if raw.startswith(_UTF_16) or b"\0" in raw[:4]:
        raise MessageBodyError("the body is UTF-16 or UTF-32 text, or not text; expected JSON in UTF-8")
    try:
        # not the codec utf-8-sig, which is written in Python and takes twice as long
        text = raw.decode("utf-8").removeprefix("\ufeff")
        found, end = _DECODER.raw_decode(text) if text[:1] == "{" else (None, -1)
        # Surrounding white space, or not an object: decode completely.
        return found if end == len(text) else _DECODER.decode(text)
    except UnicodeDecodeError as error:
        raise MessageBodyError(f"the body is not UTF-8: {error.reason} at byte {error.start}") from None
    except json.JSONDecodeError as error:
        start = f"; it starts with {raw[:20]!r}" if error.pos == 0 else ""
        raise MessageBodyError(f"the body is not JSON: {error}{start}") from None
    except RecursionError:
        raise MessageBodyError("the body is nested too deeply") from None
    except (ValueError, ArithmeticError) as error:
        raise MessageBodyError(f"the body holds a number that cannot be read: {error}") from None


# --- The check before a body is written: a handler with the same class can read it back -----------------------------------------

Check = Callable[[Any], object]
"""Raises :class:`ConversionError` for a value that does not fit its hint."""


@functools.lru_cache(maxsize=2048)
def _object_check(kind: Any, as_xml: bool) -> Check:
    """The check of an object of a class, or of an alias of a generic class, member by member.

    It runs no constructor, except for values of unions whose alternatives look alike.
    """
    try:
        members = [member for member in members_of(kind) if member.kept]
    except MessageTypeError:
        return _accept  # a class that this process can only send
    checks = [(each.name, *_member_check(each.hint, as_xml)) for each in members]
    may_have_more = keeps_undeclared(typing.get_origin(kind) or kind)

    def check(value: Any) -> None:
        if may_have_more and (more := value.model_extra):
            raise _ChangedError(
                f"{kind.__qualname__} does not declare {', '.join(more)}, which would be lost: declare every member"
            )
        for name, leaf, check_member in checks:
            if type(found := getattr(value, name)) is not leaf:
                at(f".{name}", check_member, found)

    return check if checks or may_have_more else _accept


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
    if typing.get_origin(hint) in (typing.Union, UnionType):
        return _naming(hint, _union_check(hint, as_xml))
    cls = mapped_class(hint)
    instances = () if cls is None or typing.is_typeddict(cls) else (cls,)
    leaf, check_items, is_array = _leaf(hint, as_xml), _items_check(hint, as_xml), array_items(hint) is not None

    def check(value: Any) -> None:
        if type(value) is leaf:
            return
        if isinstance(value, instances):
            _object_check(hint, as_xml)(value)
        elif check_items is not None and is_array and type(value) is list:
            check_items(value)
        else:
            found = read(decoded(write_json(value, AS_IS)))
            if as_xml:
                found = read(decoded_again(value, hint))
            if type(value) is hint and isinstance(value, Enum) and found is not value:
                raise _ChangedError(
                    f"{value} is read back as {found}, which is written as the same value: change one of the values"
                )
            if check_items is not None and isinstance(value, (tuple, Mapping)):
                check_items(value)

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
        return all(read(decoded_again(member, cls) if as_xml else decoded(write_json(member, AS_IS))) is member for member in cls)
    except ConversionError:
        return False


def _naming(hint: Any, check: Check) -> Check:
    """The check with an error that names the hint, unless the value does not fit further inside."""

    def check_and_name(value: Any) -> object:
        try:
            return check(value)
        except ConversionError as mismatch:
            if mismatch.path or isinstance(mismatch, _ChangedError):
                raise
        found = f"{type(value).__qualname__} ({value!r:.60})"
        raise ConversionError(f"expected {_named_hint(hint)}, got {found}: convert the value, or change the annotation")

    return check_and_name


def _named_hint(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and typing.get_origin(hint) is None else str(hint).replace("typing.", "")


def _items_check(hint: Any, as_xml: bool) -> Check | None:
    """The check of a list, tuple or dictionary item by item; None for a hint without items."""
    if (pair := mapping_items(hint)) is not None:
        leaf, check_value = _leaf(bare(pair[1]), as_xml), _check_for(pair[1], as_xml)
        return lambda values: [at(f"[{key!r}]", check_value, item) for key, item in values.items() if type(item) is not leaf]
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
            index, found = choose(decoded_again(value, hint) if as_xml else decoded(text))
        if index not in fitting and not _is_harmless(value, found):
            names = f"{_named_hint(kinds[fitting[0]])} is read back as {_named_hint(kinds[index])}"
            raise _ChangedError(f"{names} ({value!r:.60}): change the order of {_named_hint(hint)}, or the annotation")

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
    """The alternatives that match the Python type of a value: exactly, or else as a subclass."""
    exactly = [index for index, kind in enumerate(kinds) if _is_of(value, kind, exactly=True)]
    return exactly or [index for index, kind in enumerate(kinds) if _is_of(value, kind, exactly=False)]


def _is_of(value: Any, hint: Any, *, exactly: bool) -> bool:
    hint = bare(hint)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint in (Any, object) or isinstance(hint, typing.TypeVar):
        return True
    if origin is typing.Literal:
        return any(type(arg) is type(value) and arg == value for arg in args)
    if origin in (typing.Union, UnionType):
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
