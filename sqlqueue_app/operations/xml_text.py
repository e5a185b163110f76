"""XML indented for reading. Documents with a document type or entities are refused, so nothing is fetched and nothing expanded."""

from __future__ import annotations

from dataclasses import dataclass, field
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

_INDENT = "  "
# Every level indents all that is below it.
_DEEPEST = 50


class NotPlainXml(ValueError):
    """The text is no XML, or has a document type, or is nested too deeply to be indented."""


class _Markup(str):
    """A comment, an instruction or the declaration: no text of the document."""

    __slots__ = ()


@dataclass(slots=True)
class _Element:
    start: str
    name: str
    children: list[_Element | str] = field(default_factory=list)

    def has_text(self) -> bool:
        return any(isinstance(child, str) and not isinstance(child, _Markup) and child.strip() for child in self.children)


def indent_xml(text: str) -> str:
    """The document with one element a line; an element that holds text stays on one line, with its text to the letter.

    Prefixes, attributes and comments stay as they were written. Raises NotPlainXml.
    """
    builder = _Builder()
    # The declared encoding is that of the bytes; here is text already.
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
    raise NotPlainXml("a document type could name files and expand without end")


class _Builder:
    def __init__(self) -> None:
        self.root = _Element("", "")
        self._open = [self.root]

    def declaration(self, version: str, encoding: str | None, standalone: int) -> None:
        text = f'<?xml version="{version}"' + (f' encoding="{encoding}"' if encoding else "")
        if standalone >= 0:
            text += f' standalone="{"yes" if standalone else "no"}"'
        self.root.children.append(_Markup(text + "?>"))

    def start(self, name: str, attributes: list[str]) -> None:
        if len(self._open) > _DEEPEST:
            raise NotPlainXml(f"nested more than {_DEEPEST} deep")
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
