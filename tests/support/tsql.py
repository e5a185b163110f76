"""Check T-SQL without a server: sqlfluff parses it, and hints and clause order are checked in the parse tree."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from sqlfluff.core import FluffConfig, Linter

_BRACKETED = re.compile(r"\[(?:[^\]]|\]\])*\]")
Hints = Sequence[tuple[str, tuple[str, ...]]]


@cache
def _linter() -> Linter:
    return Linter(config=FluffConfig(overrides={"dialect": "tsql", "large_file_skip_byte_limit": 0}))


class UnexpectedStatement(Exception):
    """The statement is not valid T-SQL, or lacks an expected part."""


def readable(sql: str) -> str:
    """The statement in a form for sqlfluff: values as @p1, and no `]]` in names, which it misreads as the end of the name."""
    text = sql.replace("%s", "@p1").replace("%%", "%")
    return _BRACKETED.sub(lambda name: name[0][:-1].replace("]]", "__") + "]", text)


def parse(sql: str) -> Any:
    """The parse tree of a statement with `%s` for its values. Raises UnexpectedStatement if it cannot be parsed."""
    text = readable(sql) + "\n"
    result = _linter().parse_string(text)
    if result.violations:
        raise UnexpectedStatement(f"not T-SQL: {result.violations[0].desc()}\n{text}")
    assert result.tree is not None
    return result.tree


def hints_of(tree: Any) -> list[tuple[str, tuple[str, ...]]]:
    """The tables that are read, in order, with their hints."""
    found = []
    for source in tree.recursive_crawl("table_expression"):
        reference = next((child for child in source.segments if child.is_type("table_reference")), None)
        if reference is None:
            continue  # a subquery; its tables follow
        clauses = [child for child in source.segments if child.is_type("post_table_expression")]
        hints = [hint.raw.upper() for clause in clauses for hint in clause.recursive_crawl("query_hint_segment")]
        found.append((reference.raw, tuple(hints)))
    return found


def code_of(tree: Any) -> list[str]:
    """All code segments in order, in upper case."""
    return [segment.raw.upper() for segment in tree.raw_segments if segment.is_code]


def check(sql: str, hints: Hints, order: Sequence[str]) -> None:
    """Raise UnexpectedStatement unless the statement is T-SQL with these tables and hints, and these pieces in this order.

    The words of a piece must be adjacent.
    """
    tree = parse(sql)
    found = hints_of(tree)
    if [(table, set(given)) for table, given in found] != [(readable(table), set(given)) for table, given in hints]:
        raise UnexpectedStatement(f"tables and hints are {found}, expected {hints}\n{sql}")
    code = code_of(tree)
    at = 0
    for piece in order:
        words = piece.split()
        starts = (start for start in range(at, len(code)) if code[start : start + len(words)] == words)
        start = next(starts, None)
        if start is None:
            raise UnexpectedStatement(f"{piece!r} is missing or out of order\n{sql}")
        at = start + len(words)
