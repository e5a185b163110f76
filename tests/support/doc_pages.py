"""The pages of the documentation and their code blocks."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.directories import ROOT

_FENCE: Final = re.compile(
    r"(?:<!-- not run: (?P<reason>[^>]+) -->\n)?^```(?P<kind>[a-z#]*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)
_ANY_FENCE: Final = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_FILE: Final = re.compile(r"# ([\w/]+\.py)\n")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block. `reason` explains why it is not run, if so."""

    page: Path
    line: int
    kind: str
    text: str
    reason: str | None

    @property
    def place(self) -> str:
        """Its page and line, for people."""
        return f"{os.path.relpath(self.page, ROOT)}:{self.line}"

    @property
    def file(self) -> str | None:
        """The file that a Python block shows (a part of), named in its first line: `# shop/handlers.py`."""
        found = _FILE.match(self.text) if self.kind == "python" else None
        return found[1] if found else None

    @property
    def is_example(self) -> bool:
        """Whether it can be run: Python, or console commands."""
        return self.kind in {"python", "console"}


def pages() -> list[Path]:
    """Every page, the README first."""
    return [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, in order."""
    text = page.read_text("utf-8")
    return [
        Block(page, text.count("\n", 0, found.start("text")), found["kind"], found["text"], found["reason"])
        for found in _FENCE.finditer(text)
    ]


def prose(page: Path) -> str:
    """The text of a page without its fenced blocks."""
    return _ANY_FENCE.sub("", page.read_text("utf-8"))


def anchors(page: Path) -> set[str]:
    """The anchors of the headings, as GitHub generates them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
