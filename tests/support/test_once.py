"""What is run on one Django, and what on both."""

from __future__ import annotations

from tests.support.databases import ROOT
from tests.support.once import ON_EACH_PRODUCT, ONCE, is_once


def test_what_is_run_once_is_there() -> None:
    assert [path for path in (*ONCE, *ON_EACH_PRODUCT) if not (ROOT / path).exists()] == []


def test_what_depends_on_django_is_repeated() -> None:
    assert is_once("tests/browser/test_pages.py::test_a", None)
    assert not is_once("tests/dashboard/test_permission_matrix.py::test_a", None)
    assert not is_once("tests/dashboard/test_queue_page.py::test_a[sqlite]", "sqlite")
    assert is_once("tests/dashboard/test_queue_page.py::test_a[postgresql]", "postgresql")
    assert not is_once("tests/contract/test_send.py::test_a[postgresql]", "postgresql")
