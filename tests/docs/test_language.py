"""Pages, templates, logs, errors and identifiers contain no phrases that read like a translation."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.databases import ROOT
from tests.support.doc_pages import pages, prose

PHRASES = (
    "is told",
    "are told",
    "is said",
    "somebody",
    "nobody",
    "whoever",
    "anew",
    "for ever",
    "lies in",
    "stands in the",
    "go on where",
    "a want of",
    "and by nothing else",
    "has not come back",
    "is waited for",
    "is heard of",
    "was heard of",
    "in its queue again",
    "in their queues again",
    "for good",
    "goes round",
    "hand in",
    "taken for",
    "any more",
    "all the same",
    "be brought back",
    "comes twice",
    "the begin of",
    "of this very",
    "stands between",
    "is there twice",
    "is looked at",
    "to go on",
)
TRANSLATED = re.compile(rf"\b({'|'.join(PHRASES)})\b", re.IGNORECASE)
CODE = re.compile(r"`[^`]*`")

# Standard terms replace these: reported, expected, requested, snapshot, outcome, max_...
REFUSED_WORDS = {"told", "tell", "tells", "said", "say", "says", "ask", "asks", "asked", "look", "looks", "looked", "heard"} | {
    "somebody", "nobody", "anew", "whoever",
}  # fmt: skip
REFUSED_NAMES = re.compile(r"_?(MOST|MOST_\w+|\w+_AT_MOST|\w*_IN_WORDS)", re.IGNORECASE)
# Columns of tables, which are public, and a method of collections.Counter.
PUBLIC_NAMES = {"asked_at", "most_waiting", "most_common"}
PARTS_OF_NAME = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def phrases_in(text: str) -> list[str]:
    """The phrases in a text, each with some context; code is ignored."""
    plain = " ".join(CODE.sub("`", text).split())
    return [plain[max(found.start() - 40, 0) : found.end() + 40] for found in TRANSLATED.finditer(plain)]


def texts_of_code(path: Path) -> Iterator[str]:
    """The strings of a module other than docstrings: its log, error and page texts."""
    tree = ast.parse(path.read_text("utf-8"))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {id(node.body[0].value) for node in ast.walk(tree) if isinstance(node, documented) and ast.get_docstring(node)}  # type: ignore[attr-defined]
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def identifiers_of(path: Path) -> Iterator[str]:
    """The names that a module defines or uses: functions, classes, arguments, keywords, attributes, variables and constants."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.arg(arg=name) | ast.Attribute(attr=name) | ast.Name(id=name):
                yield name
            case ast.keyword(arg=str(name)):
                yield name


def is_refused(name: str) -> bool:
    """Whether an identifier contains a word that names a person's act, or a limit in words."""
    words = {part.lower() for part in PARTS_OF_NAME.findall(name)}
    return name not in PUBLIC_NAMES and bool(words & REFUSED_WORDS or REFUSED_NAMES.fullmatch(name))


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_pages_contain_no_translated_phrases(page: Path) -> None:
    assert phrases_in(prose(page)) == []


def test_templates_contain_no_translated_phrases() -> None:
    folders = (ROOT / "sqlqueue_app" / "templates", ROOT / "project", ROOT / "templates")
    templates = [path for folder in folders for path in folder.rglob("*.html")]
    found = {path.relative_to(ROOT).as_posix(): phrases_in(path.read_text("utf-8")) for path in templates}
    assert {path: phrases for path, phrases in found.items() if phrases} == {}


def test_messages_contain_no_translated_phrases() -> None:
    modules = [path for path in (ROOT / "sqlqueue_app").rglob("*.py") if "migrations" not in path.parts]
    found = {
        path.relative_to(ROOT).as_posix(): [each for text in texts_of_code(path) for each in phrases_in(text)] for path in modules
    }
    assert {path: phrases for path, phrases in found.items() if phrases} == {}


@pytest.mark.parametrize("folder", ["sqlqueue_app", "project", "benchmarks"])
def test_identifiers_use_standard_terms(folder: str) -> None:
    modules = [path for path in (ROOT / folder).rglob("*.py") if "migrations" not in path.parts]
    found = {path.relative_to(ROOT).as_posix(): sorted({*filter(is_refused, identifiers_of(path))}) for path in modules}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize("name", ["told_by", "MOST_ROWS", "_most", "QUEUES_AT_MOST", "time_in_words", "AskForReview", "lookedUp"])
def test_refused_identifier_is_found(name: str) -> None:
    assert is_refused(name)


@pytest.mark.parametrize("name", ["task", "almost", "asked_at", "foretold", "lookup", "tellable"])
def test_other_identifiers_pass(name: str) -> None:
    assert not is_refused(name)


@pytest.mark.parametrize("text", ["The user is told so.", "Nobody waits.", "It lies\nin the queue.", "Kept for ever"])
def test_translated_phrase_is_found(text: str) -> None:
    assert len(phrases_in(text)) == 1


@pytest.mark.parametrize("text", ["It understands in time.", "run `nobody`", "Forever is a word."])
def test_other_texts_pass(text: str) -> None:
    assert phrases_in(text) == []
