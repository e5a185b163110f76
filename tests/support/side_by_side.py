"""Several processes of pytest run the tests (pytest-xdist), each with databases of its own, and report to the one that prints."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator
from typing import Any

import pytest

# What these make for all tests of the module takes seconds: one process runs the whole module.
WHOLE_MODULES = {
    "tests/benchmarks/test_hops.py",
    "tests/benchmarks/test_run.py",
    "tests/browser/test_live.py",
    "tests/browser/test_pages.py",
    "tests/demo/test_pages.py",
    "tests/docs/test_examples.py",
    "tests/packaging/test_wheel.py",
}
# Starting Spark takes seconds and much memory: for all tests of such a folder one process does it.
SPARK_FOLDERS = ("tests/spark/", "tests/pipeline/")
# These start a Spark in processes of their own, which takes longest of all: any process runs them, one by one.
OWN_SPARK = ("tests/pipeline/test_kills.py", "tests/pipeline/test_cluster.py", "tests/spark/test_session.py::test_no_file")
# What takes longest after all of these.
LONG = ("tests/browser/", "tests/docs/test_examples.py", "tests/demo/")


# optional: without pytest-xdist the tests run in one process
@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Which process runs what: each takes the next test, folder or module when it has done its last, the longest first."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
        """Its own takes every module whole, and those with the most tests first; groups of marks are not seen by pytest 9.2."""

        def _split_scope(self, nodeid: str) -> str:
            return scope(nodeid)

        def _assign_work_unit(self, node: Any) -> None:
            if not self.assigned_work[node]:
                # a process gets its first
                put_first(self.workqueue)
            super()._assign_work_unit(node)

    return Scheduling(config, log)


def scope(nodeid: str) -> str:
    """What is run as one by one process: a folder that shares a Spark, a whole module or a test."""
    if nodeid.startswith(OWN_SPARK):
        return nodeid
    module = nodeid.partition("::")[0]
    if module.startswith(SPARK_FOLDERS):
        return "/".join(module.split("/")[:2]) + "/"
    return module if module in WHOLE_MODULES else nodeid


def put_first(queue: OrderedDict[str, Any]) -> None:
    """Move what takes longest to the front: nobody is to wait for one process at the end."""
    first = [*SPARK_FOLDERS, *(each for part in (OWN_SPARK, LONG) for each in queue if each.startswith(part))]
    for each in reversed(first):
        if each in queue:
            queue.move_to_end(each, last=False)


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
