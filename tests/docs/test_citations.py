"""Links in comments and docstrings to pages of `docs` resolve, and nothing cites documents that are not in the repository."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.databases import ROOT
from tests.support.doc_pages import anchors

TREES = ("sqlqueue_app", "tests", "benchmarks", "project")
# Reports of measurements and recorded rows are data.
DATA = ("benchmarks/results", "tests/golden")
SUFFIXES = {".py", ".sql", ".html", ".md"}

PAGE = re.compile(r"(?<![\w/])(?:\.\./)*(docs/[\w/-]+\.md)(?:#([\w-]+))?")
# A citation may span two lines of a comment.
_GAP = r"(?:\s*\n\s*(?:\#|--)?\s*|[ \t]+)"
OLD = re.compile(
    rf"\b(?:transport|operations|performance|spark|core){_GAP}reference{_GAP}§?\d"
    rf"|\b(?:design|reference){_GAP}(?:§\s?\d+|\d+\.\d+)|\bdesign{_GAP}§?\d+\b"
    r"|\(§\s?\d|\bhouse\.md|\bDESIGN\.md|\bshared/reference",
    re.IGNORECASE,
)


def sources(*trees: str) -> Iterator[Path]:
    for tree in trees:
        for path in sorted((ROOT / tree).rglob("*")):
            if path.suffix in SUFFIXES and not path.relative_to(ROOT).as_posix().startswith(DATA):
                yield path


def dead_links(text: str) -> list[str]:
    """The pages of `docs` that a text names and that do not exist, or have no such heading."""
    dead = []
    for found in PAGE.finditer(text):
        page = ROOT / found[1]
        if not page.is_file() or (found[2] and found[2] not in anchors(page)):
            dead.append(found[0])
    return dead


def old_citations(text: str) -> list[str]:
    """The citations of documents outside of the repository."""
    return [" ".join(found[0].split()) for found in OLD.finditer(text)]


@pytest.mark.parametrize("tree", TREES)
def test_links_to_pages_resolve(tree: str) -> None:
    dead = {path.relative_to(ROOT).as_posix(): links for path in sources(tree) if (links := dead_links(path.read_text("utf-8")))}

    assert dead == {}


@pytest.mark.parametrize("tree", [*TREES, "docs"])
def test_nothing_outside_of_the_repository_is_cited(tree: str) -> None:
    cited = {path.relative_to(ROOT).as_posix(): old for path in sources(tree) if (old := old_citations(path.read_text("utf-8")))}

    assert cited == {}


def test_code_links_to_internals() -> None:
    """The search finds the links: without any, the tests above would pass for the wrong reason."""
    linked = {found[1] for path in sources("sqlqueue_app") for found in PAGE.finditer(path.read_text("utf-8"))}

    assert {f"docs/internals/{name}.md" for name in ("decisions", "wire", "endpoints", "operations", "performance")} <= linked


# The example texts are assembled so that the tests above do not find them in this file.
DOCS, BOOK, SIGN = "docs", "reference", "§"


@pytest.mark.parametrize(
    "link",
    ["internals/wire.md#no-such-heading", "internals/nowhere.md", "nowhere/wire.md#send", "reference/settings.md#nothing-here"],
)
def test_dead_link_is_found(link: str) -> None:
    assert dead_links(f"# Why it is so ({DOCS}/{link}): it is.") == [f"{DOCS}/{link}"]


@pytest.mark.parametrize("link", ["internals/wire.md#send", "internals/wire.md", "reference/settings.md", "architecture.md#layers"])
def test_live_link_passes(link: str) -> None:
    assert dead_links(f'"""Why it is so ({DOCS}/{link})."""') == []


@pytest.mark.parametrize(
    "text",
    [
        f"(transport {BOOK} 5.4)",
        f"(transport {BOOK} 18)",
        f"# Transport {BOOK} {SIGN}3.4: input",
        f"(operations {BOOK} 3.3.3)",
        f"(transport {BOOK}\n        5.1), but",
        f"# the first (transport\n# {BOOK} 5.1)",
        f"-- (performance\n-- {BOOK} 4)",
        f"({BOOK} {SIGN}6.6)",
        f"({BOOK} 2.3)",
        f"({'design'} 6.13)",
        f"# {'Design'} {SIGN}4.3.",
        f"# Sagas ({SIGN}6.3).",
        f"see {'house'}.md",
        f"see shared/{BOOK}/style",
    ],
)
def test_old_citation_is_found(text: str) -> None:
    assert len(old_citations(text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        f"what the {BOOK} pages list",
        f"the core {BOOK} layout",
        "the design of 2026",
        f"a {BOOK} to 3 rows",
        f"by {'design'}, 5 rows",
        "version 5.4 of the transport",
        f"RFC 9457 {SIGN}3",
    ],
)
def test_other_texts_pass(text: str) -> None:
    assert old_citations(text) == []
