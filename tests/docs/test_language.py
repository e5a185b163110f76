"""Pages, templates, logs and errors contain no phrases that read like a translation."""

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


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_pages_contain_no_translated_phrases(page: Path) -> None:
    assert phrases_in(prose(page)) == []


def test_templates_contain_no_translated_phrases() -> None:
    templates = [*(ROOT / "sqlqueue_app" / "templates").rglob("*.html"), *(ROOT / "project").rglob("*.html")]
    found = {path.relative_to(ROOT).as_posix(): phrases_in(path.read_text("utf-8")) for path in templates}
    assert {path: phrases for path, phrases in found.items() if phrases} == {}


def test_messages_contain_no_translated_phrases() -> None:
    modules = [path for path in (ROOT / "sqlqueue_app").rglob("*.py") if "migrations" not in path.parts]
    found = {
        path.relative_to(ROOT).as_posix(): [each for text in texts_of_code(path) for each in phrases_in(text)] for path in modules
    }
    assert {path: phrases for path, phrases in found.items() if phrases} == {}


@pytest.mark.parametrize("text", ["The user is told so.", "Nobody waits.", "It lies\nin the queue.", "Kept for ever"])
def test_translated_phrase_is_found(text: str) -> None:
    assert len(phrases_in(text)) == 1


@pytest.mark.parametrize("text", ["It understands in time.", "run `nobody`", "Forever is a word."])
def test_other_texts_pass(text: str) -> None:
    assert phrases_in(text) == []
