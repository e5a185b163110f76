"""Bodies are shown readably: nothing executed, lost or added."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from sqlqueue_app.browsing.bodies import BodyKind, NotPlainXml, decode_body, hex_dump, indent_json, indent_xml

JSON = "application/json"


def shown(body: bytes, content_type: str | None = None) -> tuple[BodyKind, str]:
    found = decode_body(body, len(body), content_type)
    return found.kind, found.text


def test_indented_json_keeps_its_numbers_verbatim() -> None:
    assert shown(b'{"a":[1.10,1E5,12345678901234567890123,NaN],"b":"\xc3\xbc"}', JSON) == (
        BodyKind.JSON,
        '{\n  "a": [\n    1.10,\n    1E5,\n    12345678901234567890123,\n    NaN\n  ],\n  "b": "ü"\n}',
    )


@pytest.mark.parametrize(
    "body",
    [b'{"a": 1, "a": 2}', b'{"a": ', b"hello", b"[" * 51 + b"]" * 51, b"[" * 30_000 + b"]" * 30_000],
    ids=["a name twice", "broken", "no JSON", "nested deeply", "nested without end"],
)
def test_json_that_cannot_be_indented_is_shown_as_text(body: bytes) -> None:
    assert shown(body, JSON) == (BodyKind.TEXT, body.decode())


def test_lone_surrogate_stays_an_escape() -> None:
    kind, text = shown(b'{"a": "\\ud800"}')

    assert kind is BodyKind.JSON
    assert "\\ud800" in text
    text.encode("utf-8")


def test_byte_order_mark_is_not_shown() -> None:
    assert shown(b"\xef\xbb\xbf{}") == (BodyKind.JSON, "{}")
    assert shown("{}".encode("utf-16")) == (BodyKind.JSON, "{}")


@pytest.mark.parametrize("body", [b"\x00\x01\xff", b"abc\x1b[31m", "\x07 ü".encode()], ids=["bytes", "escape sequence", "bell"])
def test_binary_body_is_shown_as_hex_dump(body: bytes) -> None:
    assert shown(body) == (BodyKind.HEX, hex_dump(body))


def test_hex_dump_shows_offset_bytes_and_characters() -> None:
    assert hex_dump(b"0123456789abcdef\x00A") == (
        "00000000  30 31 32 33 34 35 36 37 38 39 61 62 63 64 65 66  0123456789abcdef\n"
        "00000010  00 41                                            .A"
    )


def test_null_and_empty_bodies_are_distinguished() -> None:
    assert decode_body(None, None, JSON).kind is BodyKind.NULL
    assert decode_body(b"", 0, JSON).kind is BodyKind.EMPTY


def test_truncated_json_is_shown_as_text() -> None:
    found = decode_body(b'{"a": 1}', 100, JSON)

    assert (found.kind, found.is_cut) == (BodyKind.TEXT, True)


def test_indented_xml_keeps_texts_and_attributes_verbatim() -> None:
    body = (
        '<?xml version="1.0"?><o:Order xmlns:o="urn:x" n="a&amp;b"><Id> 42 </Id>'
        "<Lines><Line/><!-- c --></Lines><m>a <b>c</b></m></o:Order>"
    )

    assert shown(body.encode(), "text/xml") == (
        BodyKind.XML,
        '<?xml version="1.0"?>\n'
        '<o:Order xmlns:o="urn:x" n="a&amp;b">\n'
        "  <Id> 42 </Id>\n"
        "  <Lines>\n"
        "    <Line/>\n"
        "    <!-- c -->\n"
        "  </Lines>\n"
        "  <m>a <b>c</b></m>\n"
        "</o:Order>",
    )


@pytest.mark.parametrize(
    "text",
    [
        '<!DOCTYPE a SYSTEM "file:///etc/passwd"><a/>',
        '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>',
        '<!DOCTYPE a [<!ENTITY x "lol"><!ENTITY y "&x;&x;&x;">]><a>&y;</a>',
        "<a>",
        "<a>" * 51 + "</a>" * 51,
        "<a>&unknown;</a>",
    ],
    ids=["external", "external entity", "entities", "broken", "nested deeply", "unknown entity"],
)
def test_unsafe_xml_is_shown_as_text(text: str) -> None:
    with pytest.raises(NotPlainXml):
        indent_xml(text)

    assert shown(text.encode(), "text/xml") == (BodyKind.TEXT, text)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


# The result is checked, not the speed: the machine may be busy.
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_VALUES)
def test_indented_json_has_the_same_value(value: object) -> None:
    pretty = indent_json(json.dumps(value))

    assert pretty is not None
    assert json.loads(pretty) == value


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(min_size=1, max_size=200), st.sampled_from([None, JSON, "text/xml"]))
def test_any_body_can_be_shown(body: bytes, content_type: str | None) -> None:
    _kind, text = shown(body, content_type)

    text.encode("utf-8")
