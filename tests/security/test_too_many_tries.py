"""Nested alternatives in type hints: a short body cannot cause endless tries, and long matching bodies are read."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from sqlqueue_app.messages.errors import MessageBodyError
from sqlqueue_app.messages.serializers import JSON_CONTENT_TYPE, XML_CONTENT_TYPE, deserialize, serialize

DEPTH = 60


@dataclass
class Left:
    child: Left | Right | None = None
    number: int = 0


@dataclass
class Right:
    child: Left | Right | None = None
    number: int = 0


@dataclass
class Circle:
    radius: int


@dataclass
class Square:
    side: int


@dataclass
class Drawing:
    shapes: list[Circle | Square] = field(default_factory=list)


def nested(inner: Any) -> bytes:
    for _ in range(DEPTH):
        inner = {"child": inner}
    return json.dumps(inner).encode()


def test_body_that_fits_no_alternative_is_given_up() -> None:
    """Without the limit, each level doubled the time: 16 levels took 2 s as JSON and 50 s as XML."""
    xml = f"<Left>{'<Child>' * DEPTH}<Number>x</Number>{'</Child>' * DEPTH}</Left>".encode()
    for body, kind in ((nested({"number": "x"}), JSON_CONTENT_TYPE), (xml, XML_CONTENT_TYPE)):
        with pytest.raises(MessageBodyError, match="too many alternatives"):
            deserialize(body, kind, Left)


@pytest.mark.parametrize("kind", [JSON_CONTENT_TYPE, XML_CONTENT_TYPE])
def test_fitting_body_is_read_at_any_depth(kind: str) -> None:
    deep = Left()
    for number in range(DEPTH):
        deep = Left(deep, number)
    assert deserialize(serialize(deep, content_type=kind, types=["Left"]), kind, Left) == deep


def test_fitting_body_is_read_at_any_length() -> None:
    """Half of the shapes match only the second alternative."""
    drawing = Drawing([Square(n) if n % 2 else Circle(n) for n in range(30_000)])
    assert deserialize(serialize(drawing), JSON_CONTENT_TYPE, Drawing) == drawing
