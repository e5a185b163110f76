"""docs/reference/settings.md matches the dataclasses."""

from __future__ import annotations

import re

import pytest

from docs.settings_tables import PAGE, SECTIONS, updated


def test_the_tables_are_those_of_the_code() -> None:
    """To fix a failure: `python -m docs.settings_tables`, then write the meaning of the new keys."""
    page = PAGE.read_text("utf-8")

    assert updated(page) == page


def test_a_new_key_gets_a_row_and_a_former_one_loses_its_row() -> None:
    page = PAGE.read_text("utf-8")
    (row,) = [line for line in page.splitlines(keepends=True) if line.startswith("| `SEND_AS` |")]

    assert updated(page.replace(row, "| `GONE` | True or False | `False` | Meaning. | 0.1 |\n")) == page.replace(
        row, "| `SEND_AS` | a name without '@', or None | `None` | | |\n"
    )


def test_a_section_without_a_heading_is_an_error() -> None:
    page = PAGE.read_text("utf-8").replace('## `SQLQUEUE["METRICS"]`\n', "## Metrics\n")

    with pytest.raises(ValueError, match=r"0 headings.*METRICS"):
        updated(page)


@pytest.mark.parametrize("heading", SECTIONS)
def test_each_key_has_a_meaning_and_a_version(heading: str) -> None:
    (section,) = [part for part in PAGE.read_text("utf-8").split("\n## ") if part.startswith(f"{heading}\n")]
    rows = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("| `")]

    assert rows
    for key, _, _, meaning, since in rows:
        assert meaning.endswith("."), key
        assert re.fullmatch(r"\d+\.\d+", since.strip()), key
