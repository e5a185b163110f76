"""Any value of SQLQUEUE gives either a list of problems or working settings, never another exception."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, strategies as st

from sqlqueue_app.conf.settings import read_settings
from sqlqueue_app.installation import planned_tables, unusable_names
from sqlqueue_app.messages.errors import SqlQueueError
from tests.conf.settings_shapes import some_settings
from tests.support.fuzzing import fuzzed

pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")
DIALECTS = {"default": "postgresql", "queues": "sqlite", "": "sqlserver"}
quick = fuzzed(150)


def check(raw: Any, dialect: str) -> None:
    """Check that one value of the setting is either refused with problems or usable."""
    read, problems = read_settings(raw, dialects={**DIALECTS, "default": dialect})
    for problem in problems:
        assert "SQLQUEUE" in problem.message, problem
        assert problem.hint, problem
        assert len(problem.message) < 4_000, problem
    repr(read)
    if any(problem.is_error for problem in problems):
        return
    # The settings are valid: everything derived without a database must work or report what is wrong.
    unusable = unusable_names(read, dialect)
    try:
        planned_tables(read, dialect)
    except SqlQueueError:
        assert unusable
    for name in read.endpoints:
        endpoint = read.endpoint(name)
        assert endpoint.concurrency(random.Random(0).randint(1, 64)) >= 1
        endpoint.receiving_queue_names()


@quick
@given(raw=some_settings, dialect=st.sampled_from(["postgresql", "sqlite", "sqlserver"]))
def test_any_value_is_read_or_refused(raw: Any, dialect: str) -> None:
    check(raw, dialect)
