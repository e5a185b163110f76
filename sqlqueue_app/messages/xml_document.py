"""An XML body as a tree of elements, and which messages it holds.

Parsed by expat, without document types: no entity is expanded, nothing is fetched. ElementTree would drop the declared namespaces,
which name the base types of a message.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final
from xml.parsers import expat

from sqlqueue_app.messages.errors import MessageBodyError

XSI: Final = "http://www.w3.org/2001/XMLSchema-instance"
_DEEPEST: Final = 100
# An element of a message has xsi:nil at most, and a namespace for each base type.
_MOST_ATTRIBUTES: Final = 1_000
# What expat puts between a namespace and a name; no URI holds it.
_SEPARATOR: Final = " "
_BASE_TYPE: Final = "baseType"
_WRAPPER: Final = "messages"

# XML 1.0 has no control characters. .NET writes and reads references to them, expat refuses those.
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
    """The text directly in it, to the letter."""

    @property
    def type_names(self) -> list[str]:
        """The names that it may have as a message: full name of its type, the same without namespace, then its base types."""
        space = self.namespace.rpartition("/")[2]
        names = [f"{space}.{self.name}"] if space else []
        return [*names, self.name, *self.base_types]

    @property
    def base_types(self) -> list[str]:
        """The full names of the base types that it declares."""
        return [uri for prefix, uri in self.declared.items() if prefix.startswith(_BASE_TYPE)]


def messages_in(body: bytes) -> list[Element]:
    """The elements of the messages in a body: the root, or the children of a root `Messages` (cores 3 and 4 wrote that).

    Never empty. Raises MessageBodyError for what is no XML, has a document type, is nested more than 100 deep, has an element with
    more than 1,000 attributes or namespaces, or is such a root without a message in it. Takes time in proportion to the body.
    """
    root = parse_xml(body)
    if root.name.lower() != _WRAPPER:
        return [root]
    if not root.children:
        raise MessageBodyError(f"the body holds 0 messages: its root {root.name!r} is empty; expected one message at least")
    return root.children


def parse_xml(body: bytes) -> Element:
    """The root element; raises MessageBodyError as `messages_in`."""
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
        # A ValueError of encodings with characters of several bytes, which expat does not read but for UTF-8 and UTF-16.
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
    """A reference to a character of private use, for one to a control character."""
    code = int(match[1], 16) if match[1] else int(match[2])
    return match[0] if code >= _CONTROLS or chr(code) in "\t\n\r" else b"&#%d;" % (_FIRST_STAND_IN + code)


def _refuse_doctype(*_: object) -> None:
    raise MessageBodyError("the body has a document type, which could name files and expand without end: no message needs one")


class _Builder:
    def __init__(self) -> None:
        self.document = Element("")
        self._open = [self.document]
        # Joined when an element ends: text in many pieces, between its children, would be copied for each of them.
        self._texts: list[list[str]] = [[]]
        self._declared: dict[str, str] = {}

    def declares(self, prefix: str | None, uri: str | None) -> None:
        self._declared[prefix or ""] = uri or ""

    def start(self, name: str, attributes: dict[str, str]) -> None:
        if len(self._open) > _DEEPEST:
            raise MessageBodyError(f"the body is nested too deeply: more than {_DEEPEST} elements inside of each other")
        if max(len(attributes), len(self._declared)) > _MOST_ATTRIBUTES:
            raise MessageBodyError(f"an element of the body has more than {_MOST_ATTRIBUTES} attributes or namespaces")
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
    """Of a document in which characters of private use stand for control characters."""

    def text(self, data: str) -> None:
        super().text(data.translate(_CONTROLS_OF))
