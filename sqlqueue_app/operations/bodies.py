"""Message bodies for people: JSON and XML indented, other text as it is, everything else as a hex dump. Nothing is executed."""

from __future__ import annotations

import codecs
import enum
import json
import re
import uuid
from dataclasses import dataclass
from typing import Any, Final

from sqlqueue_app.messages.serializers import is_xml
from sqlqueue_app.operations.xml_text import NotPlainXml, indent_xml

_UTF_16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
# What no text holds: control characters but for tab, line feed, form feed and carriage return.
_CONTROL: Final = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f]")
_BYTES_PER_LINE: Final = 16
# Every level indents all that is below it: 64 KiB of brackets would become gigabytes of spaces.
_DEEPEST: Final = 50


class BodyKind(enum.StrEnum):
    """How a body is shown."""

    JSON = "json"
    XML = "xml"
    TEXT = "text"
    HEX = "hex"
    EMPTY = "empty"
    NULL = "null"


@dataclass(frozen=True, slots=True)
class DecodedBody:
    """A body as text. `size` is the number of bytes in the table; `shown_bytes` as many of them are shown, from the start."""

    kind: BodyKind
    text: str
    size: int
    shown_bytes: int

    @property
    def is_cut(self) -> bool:
        """Whether there is more than is shown."""
        return self.shown_bytes < self.size


def decode_body(body: bytes | None, size: int | None, content_type: str | None, *, as_hex: bool = False) -> DecodedBody:
    """The body, of which `body` is the beginning and `size` the length in bytes. Never raises.

    Only a whole body is indented: a part of JSON or XML is shown as text. What is not laid out to the letter otherwise (a name that
    comes twice, a document type) is shown as text, too, so that nothing is hidden. With `as_hex` any body is shown as its bytes.
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
    """The body as text, or None if it is none. The cut may have gone through a character: its bytes are left out."""
    encoding = "utf-16" if body.startswith(_UTF_16) else "utf-8-sig"
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(body, final=whole)
    except UnicodeDecodeError:
        return None
    return None if _CONTROL.search(text) else text


def indent_json(text: str) -> str | None:
    """The JSON document indented, every number to the letter; None for what is no JSON, or would lose something."""
    # Numbers go through the encoder as strings with a mark that nobody can know, so that 1.10 does not become 1.1.
    mark = uuid.uuid4().hex

    def keep(number: str) -> str:
        return f"{mark}{number}{mark}"

    try:
        found = json.loads(text, object_pairs_hook=_unique, parse_float=keep, parse_int=keep, parse_constant=keep)
        if _is_deep(found):
            return None
        pretty = _dump(found)
    except (ValueError, RecursionError):
        return None
    return re.sub(f'"{mark}([^"]*){mark}"', r"\1", pretty)


def _dump(found: Any) -> str:
    pretty = json.dumps(found, indent=2, ensure_ascii=False)
    try:
        pretty.encode("utf-8")
    except UnicodeEncodeError:
        # Half of a surrogate pair: no page could carry it, so it stays an escape.
        return json.dumps(found, indent=2)
    return pretty


def _is_deep(document: Any) -> bool:
    level = [document]
    for _ in range(_DEEPEST):
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
        raise ValueError("a name comes twice")
    return found


def hex_dump(body: bytes) -> str:
    """Offset, sixteen bytes and their ASCII letters a line."""
    lines = []
    for start in range(0, len(body), _BYTES_PER_LINE):
        part = body[start : start + _BYTES_PER_LINE]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{start:08x}  {part.hex(' '):<{_BYTES_PER_LINE * 3 - 1}}  {letters}")
    return "\n".join(lines)
