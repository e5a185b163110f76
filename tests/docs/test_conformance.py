"""Each test that the page about conformance names is there."""

from __future__ import annotations

import re

import pytest

from tests.support.databases import ROOT

PAGE = ROOT / "docs" / "reference" / "conformance.md"
NAMED = re.findall(r"`([a-z_/]+\.py)::(test_\w+)`", PAGE.read_text("utf-8"))


def test_the_page_names_tests() -> None:
    assert len(NAMED) > 30


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_a_test_of_the_page_is_there(file: str, name: str) -> None:
    assert f"def {name}(" in (ROOT / "tests" / file).read_text("utf-8")
