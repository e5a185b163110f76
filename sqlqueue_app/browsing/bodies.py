"""Format message bodies for people: JSON and XML indented, other text as is, anything else as a hex dump.

Bodies are untrusted: nothing is executed, no entity is expanded, no file is fetched.
"""

from __future__ import annotations

import codecs
import json
import re
import uuid
from dataclasses import dataclass, field
from typing import Any, Final
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

from django.db.models import TextChoices
from django.utils.translation import gettext_lazy

from sqlqueue_app.messages.serializers import is_xml

_UTF_16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
# Control characters that no text contains: all but tab, line feed, form feed and carriage return.
_CONTROL: Final = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f]")
_BYTES_PER_LINE: Final = 16
# Each level indents everything below it: 64 KiB of brackets would become gigabytes of spaces.
_MAX_DEPTH: Final = 50


class BodyKind(TextChoices):
    """The form in which a body is shown."""

    JSON = "json", gettext_lazy("JSON, indented")
    XML = "xml", gettext_lazy("XML, indented")
    TEXT = "text", gettext_lazy("text")
    HEX = "hex", gettext_lazy("bytes in hexadecimal")
    EMPTY = "empty", gettext_lazy("empty")
    NULL = "null", gettext_lazy("NULL")


@dataclass(frozen=True, slots=True)
class DecodedBody:
    """A body as text. `size` is its length in the table in bytes, `shown_bytes` the length of the part shown."""

    kind: BodyKind
    text: str
    size: int
    shown_bytes: int

    @property
    def is_cut(self) -> bool:
        return self.shown_bytes < self.size


def decode_body(body: bytes | None, size: int | None, content_type: str | None, *, as_hex: bool = False) -> DecodedBody:
    """Decode a body of `size` bytes, of which `body` is the beginning. Never raises.

    Only a complete body is indented. A document that indenting would change (duplicate names, a document type) is shown as plain
    text, so that nothing is hidden. `as_hex` forces a hex dump.
    """
    if body is None:
        return DecodedBody(BodyKind.NULL, "", 0, 0)
    total = max(size or 0, len(body))
    if not body:
        return DecodedBody(BodyKind.EMPTY, "", total, 0)
    if as_hex:
        return DecodedBody(BodyKind.HEX, hex_dump(body), total, len(body))
    kind, text = _decode(body, content_type, whole=len(body) == total)
    return DecodedBody(kind, text, total, len(body))


def _decode(body: bytes, content_type: str | None, *, whole: bool) -> tuple[BodyKind, str]:
    text = _text(body, whole=whole)
    if text is None:
        return BodyKind.HEX, hex_dump(body)
    if whole:
        if is_xml(content_type) or text.lstrip().startswith("<"):
            try:
                return BodyKind.XML, indent_xml(text)
            except NotPlainXml:
                return BodyKind.TEXT, text
        pretty = indent_json(text)
        if pretty is not None:
            return BodyKind.JSON, pretty
    return BodyKind.TEXT, text


def _text(body: bytes, *, whole: bool) -> str | None:
    """Decode as text; None if it is not text. A character that the cut split is left out."""
    encoding = "utf-16" if body.startswith(_UTF_16) else "utf-8-sig"
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(body, final=whole)
    except UnicodeDecodeError:
        return None
    return None if _CONTROL.search(text) else text


def indent_json(text: str) -> str | None:
    """Indent a JSON document, numbers unchanged; None if it is not JSON or would lose something."""
    # Numbers pass the encoder as strings with an unguessable mark, so that 1.10 does not become 1.1.
    mark = uuid.uuid4().hex

    def keep(number: str) -> str:
        return f"{mark}{number}{mark}"

    try:
        found = json.loads(text, object_pairs_hook=_unique, parse_float=keep, parse_int=keep, parse_constant=keep)
        if _is_deep(found):
            return None
        pretty = json.dumps(found, indent=2, ensure_ascii=False)
        if re.search("[\ud800-\udfff]", pretty):
            # A lone surrogate cannot be encoded, so it stays escaped.
            pretty = json.dumps(found, indent=2)
    except (ValueError, RecursionError):
        return None
    return re.sub(f'"{mark}([^"]*){mark}"', r"\1", pretty)


def _is_deep(document: Any) -> bool:
    level = [document]
    for _ in range(_MAX_DEPTH):
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return False
    return True


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("duplicate name")
    return found


def hex_dump(body: bytes) -> str:
    """Lines of offset, sixteen bytes and their ASCII characters."""
    lines = []
    for start in range(0, len(body), _BYTES_PER_LINE):
        part = body[start : start + _BYTES_PER_LINE]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{start:08x}  {part.hex(' '):<{_BYTES_PER_LINE * 3 - 1}}  {letters}")
    return "\n".join(lines)


_INDENT = "  "


class NotPlainXml(ValueError):
    """The text is not XML, has a document type, or is nested too deeply to indent."""


class _Markup(str):
    """A comment, processing instruction or declaration: not text content."""

    __slots__ = ()


@dataclass(slots=True)
class _Element:
    start: str
    name: str
    children: list[_Element | str] = field(default_factory=list)

    def has_text(self) -> bool:
        return any(isinstance(child, str) and not isinstance(child, _Markup) and child.strip() for child in self.children)


def indent_xml(text: str) -> str:
    """Put each element without text on a line of its own; texts, prefixes and comments stay. Raises NotPlainXml."""
    builder = _XmlTreeBuilder()
    # The declared encoding refers to the original bytes; this is already text.
    parser = expat.ParserCreate(encoding="utf-8")
    parser.buffer_text = True
    parser.ordered_attributes = True
    parser.StartDoctypeDeclHandler = _refuse_doctype
    parser.XmlDeclHandler = builder.declaration
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.text
    parser.CommentHandler = builder.comment
    parser.ProcessingInstructionHandler = builder.instruction
    try:
        parser.Parse(text.encode("utf-8"), True)
    except (expat.ExpatError, UnicodeEncodeError) as error:
        raise NotPlainXml(str(error)) from error
    lines: list[str] = []
    for child in builder.root.children:
        _write(child, 0, lines)
    return "\n".join(lines)


def _refuse_doctype(*_: object) -> None:
    raise NotPlainXml("a document type could refer to files and expand without limit")


class _XmlTreeBuilder:
    def __init__(self) -> None:
        self.root = _Element("", "")
        self._open = [self.root]

    def declaration(self, version: str, encoding: str | None, standalone: int) -> None:
        text = f'<?xml version="{version}"' + (f' encoding="{encoding}"' if encoding else "")
        if standalone >= 0:
            text += f' standalone="{"yes" if standalone else "no"}"'
        self.root.children.append(_Markup(text + "?>"))

    def start(self, name: str, attributes: list[str]) -> None:
        if len(self._open) > _MAX_DEPTH:
            raise NotPlainXml(f"nested more than {_MAX_DEPTH} deep")
        pairs = zip(attributes[::2], attributes[1::2], strict=True)
        element = _Element(name + "".join(f" {key}={quoteattr(value)}" for key, value in pairs), name)
        self._open[-1].children.append(element)
        self._open.append(element)

    def end(self, _name: str) -> None:
        self._open.pop()

    def text(self, data: str) -> None:
        self._open[-1].children.append(escape(data))

    def comment(self, data: str) -> None:
        self._open[-1].children.append(_Markup(f"<!--{data}-->"))

    def instruction(self, target: str, data: str) -> None:
        self._open[-1].children.append(_Markup(f"<?{target} {data}?>"))


def _write(child: _Element | str, depth: int, lines: list[str]) -> None:
    indent = _INDENT * depth
    if isinstance(child, str):
        if child.strip():
            lines.append(indent + child.strip())
    elif child.has_text() or not child.children:
        lines.append(indent + _inline(child))
    else:
        lines.append(f"{indent}<{child.start}>")
        for inner in child.children:
            _write(inner, depth + 1, lines)
        lines.append(f"{indent}</{child.name}>")


def _inline(child: _Element | str) -> str:
    if isinstance(child, str):
        return child
    if not child.children:
        return f"<{child.start}/>"
    return f"<{child.start}>{''.join(_inline(inner) for inner in child.children)}</{child.name}>"
