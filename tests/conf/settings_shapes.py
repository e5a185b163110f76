"""Settings of any shape: valid ones with changes, invalid ones, and values that are no settings at all."""

from __future__ import annotations

from datetime import timedelta
from pathlib import PurePosixPath
from typing import Any, Final

from hypothesis import strategies as st

from sqlqueue_app.conf.settings import Settings
from sqlqueue_app.conf.validation import keys_of, section_of

_TEXTS: Final = st.sampled_from(
    [
        *(
            "",
            " ",
            "Sales",
            "Sales.Delayed",
            "sales",
            "error",
            "a@b",
            "@",
            "*",
            "Sales.*",
            "\0",
            "\ud83d",
            "x" * 200,
            "\u3000",
            "dbo",
            '"',
        ),
        *(
            "json",
            "monitor",
            "none",
            "auto",
            "discard",
            "0 2 * * *",
            "61 * * * *",
            "99999999999 * * * *",
            "*/0 * * * *",
            "10.0.0.0/8",
        ),
        *("https://example.com/admin/", "https://[::1", "s3a://id:key@lake", "shop.handlers", "a..b", "http://[", "*.example.com"),
    ]
)
_NUMBERS: Final = st.one_of(
    st.sampled_from([0, 1, -1, 2**31, 2**63, 10**400, 0.0, -0.0, 1e308, float("inf"), float("-inf"), float("nan"), True, False]),
    st.sampled_from([timedelta(0), timedelta.max, timedelta.min, timedelta(milliseconds=-1)]),
    st.integers(),
    st.floats(),
)
_ODD: Final = st.sampled_from([b"", b"\xff", object, object(), len, Ellipsis, PurePosixPath("/x"), 1j, range(3), frozenset({1})])
_SINGLE: Final = st.one_of(st.none(), _TEXTS, st.text(max_size=12), _NUMBERS, _ODD)
_KEYS: Final = st.one_of(_TEXTS, st.text(max_size=8), st.integers(), st.none(), st.tuples(st.integers()), st.binary(max_size=2))
_ANYTHING: Final = st.recursive(
    _SINGLE,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner),
        st.dictionaries(_KEYS, inner, max_size=3),
    ),
    max_leaves=6,
)


def _section(section: type[Any], depth: int = 0) -> st.SearchStrategy[dict[Any, Any]]:
    """Some keys of a section, each with either a value of its own kind or any value."""
    values: dict[Any, st.SearchStrategy[Any]] = {}
    for key, setting in keys_of(section).items():
        below = section_of(setting.type)
        own: st.SearchStrategy[Any] = _ANYTHING
        if below is not None and hasattr(below, "entry"):
            own = st.dictionaries(_TEXTS, st.one_of(_section(below, depth + 1), _ANYTHING), max_size=3) | _ANYTHING
        elif below is not None:
            own = _section(below, depth + 1) | _ANYTHING
        values[key] = own
    known = st.fixed_dictionaries({}, optional=values)
    # Few keys at a time, so that combinations of valid values occur too.
    few = st.lists(st.sampled_from(sorted(values)), max_size=4, unique=True).flatmap(
        lambda chosen: st.fixed_dictionaries({key: values[key] for key in chosen})
    )
    stray = st.dictionaries(_KEYS, _ANYTHING, max_size=1)
    return st.tuples(st.one_of(few, few, few, known), stray).map(lambda parts: {**parts[1], **parts[0]})


some_settings: Final = _section(Settings) | _ANYTHING
"""A value that a user might write into SQLQUEUE."""
