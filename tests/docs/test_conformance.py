"""Each test that the conformance page names exists in the file that it links to."""

from __future__ import annotations

import re

import pytest

from tests.support.databases import ROOT

PAGE = (ROOT / "docs" / "reference" / "conformance.md").read_text("utf-8")
NAMED = re.findall(r"\[`(test_\w+)`\]\(\.\./\.\./tests/([\w/]+\.py)\)", PAGE)


def test_page_links_to_each_test_that_it_names() -> None:
    assert len(NAMED) > 50
    assert len(NAMED) == len(re.findall(r"\btest_\w+`", PAGE))


@pytest.mark.parametrize(("name", "file"), NAMED)
def test_listed_test_exists(name: str, file: str) -> None:
    assert f"def {name}(" in (ROOT / "tests" / file).read_text("utf-8")
