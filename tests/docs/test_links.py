"""Links between pages resolve."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.databases import ROOT
from tests.support.doc_pages import anchors, pages, prose

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_resolve(page: Path) -> None:
    dead = []
    for target in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            dead.append(target)

    assert dead == []


def test_pages_of_the_site_link_no_other_markdown() -> None:
    """The site takes each link to Markdown for one of its own pages, and refuses one that it does not have."""
    docs = ROOT / "docs"
    linked = [
        (page.name, link)
        for page in docs.rglob("*.md")
        for link in LINK.findall(prose(page))
        if ":" not in link
        and link.partition("#")[0].endswith(".md")
        and docs not in (page.parent / link.partition("#")[0]).resolve().parents
    ]

    assert linked == []


def test_index_leads_to_every_page() -> None:
    index = ROOT / "docs" / "index.md"
    seen, todo = set(), [index]
    while todo:
        page = todo.pop()
        if page in seen or page.suffix != ".md" or not page.exists():
            continue
        seen.add(page)
        todo += [(page.parent / link.partition("#")[0]).resolve() for link in LINK.findall(prose(page)) if ":" not in link]

    assert set((ROOT / "docs").rglob("*.md")) - seen == set()
