"""Distribution of tests to processes of pytest, and the reports they send."""

from __future__ import annotations

from collections import OrderedDict

import pytest

from tests.support.databases import ROOT
from tests.support.side_by_side import LONG, OWN_SPARK, SPARK_FOLDERS, WHOLE_FOLDERS, WHOLE_MODULES, encodable, put_first, scope


def test_lone_surrogates_of_a_report_are_escaped() -> None:
    report = {"sections": [("log", "a \ud800 b"), ("out", "ä")], "\udfff": None, "duration": 0.5}

    assert encodable(report) == {"sections": [("log", "a \\ud800 b"), ("out", "ä")], "\\udfff": None, "duration": 0.5}


def test_reports_of_a_run_are_escaped(pytestconfig: pytest.Config) -> None:
    report = pytest.TestReport("a", ("a.py", 1, "a"), {}, "passed", None, "call", [("log", "\ud800")])

    sent = pytestconfig.hook.pytest_report_to_serializable(config=pytestconfig, report=report)

    assert ("log", "\\ud800") in sent["sections"]


def test_module_with_expensive_fixtures_is_run_by_one_process_and_other_tests_by_any() -> None:
    assert [module for module in WHOLE_MODULES if not (ROOT / module).is_file()] == []
    assert [folder for folder in WHOLE_FOLDERS if not (ROOT / folder).is_dir()] == []
    assert scope("tests/docs/test_examples.py::test_a[b::c]") == "tests/docs/test_examples.py"
    assert scope("tests/docs/test_links.py::test_a[b]") == "tests/docs/test_links.py::test_a[b]"
    assert scope("tests/pipeline/test_a.py::test_a") == scope("tests/pipeline/kills/test_b.py::test_c[d]") == "tests/pipeline/"
    assert scope("tests/spark/test_a.py::test_a") == "tests/spark/"
    assert scope("tests/packaging/test_a.py::test_a") == scope("tests/packaging/test_b.py::test_c[d]") == "tests/packaging/"
    assert scope("tests/pipeline/test_kills.py::test_a[b]") == "tests/pipeline/test_kills.py::test_a[b]"


def test_longest_modules_start_first() -> None:
    assert [path for path in (*SPARK_FOLDERS, *OWN_SPARK, *LONG) if not (ROOT / path.partition("::")[0]).exists()] == []
    named = [path.partition("::") for path in (*OWN_SPARK, *LONG) if "::" in path]
    assert [test for module, _, test in named if f"def {test}(" not in (ROOT / module).read_text("utf-8")] == []
    others = ["tests/a.py::b", "tests/c.py::d"]
    own = "tests/spark/test_session.py::test_session_leaves_no_files[a]"
    queue = OrderedDict.fromkeys([*others, "tests/browser/test_a.py::c", own, "tests/pipeline/", "tests/spark/"])

    put_first(queue)

    assert list(queue) == ["tests/spark/", "tests/pipeline/", own, "tests/browser/test_a.py::c", *others]
