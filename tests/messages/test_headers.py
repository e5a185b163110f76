"""Headers: every recorded text and dictionary, and input that must never reach the receive loop as another error."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from sqlqueue_app.messages import headers as names, read_headers, write_headers
from sqlqueue_app.messages.errors import NullHeaders, PoisonMessage, WireFormatError
from tests.support.fuzzing import fuzzed
from tests.support.golden import rows

POISON = "poison"

# The generation of readers we follow, by text. "both": the two agree. Texts not listed here are poison for both.
FOLLOWED = {
    "{}": "both",
    '{"a":"1"}': "both",
    '{ "a" : "1" }': "both",
    '\n{"a":"1"}\n': "both",
    '{"a":null}': "both",
    '{"a":"\\u00e9"}': "both",
    '{"a":"\\ud83d\\ude80"}': "both",
    '{"a":"\\/"}': "both",
    '{"":""}': "both",
    '{"A":"1","a":"2"}': "both",
    '{"a":"\\u0000"}': "both",
    "[]": "3 to 9.0",
    '{"a":1}': "3 to 9.0",
    '{"a":1.5}': "3 to 9.0",
    '{"a":-1e5}': "3 to 9.0",
    '{"a":true}': "3 to 9.0",
    '{"a":false,"b":"x"}': "3 to 9.0",
    '{"a":{}}': "3 to 9.0",
    '{"a":[]}': "3 to 9.0",
    '{"a":NaN}': "3 to 9.0",
    '{"a":"\\ud83d"}': "3 to 9.0",
    '{"__type":"x","a":"1"}': "9.1",
    '{"a":"1","a":"2"}': POISON,  # 3 to 9.0; the value that counts would depend on the reader
    '{"a":"1",}': POISON,  # 9.1: no JSON
    '{"a":"1"': POISON,  # 9.1: no JSON, and the row may have been cut
    '{"a":"1"}{"b":"2"}': POISON,  # 9.1: no JSON
    "": "the transport: no headers",
    "null": "the transport: stops for ever, so we tell it apart",
}


@pytest.mark.parametrize("row", rows("header-texts"), ids=lambda row: ascii(row["text"])[:40])
def test_every_recorded_text(row: dict[str, Any]) -> None:
    text = row["text"]
    older, newer = row["transport_3_to_9_0"], row["transport_9_1"]
    followed = FOLLOWED.get(text, "both" if len(text) > 1000 else POISON)
    if text == "":
        assert read_headers(text) == {}
    elif text == "null":
        with pytest.raises(NullHeaders):
            read_headers(text)
    elif followed == POISON:
        assert isinstance(older, str) or isinstance(newer, str), "we refuse what both accept"
        with pytest.raises(PoisonMessage):
            read_headers(text)
    else:
        assert read_headers(text) == (newer if followed == "9.1" else older)
        assert older == newer or followed != "both"


@pytest.mark.parametrize("writer", ["transport_3_to_9_0", "transport_9_1"])
def test_every_recorded_dictionary(writer: str) -> None:
    recorded = rows("headers")
    assert len(recorded) == 300
    for row in recorded:
        assert read_headers(row[writer]) == row["headers"]
        text = write_headers(row["headers"])
        assert text.isascii()
        assert read_headers(text) == row["headers"]
        assert json.loads(text) == row["headers"]


@pytest.mark.parametrize("serializer", ["json", "newtonsoft", "xml", "handwritten"])
def test_headers_of_every_recorded_row(serializer: str) -> None:
    for row in rows(serializer):
        text = row.get("headers")
        if text is None:
            continue
        if row.get("outcome") == ["error queue, as it was"] or text == "null":
            with pytest.raises(PoisonMessage):
                read_headers(text)
            continue
        headers = read_headers(text)
        assert read_headers(write_headers(headers)) == headers
        if text.isascii() and serializer != "handwritten":
            assert write_headers(headers) == text, "ours differs from theirs only where theirs is not ASCII"


def test_missing_headers_are_empty() -> None:
    assert read_headers(None) == read_headers("") == {}


def test_headers_have_the_recorded_form() -> None:
    headers = {"b/c": 'say "hi" / \\', "a": None, "é": "\U0001f680\n\x7f"}
    assert write_headers(headers) == (r'{"b\/c":"say \"hi\" \/ \\","a":null,"\u00e9":"\ud83d\ude80\n\u007f"}')
    assert list(read_headers(write_headers(headers))) == ["b/c", "a", "é"]
    assert write_headers({}) == "{}"


@pytest.mark.parametrize(
    ("headers", "expected_error"),
    [
        ({"n": 1}, "the header 'n' is int .1.; expected str or None"),
        ({"n": b"x"}, "the header 'n' is bytes"),
        ({"n": True}, "the header 'n' is bool"),
        ({"n": {}}, "the header 'n' is dict"),
        ({1: "x"}, "the header name 1 is int; expected str"),
    ],
)
def test_only_text_is_written(headers: Any, expected_error: str) -> None:
    with pytest.raises(WireFormatError, match=expected_error):
        write_headers(headers)


def test_half_surrogates_become_the_replacement_character() -> None:
    halves = {"a\ud83d": "x\ude80y\ud83d", "b": "\ud83d" + "\ude80"}
    assert write_headers(halves) == r'{"a\ufffd":"x\ufffdy\ufffd","b":"\ud83d\ude80"}'
    assert read_headers('{"a":"\ud83d\\ude80","b":"\ud83d"}') == {"a": "\U0001f680", "b": "\ufffd"}
    with pytest.raises(PoisonMessage, match="occurs twice"):
        read_headers('{"\\ud83d":"1","\\ud83e":"2"}')


@pytest.mark.parametrize(
    ("text", "expected_error"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        ('{"a":' + "[" * 400 + "]" * 400 + "}", "the header 'a' is an array"),
        ('{"a":{"b":"c","b":"c"}}', "'b' occurs twice"),
        ('{"a":{"b":"c"}}', "the header 'a' is an object"),
        ("nul", "are not JSON"),
        (" ", "are not JSON"),
        ("\0", "are not JSON"),
        ("[null]", "are not a JSON object"),
        ('"' + "x" * 1000 + '"', r"are not a JSON object: '\"x{79}'\.\.\."),
        ("true", "are not a JSON object"),
        ("9" * 5000, "are not a JSON object"),
    ],
)
def test_unreadable_headers_are_poison(text: str, expected_error: str) -> None:
    with pytest.raises(PoisonMessage, match=expected_error):
        read_headers(text)


def test_null_is_distinguished_from_other_poison() -> None:
    with pytest.raises(NullHeaders):
        read_headers(" null\n")
    assert issubclass(NullHeaders, PoisonMessage)


def test_long_numbers_keep_their_text() -> None:
    number = "9" * 5000
    assert read_headers(f'{{"a":{number},"b":1E400,"c":0.10}}') == {"a": number, "b": "1E400", "c": "0.10"}


quick = fuzzed(200)


@quick
@given(st.dictionaries(st.text(max_size=20), st.none() | st.text(max_size=40), max_size=8))
def test_reading_undoes_writing(headers: dict[str, str | None]) -> None:
    text = write_headers(headers)
    assert text.isascii()
    assert read_headers(text) == headers


@quick
@given(st.text(alphabet='{}[]":,\\u0d8an1.-e\n\ufeff\ud800', max_size=30))
def test_any_text_is_headers_or_poison(text: str) -> None:
    try:
        headers = read_headers(text)
    except PoisonMessage:
        return
    assert all(value is None or isinstance(value, str) for value in headers.values())


def test_names_are_unique() -> None:
    constants = {name: value for name, value in vars(names).items() if name.isupper() and isinstance(value, str)}
    assert len(set(constants.values())) == len(constants)
