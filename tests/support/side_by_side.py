"""Several processes of pytest run the tests (pytest-xdist), each with databases of its own, and report to the one that prints."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

# What these make for all tests of the module takes seconds: one process runs the whole module. They are begun first.
WHOLE_MODULES = {
    "tests/benchmarks/test_run.py",
    "tests/browser/test_live.py",
    "tests/browser/test_pages.py",
    "tests/demo/test_pages.py",
    "tests/docs/test_examples.py",
    "tests/packaging/test_wheel.py",
}
# Starting Spark takes seconds and much memory: one process does it, for all tests of these folders.
SPARK_FOLDERS = ("tests/spark/", "tests/pipeline/")


# optional: without pytest-xdist the tests run in one process
@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Which process runs what: each takes the next test, or the next of the WHOLE_MODULES, when it has done its last."""
    from xdist.scheduler import LoadScopeScheduling

    scheduler = LoadScopeScheduling(config, log)
    # its own takes every module whole; groups that marks name (loadgroup) are not seen by pytest 9.2
    scheduler._split_scope = scope
    return scheduler


def scope(nodeid: str) -> str:
    """What is run as one by one process: all that shares a Spark, a whole module or a test."""
    module = nodeid.partition("::")[0]
    if module.startswith(SPARK_FOLDERS):
        return "spark"
    return module if module in WHOLE_MODULES else nodeid


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable(config: pytest.Config) -> Generator[None, Any, Any]:
    """Half characters (surrogates), which tests log, are sent as escapes: a report that cannot be encoded ends the run."""
    return encodable((yield))


def encodable(value: Any) -> Any:
    """The value with texts that UTF-8 can say, in every depth of lists, tuples and dictionaries."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {encodable(key): encodable(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(encodable(each) for each in value)
    return value
