"""The standard encoder writes plain values exactly as our own writer does."""

from __future__ import annotations

from typing import Any

from hypothesis import given, strategies as st

from sqlqueue_app.messages import json
from sqlqueue_app.messages.json import ConversionError
from tests.support.play import OrderAccepted, RejectOrder

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=3) | st.decimals(places=2)
KEYS = st.text(max_size=3) | st.integers(0, 3)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner) | st.tuples(inner), max_leaves=20)


def slowly(value: Any, as_pascal: bool, scalars: Any = json._WRITTEN_SCALARS) -> str | list[str]:
    """Return the text of our own writer, or the path of the mismatch that it finds."""
    out: list[str] = []
    try:
        json._write(value, out, as_pascal, scalars)
    except ConversionError as mismatch:
        return [str(mismatch)]
    return "".join(out)


def as_sent(value: Any, names: str) -> str | list[str]:
    try:
        return json.write_json(value, names)
    except ConversionError as mismatch:
        return [str(mismatch)]


@given(st.dictionaries(KEYS, VALUES) | st.lists(VALUES))
def test_both_writers_give_the_same_text_and_errors(value: Any) -> None:
    assert as_sent(value, "as_is") == slowly(value, False, json._SCALARS_IN_DICT)


@given(st.uuids(), st.none() | st.text(), st.sampled_from(["as_is", "pascal"]))
def test_both_writers_give_the_same_messages(order_id: Any, reason: str | None, names: str) -> None:
    for message in (RejectOrder(str(order_id), reason), RejectOrder(order_id, reason), OrderAccepted(order_id, 7)):  # type: ignore[arg-type]
        assert as_sent(message, names) == slowly(message, names == "pascal")
