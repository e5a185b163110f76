"""Tests that are not repeated on the newest Django, where `make test` runs the tests a second time with `-m "not once"`.

Tests that do not depend on the Python or Django version run only once: the browser, programs that are started and killed, SQL
texts, filters by text, the documentation, memory, the wheel, figures of benchmarks. Of the examples of the documentation, those are
repeated that start a project or use Django's tasks. Tests that run on each product run there only on SQLite, which comes with
Python. The contract of the tables, which depends on Django's database layer, and the installation run there on each product. A
single test can be marked with `pytest.mark.once`.
"""

from __future__ import annotations

import pytest

ONCE = (
    "tests/benchmarks/",
    "tests/browser/",
    "tests/chaos/",
    "tests/contract/test_send.py::test_body_of_64_mib_is_stored",
    "tests/dashboard/test_permission_matrix.py::test_text_filters_do_not_reveal_bodies",
    "tests/demo/test_demo.py",
    "tests/dialects/",
    "tests/docs/",
    "tests/failures/test_bulk.py::test_killed_worker_leaves_whole_batches_and_another_continues",
    "tests/packaging/",
    "tests/receiving/test_any_delayed.py",
    "tests/receiving/test_delayed_retries.py::test_four_processes_make_exactly_the_configured_attempts",
    "tests/receiving/test_gunicorn.py",
    "tests/receiving/test_keys.py::test_thirty_kills_keep_each_key_in_order",
    "tests/receiving/test_priorities.py::test_kills_lose_and_repeat_nothing_in_any_queue",
    "tests/receiving/test_rate_limits.py::test_killed_workers_lose_nothing_and_handle_nothing_twice",
    "tests/receiving/test_request_processes.py",
    "tests/sagas/test_kills.py",
    "tests/security/test_log_lines.py",
    "tests/security/test_nothing_is_imported_or_run.py",
    "tests/security/test_too_many_tries.py",
    "tests/security/test_xml_bombs.py",
    "tests/sending/test_iterables.py::test_memory_grows_only_by_the_ids",
    "tests/sending/test_unique.py::test_killed_senders_send_each_key_once",
    "tests/support/",
    "tests/test_architecture.py",
    "tests/worker/test_outages.py",
    "tests/worker/test_process_deaths.py",
    "tests/worker/test_processes.py",
    "tests/worker/test_supervisor.py::test_children_end_with_a_killed_supervisor_and_lose_nothing",
    "tests/worker/test_supervisor.py::test_ended_process_is_restarted_and_a_signal_to_the_supervisor_stops_all",
)
# Exceptions of ONCE.
REPEATED = tuple(
    f"tests/docs/test_examples.py::test_examples_of_a_page_run[{page}]"
    for page in ("README.md", "docs/quickstart.md", "docs/howto/django-tasks.md")
)
ON_EACH_PRODUCT = ("tests/contract/", "tests/installation/")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark these tests before `-m` selects."""
    for item in items:
        callspec = getattr(item, "callspec", None)
        if is_once(item.nodeid, None if callspec is None else callspec.params.get("queue_database")):
            item.add_marker("once")


def is_once(nodeid: str, product: object) -> bool:
    """Whether a test that runs on a product (None: on none, or always on the same) need not be repeated."""
    if nodeid.startswith(ONCE):
        return not nodeid.startswith(REPEATED)
    return product not in (None, "sqlite") and not nodeid.startswith(ON_EACH_PRODUCT)
