"""The loader of named statements: a mistake in a `.sql` file never reaches a database."""

from __future__ import annotations

import re

import pytest

from sqlqueue_app.dialects.dialect import DIALECTS, Statement, dialect, load_statements, parse_statements

SOURCE = """
-- A file of statements.

-- name: one
-- a comment
SELECT a FROM {table}
WHERE b = :value  -- behind the line
LIMIT :limit;

-- name: two
DELETE FROM {table};
"""


def test_statements_are_found_by_name_without_comments() -> None:
    found = parse_statements(SOURCE)
    assert list(found) == ["one", "two"]
    assert found["two"].template == "DELETE FROM {table}"
    assert "a comment" not in found["one"].template


def test_statement_may_have_two_names() -> None:
    found = parse_statements("-- name: one, two\nSELECT 1;\n-- name: three\nSELECT 3;")
    assert list(found) == [statement.name for statement in found.values()] == ["one", "two", "three"]
    assert [statement.template for statement in found.values()] == ["SELECT 1", "SELECT 1", "SELECT 3"]


def test_values_are_bound_in_their_order() -> None:
    rendered = parse_statements(SOURCE)["one"].render(table='"Sales"')
    assert 'FROM "Sales"' in rendered.sql
    assert "b = %s" in rendered.sql
    assert rendered.names == ("value", "limit")
    assert rendered.bind({"limit": 2, "value": 1, "other": 3}) == (1, 2)


def test_missing_value_is_an_error() -> None:
    with pytest.raises(KeyError, match="limit"):
        parse_statements(SOURCE)["one"].render(table="t").bind({"value": 1})


@pytest.mark.parametrize(
    ("texts", "message"),
    [({}, r"missing texts \['table'\]"), ({"table": "t", "tabel": "t"}, r"extra texts \['tabel'\]")],
)
def test_missing_and_extra_texts_are_errors(texts: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=f"'two'.*{message}"):
        parse_statements(SOURCE)["two"].render(**texts)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("SELECT 1;\n-- name: one\nSELECT 2;", "text before the first"),
        ("-- name: one\nSELECT 1;\n-- name: one\nSELECT 2;", "'one' is defined twice"),
        ("-- name: one, two\nSELECT 1;\n-- name: two\nSELECT 2;", "'two' is defined twice"),
        ("-- name: one\n-- nothing\n;\n", "'one' is empty"),
        ("-- name: one\n\n-- name: two\nSELECT 1;", "'one' is empty"),
    ],
)
def test_invalid_file_is_refused(source: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_statements(source)


def test_texts_are_inserted_literally() -> None:
    table = '"100% {other} :value ::x \'"'
    rendered = Statement("x", "SELECT '%' FROM {table} WHERE a = :value").render(table=table)
    assert rendered.names == ("value",)
    assert rendered.sql % ("1",) == f"SELECT '%' FROM {table} WHERE a = 1"


def test_colons_in_strings_and_casts_are_no_values() -> None:
    rendered = Statement("x", "SELECT 'a :b ''c :d', e::int, :f").render()
    assert rendered.names == ("f",)
    assert rendered.sql == "SELECT 'a :b ''c :d', e::int, %s"


def test_script_has_no_values() -> None:
    assert Statement("x", "SELECT '100%' FROM {table}").text(table="a%") == "SELECT '100%' FROM a%"
    with pytest.raises(ValueError, match="'x' has values"):
        Statement("x", "SELECT :value").text()


@pytest.mark.parametrize("name", DIALECTS)
def test_every_dialect_has_the_required_statements(name: str) -> None:
    needed = {
        "send", "receive", "peek", "count", "count_expiring", "estimate", "purge", "purge_expired",
        "create_delayed", "create_due_index", "create_subscriptions", "drop_table", "table_exists", "columns", "indexes", "clock",
        "subscribe", "unsubscribe", "subscribers", "subscriptions",
    }  # fmt: skip
    assert needed - load_statements(name).keys() == set()


@pytest.mark.parametrize("name", DIALECTS)
def test_every_statement_renders_without_placeholders(name: str) -> None:
    for statement in dialect(name).statements.values():
        marks = set(re.findall(r"\{(\w+)\}", statement.template))
        rendered = statement.render(**dict.fromkeys(marks, "[x]"))
        assert not re.search(r"[{}]|(?<!:):[a-z]", re.sub(r"'[^']*'", "", rendered.sql)), statement.name
