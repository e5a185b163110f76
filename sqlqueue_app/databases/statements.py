"""Named statements: one file per dialect and topic, split at `-- name:` lines, checked when they are rendered.

Where one statement serves two purposes that differ on another database, its line gives both names: `-- name: estimate, waiting`.

A statement holds two kinds of marks. `{table}` stands for text that is part of the statement (an identifier that is already quoted,
a list of rows); `:limit` stands for a value, which always travels as a parameter. Rendering fails on a missing, an extra or a
left-over mark, so that a typing error can never reach a database.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import resources
from typing import Any

_NAME_LINE = re.compile(r"^-- name: (?P<names>[a-z_]+(?:, [a-z_]+)*)[ \t]*$", re.MULTILINE)
_COMMENT_LINE = re.compile(r"^[ \t]*--.*$", re.MULTILINE)
_TEXT_MARK = re.compile(r"\{([a-z_]+)\}")
# String literals and casts are stepped over, so that a colon inside of them is no value.
_VALUE_MARK = re.compile(r"'(?:[^']|'')*'|::|:(?P<name>[a-z_]+)")


@dataclass(frozen=True, slots=True)
class Rendered:
    """A statement that a Django or driver cursor takes: `%s` for each value, the values' names in that order."""

    sql: str
    names: tuple[str, ...]

    def bind(self, values: dict[str, object]) -> tuple[Any, ...]:
        """The parameters in the order of their marks; KeyError where a value is missing."""
        return tuple(values[name] for name in self.names)


@dataclass(frozen=True, slots=True)
class Statement:
    """One named statement of a `.sql` file, as written there."""

    name: str
    template: str

    def render(self, **texts: str) -> Rendered:
        """Put the texts into their marks and number the values; ValueError on a missing or an extra text."""
        wanted = set(_TEXT_MARK.findall(self.template))
        if wanted != texts.keys():
            missing, extra = sorted(wanted - texts.keys()), sorted(texts.keys() - wanted)
            raise ValueError(f"statement {self.name!r}: missing texts {missing}, extra texts {extra}")
        names: list[str] = []
        parts: list[str] = []
        for index, piece in enumerate(_TEXT_MARK.split(self.template)):
            # The template's own pieces carry the values; the texts between them are taken to the letter.
            parts.append(_number_values(piece, names) if index % 2 == 0 else texts[piece].replace("%", "%%"))
        return Rendered("".join(parts), tuple(names))

    def text(self, **texts: str) -> str:
        """A statement without values, as it is sent without parameters (DDL, scripts); ValueError if it has values."""
        rendered = self.render(**texts)
        if rendered.names:
            raise ValueError(f"statement {self.name!r} has values {rendered.names}: it cannot be sent as text")
        return rendered.sql.replace("%%", "%")


def _number_values(piece: str, names: list[str]) -> str:
    def put(match: re.Match[str]) -> str:
        name = match["name"]
        if name is None:
            return match[0]
        names.append(name)
        return "%s"

    return _VALUE_MARK.sub(put, piece.replace("%", "%%"))


def parse_statements(source: str) -> dict[str, Statement]:
    """Split the text of a `.sql` file into its statements; comment lines are for readers and are left out.

    ValueError on a doubled name, an empty statement or text before the first name.
    """
    pieces = _NAME_LINE.split(source)
    if _COMMENT_LINE.sub("", pieces[0]).strip():
        raise ValueError(f"text before the first '-- name:' line: {pieces[0].strip()[:60]!r}")
    found: dict[str, Statement] = {}
    for line, body in zip(pieces[1::2], pieces[2::2], strict=True):
        template = "\n".join(text for text in _COMMENT_LINE.sub("", body).splitlines() if text.strip()).strip()
        template = template.removesuffix(";")
        for name in line.split(", "):
            if not template:
                raise ValueError(f"statement {name!r} is empty")
            if name in found:
                raise ValueError(f"statement {name!r} is there twice")
            found[name] = Statement(name, template)
    return found


def load_statements(dialect: str) -> dict[str, Statement]:
    """All statements of `databases/sql/<dialect>/*.sql`; a name may stand in one file only."""
    found: dict[str, Statement] = {}
    folder = resources.files("sqlqueue_app.databases").joinpath("sql", dialect)
    for file in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if not file.name.endswith(".sql"):
            continue
        statements = parse_statements(file.read_text(encoding="utf-8"))
        doubled = sorted(found.keys() & statements.keys())
        if doubled:
            raise ValueError(f"statements {doubled} of {file.name!r} stand in another file of {dialect!r} too")
        found.update(statements)
    return found
