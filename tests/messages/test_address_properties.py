"""Properties of addresses for any text: printing and parsing are inverse, and no name breaks out of its quotes."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from sqlqueue_app.messages import QueueAddress
from sqlqueue_app.messages.errors import AddressError
from tests.support.fuzzing import fuzzed

# Half of the texts consist of special characters, the other half of any Unicode, also longer than 128.
special = st.text(alphabet="ab@.[]\"';-/*\\ \n\t\x1fé\U0001f69a", max_size=24)
wild = st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\0"), max_size=200)
texts = special | wild
names = texts.filter(lambda text: bool(text.strip()))

quick = fuzzed(300)


def read_identifiers(sql: str, opening: str, closing: str) -> list[str]:
    """Return the identifiers of ``[a].[b]`` as the database's scanner reads them; fails on anything outside quotes."""
    found: list[str] = []
    position = 0
    while True:
        assert sql[position] == opening, sql
        name = ""
        position += 1
        while True:
            character = sql[position]
            position += 1
            if character != closing:
                name += character
            elif sql[position : position + 1] == closing:
                name += closing
                position += 1
            else:
                break
        found.append(name)
        if position == len(sql):
            return found
        assert sql[position] == ".", sql
        position += 1


@pytest.mark.parametrize("form", ["sqlserver", "postgresql", "sqlite", "legacy"])
@quick
@given(text=texts)
def test_parse_undoes_print(form: str, text: str) -> None:
    try:
        address = QueueAddress.parse(text, form)
    except AddressError:
        return
    assert QueueAddress.parse(str(address), form) == address


@pytest.mark.parametrize("form", ["sqlserver", "postgresql", "sqlite"])
@quick
@given(text=texts, schema=names, catalog=names)
def test_canonical_address_is_a_fixed_point(form: str, text: str, schema: str, catalog: str) -> None:
    try:
        address = QueueAddress.parse(text, form)
    except AddressError:
        return
    full = address.full(schema, catalog)
    again = QueueAddress.parse(full, form)
    assert again.full("other", "other") == full
    assert again.qualified("other", "other") == address.qualified(schema, catalog)


@pytest.mark.parametrize(("form", "quotes"), [("sqlserver", "[]"), ("postgresql", '""'), ("sqlite", '""')])
@quick
@given(table=names, schema=names, catalog=names)
def test_no_name_breaks_out_of_its_quotes(form: str, quotes: str, table: str, schema: str, catalog: str) -> None:
    sql = QueueAddress(table, form=form).qualified(schema, catalog)
    expected = {
        "sqlserver": [catalog, schema, table],
        "postgresql": [schema, table],
        "sqlite": [table],
    }[form]
    assert read_identifiers(sql, *quotes) == expected


@quick
@given(text=st.text(max_size=60), form=st.sampled_from(["sqlserver", "postgresql", "3.0", "legacy", "sqlite"]))
def test_any_text_is_an_address_or_an_address_error(text: str, form: str) -> None:
    try:
        address = QueueAddress.parse(text, form)
    except AddressError:
        return
    assert address.qualified(None)
