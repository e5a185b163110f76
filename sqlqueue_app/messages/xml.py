"""XML bodies in the form of the NServiceBus XML serializer: parsed safely, read as JSON-like values, written identically."""

from __future__ import annotations

import enum
import re
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from enum import Enum
from functools import lru_cache
from typing import Any, Final, NamedTuple
from uuid import UUID
from xml.parsers import expat

from sqlqueue_app.messages.errors import MessageBodyError, SeveralMessages
from sqlqueue_app.messages.json import (
    ConversionError,
    bool_text,
    bytes_text,
    date_text,
    datetime_text,
    decimal_text,
    float_text,
    integer_text,
    reader_for,
    time_text,
)
from sqlqueue_app.messages.times import format_iso_duration, format_timespan, parse_iso_duration
from sqlqueue_app.messages.type_hints import (
    AS_IS,
    MAPPINGS,
    PASCAL,
    Member,
    admits_none,
    alternatives,
    array_items,
    bare,
    exact_first,
    folded,
    is_mappable,
    is_optional,
    is_value_type,
    mapped_class,
    mapping_items,
    members_of,
    pascal,
    spend_budget,
)

XSI: Final = "http://www.w3.org/2001/XMLSchema-instance"
_MAX_DEPTH: Final = 100
# An element of a message has at most xsi:nil, and a namespace for each base type.
_MAX_ATTRIBUTES: Final = 1_000
# The separator between namespace and name in expat; it cannot occur in a URI.
_SEPARATOR: Final = " "
_BASE_TYPE: Final = "baseType"
_WRAPPER: Final = "messages"

# XML 1.0 has no control characters. .NET writes and reads references to them, but expat rejects those.
_BAD_REFERENCE: Final = expat.errors.codes[expat.errors.XML_ERROR_BAD_CHAR_REF]
_CONTROL: Final = re.compile(rb"&#(?:x0*([0-9A-Fa-f]{1,2})|0*([0-9]{1,2}));")
_CONTROLS: Final = 0x20
_FIRST_STAND_IN: Final = 0xF0000
_CONTROLS_OF: Final = {_FIRST_STAND_IN + code: code for code in range(_CONTROLS)}


@dataclass(slots=True)
class Element:
    """An element: its name without prefix, its namespace ("" for none), the namespaces that it declares by prefix."""

    name: str
    namespace: str = ""
    declared: dict[str, str] = field(default_factory=dict)
    is_nil: bool = False
    children: list[Element] = field(default_factory=list)
    text: str = ""
    """The unmodified text directly in it."""

    @property
    def type_names(self) -> list[str]:
        """Its possible names as a message: the full name of its type, the same without namespace, then its base types."""
        space = self.namespace.rpartition("/")[2]
        names = [f"{space}.{self.name}"] if space else []
        return [*names, self.name, *self.base_types]

    @property
    def base_types(self) -> list[str]:
        """The full names of the base types that it declares."""
        return [uri for prefix, uri in self.declared.items() if prefix.startswith(_BASE_TYPE)]


def messages_in(body: bytes) -> list[Element]:
    """The elements of the messages in a body: the root, or the children of a root `Messages` (cores 3 and 4 wrote that).

    Never empty. Raises MessageBodyError for text that is not XML, a document type, more than 100 levels, more than 1,000
    attributes or namespaces in an element, and such a root without messages. Takes time in proportion to the size of the body.
    """
    root = parse_xml(body)
    if root.name.lower() != _WRAPPER:
        return [root]
    if not root.children:
        raise MessageBodyError(f"the body holds 0 messages: its root {root.name!r} is empty; expected one message at least")
    return root.children


def parse_xml(body: bytes) -> Element:
    """Parse the root element. Raises MessageBodyError like `messages_in`."""
    if not body:
        raise MessageBodyError("the body is empty; expected an XML document")
    raw = bytes(body)
    try:
        try:
            return _parse(raw, _Builder())
        except expat.ExpatError as error:
            if error.code != _BAD_REFERENCE or b"<![CDATA[" in raw:
                raise
            return _parse(_CONTROL.sub(_stand_in, raw), _BuilderOfControls())
    except expat.ExpatError as error:
        raise MessageBodyError(f"the body is not XML: {error}; it starts with {raw[:20]!r}") from None
    except MessageBodyError:
        raise
    except (LookupError, ValueError) as error:
        # ValueError: a multi-byte encoding, of which expat supports only UTF-8 and UTF-16.
        raise MessageBodyError(f"the body declares an encoding that cannot be read: {str(error)[:200]}") from None


def _parse(body: bytes, builder: _Builder) -> Element:
    parser = expat.ParserCreate(namespace_separator=_SEPARATOR)
    parser.buffer_text = True
    parser.StartDoctypeDeclHandler = _refuse_doctype
    parser.StartNamespaceDeclHandler = builder.declares
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.text
    parser.Parse(body, True)
    return builder.document.children[0]


def _stand_in(match: re.Match[bytes]) -> bytes:
    """Replace a reference to a control character by one to a private-use character."""
    code = int(match[1], 16) if match[1] else int(match[2])
    return match[0] if code >= _CONTROLS or chr(code) in "\t\n\r" else b"&#%d;" % (_FIRST_STAND_IN + code)


def _refuse_doctype(*_: object) -> None:
    raise MessageBodyError("the body has a document type, which could refer to files and expand without limit: send it without one")


class _Builder:
    def __init__(self) -> None:
        self.document = Element("")
        self._open = [self.document]
        # Joined at the end of the element: otherwise text in many pieces would be copied for each piece.
        self._texts: list[list[str]] = [[]]
        self._declared: dict[str, str] = {}

    def declares(self, prefix: str | None, uri: str | None) -> None:
        self._declared[prefix or ""] = uri or ""

    def start(self, name: str, attributes: dict[str, str]) -> None:
        if len(self._open) > _MAX_DEPTH:
            raise MessageBodyError(f"the body is nested too deeply: more than {_MAX_DEPTH} levels of elements")
        if max(len(attributes), len(self._declared)) > _MAX_ATTRIBUTES:
            raise MessageBodyError(f"an element of the body has more than {_MAX_ATTRIBUTES} attributes or namespaces")
        namespace, _, local = name.rpartition(_SEPARATOR)
        nil = attributes.get(f"{XSI}{_SEPARATOR}nil", "").strip() in ("true", "1")
        element = Element(local, namespace, self._declared, nil)
        self._declared = {}
        self._open[-1].children.append(element)
        self._open.append(element)
        self._texts.append([])

    def end(self, _name: str) -> None:
        self._open.pop().text = "".join(self._texts.pop())

    def text(self, data: str) -> None:
        self._texts[-1].append(data)


class _BuilderOfControls(_Builder):
    """Builds a document in which private-use characters replace control characters."""

    def text(self, data: str) -> None:
        super().text(data.translate(_CONTROLS_OF))


# Python converts no longer text to int by default.
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,4300}")
_NULL_TEXT: Final = "\n"
_NO_NUMBERS: Final = {"NaN": "NaN", "INF": "Infinity", "-INF": "-Infinity"}
_BOOLS: Final = {"true": True, "1": True, "false": False, "0": False}
# The namespace of a member of type object gives its actual type.
_NET_TYPES: Final[dict[str, Any]] = {
    "Boolean": bool, "Byte": int, "SByte": int, "Int16": int, "UInt16": int, "Int32": int, "UInt32": int, "Int64": int,
    "UInt64": int, "Single": float, "Double": float, "Decimal": Decimal, "TimeSpan": timedelta,
}  # fmt: skip


def decode_xml(body: bytes, hint: Any) -> Any:
    """Convert the body to the form of decoded JSON, for a reader of `hint`; without types (dict) all values but nil are text.

    XML has no types: only the class of the message defines the type of `<Quantity>2</Quantity>`. So this step uses the type
    hints, and the JSON reader does the rest, with its errors that name the place (docs/internals/wire.md#bodies).

    Raises MessageBodyError for text that is not XML, and its subclass SeveralMessages for several messages in one body.
    """
    messages = messages_in(body)
    if len(messages) != 1:
        raise SeveralMessages(f"the body holds {len(messages)} messages; expected one: let the sender send each by itself")
    return plain_of(messages[0], hint)


def plain_of(element: Element, hint: Any) -> Any:
    """The value of an element in the form of decoded JSON, according to the hint; values that do not fit stay text."""
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
    """Whether a type has a value for an element without content, as text and lists do."""
    return kind in (str, bytes) or array_items(kind) is not None or mapping_items(kind) is not None


def _is_null(text: str, kinds: tuple[Any, ...]) -> bool:
    """Whether .NET reads null: for a value type, no text, white space or the word null; for an object, no text.

    Text and lists may be empty. White space is an object without members; if its class requires values, a null in a list.
    """
    if all(map(is_value_type, kinds)):
        return text.strip().lower() in ("", "null")
    classes = [kind for kind in kinds if mapped_class(kind) is not None]
    if len(classes) < len(kinds):
        return False
    return not text or (text.isspace() and all(_object_hints(kind).requires_values for kind in classes))


def _first_that_fits(element: Element, kinds: tuple[Any, ...]) -> Any:
    for index in _order(element, kinds):
        try:
            found = _value(element, kinds[index])
            reader_for(kinds[index], PASCAL)(found)
        except ConversionError:
            spend_budget()
            continue
        return found
    return _untyped(element)


def _order(element: Element, kinds: tuple[Any, ...]) -> Sequence[int]:
    """The order in which to try the alternatives of a union."""
    if not element.children:
        text = element.text.strip()
        return exact_first(kinds)(0 if _INTEGER.fullmatch(text) else _number(text))
    if any(array_items(kind) is not None for kind in kinds):
        return range(len(kinds))  # the children may be items of any name
    return exact_first(kinds)({child.name: child for child in element.children})


def _value(element: Element, kind: Any) -> Any:
    if (items := array_items(kind)) is not None:
        return [_item(child, items[min(index, len(items) - 1)]) for index, child in enumerate(element.children)]
    if (pair := mapping_items(kind)) is not None:
        return _mapping(element, *pair)
    if typing.get_origin(kind) is typing.Literal:
        return next((arg for arg in typing.get_args(kind) if _literal_text(arg) == element.text), element.text)
    if isinstance(kind, type) and (kind in _SCALARS or issubclass(kind, enum.Enum)):
        return _untyped(element) if element.children else _scalar(element.text, kind)
    if kind in MAPPINGS:
        return _collected([(child.name, _untyped(child)) for child in element.children])
    return _untyped(element) if mapped_class(kind) is None else _object(element, kind)


def _literal_text(arg: Any) -> str:
    return bool_text(arg) if type(arg) is bool else str(arg)


def _item(element: Element, hint: Any) -> Any:
    """An item of a list. .NET writes a line break for a null among texts."""
    is_null = element.text == _NULL_TEXT and not element.children and is_optional(bare(hint)) and alternatives(bare(hint)) == (str,)
    return None if is_null else plain_of(element, hint)


def _object(element: Element, kind: Any) -> dict[str, Any]:
    hints = _object_hints(kind)
    # As in .NET, a value without content counts as missing and keeps its default.
    children = [each for each in element.children if each.children or each.text or folded(each.name) not in hints.defaults]
    found = _collected([(child.name, plain_of(child, hints.by_folded.get(folded(child.name), Any))) for child in children])
    if hints.nullable:
        # As in .NET, a null reference is omitted.
        given = set(map(folded, found))
        found.update((each.name, None) for each in hints.nullable if given.isdisjoint(map(folded, each.names)))
    return found


class _ObjectHints(NamedTuple):
    """The hints of a class by folded name, and what a body may leave out."""

    by_folded: dict[str, Any]
    defaults: frozenset[str]
    """The folded names of value types with a default."""
    nullable: tuple[Member, ...]
    """The members without a default that may be None."""
    requires_values: bool


@lru_cache(maxsize=2048)
def _object_hints(kind: Any) -> _ObjectHints:
    members = members_of(kind)
    required = [each for each in members if each.required]
    nullable = tuple(each for each in required if admits_none(each.hint))
    values = [each for each in members if not each.required and is_value_type(bare(each.hint))]
    return _ObjectHints(
        {folded(name): each.hint for each in members for name in each.aliases} | {folded(each.name): each.hint for each in members},
        frozenset(folded(name) for each in values for name in each.names),
        nullable,
        len(nullable) < len(required),
    )


def _collected(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The pairs as a dict; a repeated name has a list of its values."""
    found: dict[str, list[Any]] = {}
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return {name: values[0] if len(values) == 1 else values for name, values in found.items()}


def _mapping(element: Element, key_hint: Any, item_hint: Any) -> dict[Any, Any]:
    """Read a mapping from elements with a Key and a Value each, regardless of their name."""
    found = {}
    for entry in element.children:
        parts = {folded(part.name): part for part in entry.children}
        if "key" not in parts:
            raise ConversionError(f"expected an entry with Key and Value, got the element {entry.name!r}")
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
    return _SCALARS.get(kind, str)(text)


def _integer(text: str) -> Any:
    try:
        return int(text) if _INTEGER.fullmatch(text.strip()) else text
    except ValueError:  # a lower limit is set
        return text


def _float(text: str) -> Any:
    return _NO_NUMBERS.get(text.strip()) or _number(text)


def _number(text: str) -> Any:
    try:
        number = Decimal(text.strip())
    except InvalidOperation:
        return text
    # A signaling NaN raises in comparisons, and NaN is not a valid number in a body.
    return text if number.is_nan() else number


def _duration(text: str) -> str:
    try:
        return format_timespan(parse_iso_duration(text))
    except ValueError:
        return text


_SCALARS: Final[dict[Any, Callable[[str], Any]]] = {
    str: str,
    bytes: str.strip,
    bool: lambda text: _BOOLS.get(text.strip(), text),
    int: _integer,
    float: _float,
    Decimal: _number,
    timedelta: _duration,
    datetime: str.strip,
    date: str.strip,
    time: str.strip,
    UUID: str.strip,
}


_NAMESPACE: Final = "http://tempuri.net/"
_XSD: Final = "http://www.w3.org/2001/XMLSchema"
# NServiceBus writes a line break into an element with neither content nor attributes.
_NOTHING: Final = "\n"
_INT32: Final = range(-(2**31), 2**31)
_NAME: Final = re.compile(r"[^\W\d][\w.\-]*")
# The innermost type arguments, such as `2[[System.Int32],[Shop.Order]].
_ARGUMENTS: Final = re.compile(r"`[0-9]+\[\[([^\[\]]+(?:\],\[[^\[\]]+)*)\]\]")
# Characters that XML 1.0 does not allow, not even escaped.
_NO_CHARACTER: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_ESCAPES: Final = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "\r": "&#xD;"})


def write_xml(value: Any, names: str, types: Sequence[str]) -> str:
    """The document of a message, as written by the XML serializer of NServiceBus 6 and later (docs/internals/wire.md#bodies).

    `types` are the full names of its type and its base types, `names` spells members of classes: "pascal_case" for .NET.
    Raises ConversionError for values that XML or .NET cannot represent. May raise RecursionError for infinitely nested values.
    """
    if not types:
        raise ConversionError(
            "XML needs a message type, which names the root element: send a registered class, or a type name and a body"
        )
    space, _, full = _without_arguments(types[0]).rpartition(".")
    root = full.rpartition("+")[2]
    _check_name(root)
    bases = "".join(f' xmlns:baseType{index or ""}="{_attribute(base)}"' for index, base in enumerate(types[1:]))
    start = f'<{root} xmlns:xsi="{XSI}" xmlns:xsd="{_XSD}"{bases} xmlns="{_NAMESPACE}{_attribute(space)}">'
    out: list[str] = ['<?xml version="1.0"?>', start]
    _Writer(names != AS_IS, out).members(value)
    out.append(f"</{root}>")
    return "".join(out)


def _without_arguments(name: str) -> str:
    """The name of a type as NServiceBus writes it in XML: ``Shop.Envelope`1[[Shop.Order]]`` → ``Shop.EnvelopeOfOrder``."""
    while (found := _ARGUMENTS.search(name)) is not None:
        plain = "And".join(re.split(r"[.+]", each)[-1] for each in found[1].split("],["))
        name = f"{name[: found.start()]}Of{plain}{name[found.end() :]}"
    return name


def decoded_again(value: Any, hint: Any) -> Any:
    """The value of a member as its reader will get it from XML, in the form of decoded JSON. Raises the errors of both steps."""
    out: list[str] = []
    _Writer(False, out).entry("Value", value, hint)
    root = parse_xml(f'<Root xmlns:xsi="{XSI}">{"".join(out)}</Root>'.encode())
    return plain_of(root.children[0], hint) if root.children else None


class _Writer:
    def __init__(self, as_pascal: bool, out: list[str]) -> None:
        self._as_pascal = as_pascal
        self._out = out

    def members(self, value: Any, alias: Any = None) -> bool:
        """Write the members of an object; returns whether there were any. `alias` adds the type arguments of a generic class."""
        kind: type = type(value)
        if isinstance(value, Mapping):
            return self._all((_key(name), f"[{name!r}]", item, Any) for name, item in value.items())
        if not is_mappable(kind):
            raise ConversionError(f"{kind.__name__} cannot be written as XML ({value!r:.200}); make it a dataclass, a dict or text")
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
                raise ConversionError(f"two members would both be written as {name!r}; rename one of them")
            seen.add(name)
            try:
                self.entry(name, item, hint)
            except ConversionError as mismatch:
                mismatch.path.append(step)
                raise
        return len(self._out) > before

    def entry(self, name: str, value: Any, hint: Any) -> None:
        if value is None:
            # A null is written for a value type and omitted for a reference.
            if is_optional(bare(hint)) and all(map(is_value_type, alternatives(bare(hint)))):
                self._out.append(f'<{name} xsi:nil="true"></{name}>')
        else:
            self._element(name, value, hint)

    def _element(self, name: str, value: Any, hint: Any) -> None:
        _check_name(name)
        write = _WRITTEN_SCALARS.get(type(value))
        if write is not None:
            self._out.append(f"<{name}>{write(value)}</{name}>")
            return
        value = _as_declared(value, hint)
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
            name = _type_name(_as_declared(item, hint) if item is not None else next(iter(alternatives(hint))))
            try:
                if item is None:
                    self._null_item(name, alternatives(hint))
                else:
                    self._element(name, item, hint)
            except ConversionError as mismatch:
                mismatch.path.append(f"[{index}]")
                raise
        return index >= 0

    def _null_item(self, name: str, kinds: tuple[Any, ...]) -> None:
        if all(map(is_value_type, kinds)):
            self._out.append(f"<{name}>null</{name}>")
        elif all(kind is str or (mapped_class(kind) is not None and _object_hints(kind).requires_values) for kind in kinds):
            self._out.append(f"<{name}>{_NOTHING}</{name}>")  # as in .NET
        else:  # without content it would be an empty object, list or text
            self._out.append(f'<{name} xsi:nil="true">{_NOTHING}</{name}>')

    def _pairs(self, values: Mapping[Any, Any], key_hint: Any, item_hint: Any) -> bool:
        entry = f"KeyValuePairOf{_type_name(bare(key_hint))}And{_type_name(alternatives(bare(item_hint))[0])}"
        for key, item in values.items():
            self._out.append(f"<{entry}>")
            try:
                self._element("Key", key, key_hint)
                self.entry("Value", item, item_hint)
            except ConversionError as mismatch:
                mismatch.path.append(f"[{key!r}]")
                raise
            self._out.append(f"</{entry}>")
        return bool(values)


def _as_declared(value: Any, hint: Any) -> Any:
    """The value of an enum member whose hint is another type, such as int; any other value is returned unchanged."""
    if not isinstance(value, Enum):
        return value
    named = any(
        kind in (Any, object)
        or isinstance(kind, typing.TypeVar)
        or typing.get_origin(kind) is typing.Literal
        or (isinstance(kind, type) and issubclass(kind, Enum) and isinstance(value, kind))
        for kind in alternatives(bare(hint))
    )
    return value if named else value.value


def _text_of(value: Any) -> str | None:
    """The escaped text of a single value; None for a composite one."""
    if isinstance(value, Enum):
        # .NET identifies enum members by name, flags with an unnamed bit by number; an enum with text values is not an enum there.
        name = value.name if value.name and not value.name.rpartition("|")[2].isdigit() else str(value.value)
        return _escaped(value.value if isinstance(value.value, str) else name.replace("|", ", "))
    write = _WRITTEN_SCALARS.get(type(value)) or next(
        (write for kind, write in _WRITTEN_SCALARS.items() if isinstance(value, kind)), None
    )
    return None if write is None else write(value)


def _escaped(text: str) -> str:
    if (found := _NO_CHARACTER.search(text)) is not None:
        raise ConversionError(f"XML cannot hold the character {found.group()!r}; send it as bytes, or as JSON")
    return str(text).translate(_ESCAPES)


def _attribute(text: str) -> str:
    return _escaped(text).replace('"', "&quot;")


def _duration_text(value: timedelta) -> str:
    try:
        return format_iso_duration(value)
    except ValueError as error:
        raise ConversionError(str(error)) from None


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise ConversionError(f"the key {key!r} is {type(key).__name__}; expected str: it becomes the name of an element")
    return key


@lru_cache(maxsize=1024)
def _is_name(text: str) -> bool:
    """Whether readers take the text for the name of an element. Which letters and digits beyond ASCII XML allows, expat knows."""
    if not _NAME.fullmatch(text):
        return False
    try:
        return text.isascii() or bool(expat.ParserCreate().Parse(f"<{text}/>".encode(), True))
    except expat.ExpatError:
        return False


def _check_name(name: str) -> None:
    if not _is_name(name):
        raise ConversionError(f"{name!r} cannot be the name of an XML element; expected letters, digits, '_', '.' and '-'")


def _type_name(found: Any) -> str:
    """The .NET name of a type, or of the type of a value."""
    if type(found) is int:
        return "Int32" if found in _INT32 else "Int64"
    kind = found if isinstance(found, type) else typing.get_origin(found) or type(found)
    for base, name in _TYPE_NAMES.items():
        if issubclass(kind, base) and not issubclass(kind, Enum):
            return name
    return kind.__name__ if _is_name(kind.__name__) else "Item"


_WRITTEN_SCALARS: Final[dict[type, Callable[[Any], str]]] = {
    str: _escaped,
    bool: bool_text,
    int: integer_text,
    float: float_text,
    Decimal: decimal_text,
    datetime: datetime_text,
    date: date_text,
    time: time_text,
    timedelta: _duration_text,
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
