"""The tests that run on one Django version, and those that run on both."""

from __future__ import annotations

from tests.support.databases import ROOT
from tests.support.once import ON_EACH_PRODUCT, ONCE, is_once


def test_every_module_that_runs_once_exists() -> None:
    assert [path for path in (*ONCE, *ON_EACH_PRODUCT) if not (ROOT / path).exists()] == []


def test_modules_that_depend_on_django_are_repeated() -> None:
    assert is_once("tests/browser/test_pages.py::test_a", None)
    assert not is_once("tests/dashboard/test_permission_matrix.py::test_a", None)
    assert not is_once("tests/dashboard/test_queue_page.py::test_a[sqlite]", "sqlite")
    assert is_once("tests/dashboard/test_queue_page.py::test_a[postgresql]", "postgresql")
    assert not is_once("tests/contract/test_send.py::test_a[postgresql]", "postgresql")
