"""Bodies: convert between the bytes of a message and the object that a handler receives.

The content type selects the format: XML for its own types, JSON for all others, as in NServiceBus receivers with unknown types.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, NoReturn

from sqlqueue_app.messages.errors import MessageBodyError
from sqlqueue_app.messages.json import ConversionError, Reader, float_in_dict, reader_for, write_json
from sqlqueue_app.messages.read_back import object_check
from sqlqueue_app.messages.type_hints import AS_IS, NAMES, backtracking_budget, bare, is_mappable, mapped_class
from sqlqueue_app.messages.types import resolve_enclosed
from sqlqueue_app.messages.xml import Element, decode_xml, messages_in, plain_of, write_xml

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


def writer_for(names: str = AS_IS, content_type: str | None = None, types: Sequence[str] = ()) -> Writer:
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
                object_check(kind, as_xml)(message)
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


def body_reader(content_type: str | None, target: Any = None, names: str = AS_IS, default: str = _JSON) -> Callable[[bytes], Any]:
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


def deserialize_element(element: Element, target: Any = None, names: str = AS_IS) -> Any:
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
    if type(found) is list and _wants_object(hint):
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


def _wants_object(hint: Any) -> bool:
    return hint is dict or mapped_class(bare(hint)) is not None


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
        raise MessageBodyError("the body is UTF-16 or UTF-32 text, or no text; expected JSON in UTF-8")
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
