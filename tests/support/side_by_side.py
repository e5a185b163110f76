"""Running the tests in several processes of pytest (pytest-xdist), each with its own databases."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator
from typing import Any

import pytest

# Module fixtures that take seconds: one process runs the whole module.
WHOLE_MODULES = {
    "tests/benchmarks/test_hops.py",
    "tests/benchmarks/test_run.py",
    "tests/browser/test_live.py",
    "tests/browser/test_pages.py",
    "tests/demo/test_pages.py",
    "tests/docs/test_examples.py",
}
# Building the wheel and installing it takes ten seconds: one process runs the folder.
WHOLE_FOLDERS = ("tests/packaging/",)
# Starting Spark takes seconds and much memory: one process runs all tests of such a folder.
SPARK_FOLDERS = ("tests/spark/", "tests/pipeline/")
# These start Spark in separate processes, which takes longest: any process runs them, one at a time.
OWN_SPARK = (
    "tests/pipeline/test_kills.py",
    "tests/pipeline/test_cluster.py",
    "tests/pipeline/test_warm.py::test_process_keeps_its_java_between_runs",
    "tests/spark/test_session.py::test_session_leaves_no_files",
)
# The slowest of the remaining tests.
LONG = (
    *("tests/browser/", "tests/docs/test_examples.py", "tests/benchmarks/", "tests/packaging/", "tests/demo/"),
    "tests/chaos/",
    "tests/receiving/test_gunicorn.py",
    "tests/receiving/test_keys.py::test_thirty_kills_keep_each_key_in_order",
    "tests/worker/test_connections.py::test_worker_holds_one_session_per_receive_thread_and_few_more",
    "tests/worker/test_process_deaths.py",
)


# optional: without pytest-xdist the tests run in one process
@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Schedule the tests: each process takes the next test, module or folder when it is free, the slowest first."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
        """Replaces the default, which keeps every module together and starts with the largest; pytest 9.2 ignores group marks."""

        def _split_scope(self, nodeid: str) -> str:
            return scope(nodeid)

        def _assign_work_unit(self, node: Any) -> None:
            if not self.assigned_work[node]:
                # a process takes its first work unit
                put_first(self.workqueue)
            super()._assign_work_unit(node)

    return Scheduling(config, log)


def scope(nodeid: str) -> str:
    """The unit that one process runs: a folder that shares a Spark session or a wheel, a whole module or a test."""
    if nodeid.startswith(OWN_SPARK):
        return nodeid
    module = nodeid.partition("::")[0]
    if module.startswith((*SPARK_FOLDERS, *WHOLE_FOLDERS)):
        return "/".join(module.split("/")[:2]) + "/"
    return module if module in WHOLE_MODULES else nodeid


def put_first(queue: OrderedDict[str, Any]) -> None:
    """Move the slowest units to the front, so that the run does not wait for one process at the end."""
    first = [*SPARK_FOLDERS, *(each for part in (OWN_SPARK, LONG) for each in queue if each.startswith(part))]
    for each in reversed(first):
        if each in queue:
            queue.move_to_end(each, last=False)


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable(config: pytest.Config) -> Generator[None, Any, Any]:
    """Escape surrogates that tests log: a report that cannot be encoded would end the run."""
    return encodable((yield))


def encodable(value: Any) -> Any:
    """The value with all strings encodable as UTF-8, at any depth of lists, tuples and dictionaries."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {encodable(key): encodable(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(encodable(each) for each in value)
    return value
