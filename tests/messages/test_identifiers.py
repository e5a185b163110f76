"""Quoting and limits of names."""

from __future__ import annotations

import pytest

from sqlqueue_app.messages.addresses import (
    check_name,
    check_queue_name,
    quote_postgresql,
    quote_sqlite,
    quote_sqlserver,
    unquote_postgresql,
    unquote_sqlserver,
)
from sqlqueue_app.messages.errors import AddressError


@pytest.mark.parametrize(("name", "quoted"), [("abc", "[abc]"), ("a]bc", "[a]]bc]"), ("", "[]"), ("[a]", "[[a]]]")])
def test_sqlserver_quotes(name: str, quoted: str) -> None:
    assert quote_sqlserver(name) == quoted
    assert unquote_sqlserver(quoted) == name


@pytest.mark.parametrize(("name", "quoted"), [("abc", '"abc"'), ('a"bc', '"a""bc"'), ("", '""'), ('"a"', '"""a"""')])
def test_double_quotes(name: str, quoted: str) -> None:
    assert quote_postgresql(name) == quote_sqlite(name) == quoted
    assert unquote_postgresql(quoted) == name


@pytest.mark.parametrize("text", ["a", "[", "]", "[a", "a]", ""])
def test_text_without_both_brackets_stays(text: str) -> None:
    assert unquote_sqlserver(text) == text


@pytest.mark.parametrize("text", ["a", '"', '"a', 'a"', ""])
def test_text_without_both_quotes_stays(text: str) -> None:
    assert unquote_postgresql(text) == text


@pytest.mark.parametrize("quote", [quote_sqlserver, quote_postgresql, quote_sqlite])
@pytest.mark.parametrize("name", ["a\0b", "\udc80"])
def test_characters_that_no_database_accepts_are_refused(quote: object, name: str) -> None:
    assert callable(quote)
    with pytest.raises(AddressError, match="the name "):
        quote(name)


@pytest.mark.parametrize(
    ("name", "dialect", "suffix", "part"),
    [
        ("x" * 128, "sqlserver", 0, "table"),
        ("\U0001f69a" * 64, "sqlserver", 0, "schema"),
        ("x" * 120, "sqlserver", 8, "table"),
        ("x" * 55, "postgresql", 0, "table"),
        ("é" * 27, "postgresql", 1, "table"),
        ("x" * 63, "postgresql", 0, "schema"),
        ("x" * 5000, "sqlite", 100, "table"),
        ("#Sales", "postgresql", 0, "table"),
        ("#Sales", "sqlserver", 0, "schema"),
    ],
)
def test_name_that_the_database_supports_is_accepted(name: str, dialect: str, suffix: int, part: str) -> None:
    check_name(name, dialect, suffix, part=part)


@pytest.mark.parametrize(
    ("name", "dialect", "suffix", "part", "expected_error"),
    [
        ("x" * 129, "sqlserver", 0, "table", "is 129 characters long; sqlserver allows 128 characters"),
        ("\U0001f69a" * 65, "sqlserver", 0, "table", "is 130 characters long"),
        ("x" * 121, "sqlserver", 8, "table", "is 121 characters long and needs 8 more for its suffix"),
        ("x" * 56, "postgresql", 0, "table", "is 56 bytes long; postgresql allows 55 bytes"),
        ("é" * 28, "postgresql", 0, "table", "is 56 bytes long"),
        ("x" * 64, "postgresql", 0, "schema", "schema name .* is 64 bytes long; postgresql allows 63 bytes"),
        ("SQLite_Sales", "sqlite", 0, "table", "begins with 'sqlite_', which SQLite reserves"),
        ("#Sales", "sqlserver", 0, "table", "begins with '#', which makes it a temporary table on SQL Server"),
        (" ", "sqlite", 0, "table", "is empty or white space"),
        ("a\0", "sqlite", 0, "table", "contains the character NUL"),
    ],
)
def test_name_that_the_database_does_not_support_is_refused(
    name: str, dialect: str, suffix: int, part: str, expected_error: str
) -> None:
    with pytest.raises(AddressError, match=expected_error) as caught:
        check_name(name, dialect, suffix, part=part)
    assert repr(name) in str(caught.value)


def test_unknown_dialect_is_a_programming_error() -> None:
    with pytest.raises(ValueError, match="unknown dialect 'oracle'"):
        check_name("x", "oracle")


@pytest.mark.parametrize("name", ["Sales", "Particular.ServiceControl", "[x]", 'a"b', "ünïcødé"])
def test_queue_name_is_accepted(name: str) -> None:
    check_queue_name(name, "ENDPOINTS")


@pytest.mark.parametrize(
    ("name", "expected_error"),
    [
        ("Sales@[dbo]", "contains '@', which separates"),
        ("", "is empty or white space"),
        (" \t", "is empty or white space"),
        ("a\0b", "contains the character NUL"),
        (None, "expected a queue name as text, got None"),
        (7, "expected a queue name as text, got 7"),
    ],
)
def test_invalid_queue_name_is_refused(name: object, expected_error: str) -> None:
    with pytest.raises(AddressError, match=expected_error) as caught:
        check_queue_name(name, "SQLQUEUE['ENDPOINTS']")
    assert "SQLQUEUE['ENDPOINTS']" in str(caught.value)
