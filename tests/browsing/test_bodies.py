"""Bodies as a person reads them: nothing executed, nothing lost, nothing invented."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from sqlqueue_app.browsing.bodies import BodyKind, NotPlainXml, decode_body, hex_dump, indent_json, indent_xml

JSON = "application/json"


def shown(body: bytes, content_type: str | None = None) -> tuple[BodyKind, str]:
    found = decode_body(body, len(body), content_type)
    return found.kind, found.text


def test_json_is_indented_with_its_numbers_to_the_letter() -> None:
    assert shown(b'{"a":[1.10,1E5,12345678901234567890123,NaN],"b":"\xc3\xbc"}', JSON) == (
        BodyKind.JSON,
        '{\n  "a": [\n    1.10,\n    1E5,\n    12345678901234567890123,\n    NaN\n  ],\n  "b": "ü"\n}',
    )


@pytest.mark.parametrize(
    "body",
    [b'{"a": 1, "a": 2}', b'{"a": ', b"hello", b"[" * 51 + b"]" * 51, b"[" * 30_000 + b"]" * 30_000],
    ids=["a name twice", "broken", "no JSON", "nested deeply", "nested without end"],
)
def test_what_cannot_be_laid_out_is_shown_as_text(body: bytes) -> None:
    assert shown(body, JSON) == (BodyKind.TEXT, body.decode())


def test_half_of_a_surrogate_pair_stays_an_escape() -> None:
    kind, text = shown(b'{"a": "\\ud800"}')

    assert kind is BodyKind.JSON
    assert "\\ud800" in text
    text.encode("utf-8")


def test_a_byte_order_mark_is_no_letter() -> None:
    assert shown(b"\xef\xbb\xbf{}") == (BodyKind.JSON, "{}")
    assert shown("{}".encode("utf-16")) == (BodyKind.JSON, "{}")


@pytest.mark.parametrize("body", [b"\x00\x01\xff", b"abc\x1b[31m", "\x07 ü".encode()], ids=["bytes", "escape sequence", "bell"])
def test_what_is_no_text_is_dumped(body: bytes) -> None:
    assert shown(body) == (BodyKind.HEX, hex_dump(body))


def test_a_dump_has_offset_bytes_and_letters() -> None:
    assert hex_dump(b"0123456789abcdef\x00A") == (
        "00000000  30 31 32 33 34 35 36 37 38 39 61 62 63 64 65 66  0123456789abcdef\n"
        "00000010  00 41                                            .A"
    )


def test_null_and_empty_bodies_are_told_apart() -> None:
    assert decode_body(None, None, JSON).kind is BodyKind.NULL
    assert decode_body(b"", 0, JSON).kind is BodyKind.EMPTY


def test_a_part_of_json_is_text() -> None:
    found = decode_body(b'{"a": 1}', 100, JSON)

    assert (found.kind, found.is_cut) == (BodyKind.TEXT, True)


def test_xml_is_indented_with_texts_and_attributes_to_the_letter() -> None:
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
def test_xml_that_could_do_harm_is_shown_as_text(text: str) -> None:
    with pytest.raises(NotPlainXml):
        indent_xml(text)

    assert shown(text.encode(), "text/xml") == (BodyKind.TEXT, text)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


# What is checked is what comes out, not how fast: the machine may be busy.
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_VALUES)
def test_indented_json_says_the_same(value: object) -> None:
    pretty = indent_json(json.dumps(value))

    assert pretty is not None
    assert json.loads(pretty) == value


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(min_size=1, max_size=200), st.sampled_from([None, JSON, "text/xml"]))
def test_any_body_can_be_shown(body: bytes, content_type: str | None) -> None:
    _kind, text = shown(body, content_type)

    text.encode("utf-8")
