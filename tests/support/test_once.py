"""The tests that run on one Django version, and those that run on both."""

from __future__ import annotations

from tests.support.databases import ROOT
from tests.support.once import ON_EACH_PRODUCT, ONCE, REPEATED, is_once


def test_every_module_that_runs_once_exists() -> None:
    assert [path for path in (*ONCE, *ON_EACH_PRODUCT) if not (ROOT / path.partition("::")[0]).exists()] == []


def test_every_test_that_runs_once_exists() -> None:
    named = [path.partition("[")[0].partition("::") for path in (*ONCE, *REPEATED) if "::" in path]
    assert [test for module, _, test in named if f"def {test}(" not in (ROOT / module).read_text("utf-8")] == []


def test_examples_that_depend_on_django_are_repeated() -> None:
    test = "tests/docs/test_examples.py::test_examples_of_a_page_run"
    assert is_once(f"{test}[docs/howto/sagas.md]", None)
    assert not is_once(f"{test}[docs/quickstart.md]", None)
    assert all((ROOT / path.partition("[")[2].rstrip("]")).exists() for path in REPEATED)


def test_modules_that_depend_on_django_are_repeated() -> None:
    assert is_once("tests/browser/test_pages.py::test_a", None)
    assert not is_once("tests/dashboard/test_permission_matrix.py::test_a", None)
    assert not is_once("tests/dashboard/test_queue_page.py::test_a[sqlite]", "sqlite")
    assert is_once("tests/dashboard/test_queue_page.py::test_a[postgresql]", "postgresql")
    assert not is_once("tests/contract/test_send.py::test_a[postgresql]", "postgresql")
