"""Log lines of the worker."""

from __future__ import annotations

import io
import json
import logging

import pytest
from django.core.management import call_command

from sqlqueue_app.worker.logs import configure_logging, remove_logging
from tests.support.bench import Bench


def logged(form: str) -> str:
    stream = io.StringIO()
    handler = configure_logging(form, level=logging.INFO, stream=stream)
    try:
        logger = logging.getLogger("sqlqueue.receive")
        logger.debug("not shown")
        try:
            raise ValueError("☃")
        except ValueError:
            logger.exception("it %s", "failed", extra={"event": "some_event", "queue": "Sales", "message_id": "1"})
    finally:
        remove_logging(handler)
    assert logging.getLogger("sqlqueue").handlers == []
    return stream.getvalue()


def test_json_lines_hold_the_fields_and_the_exception() -> None:
    (line,) = logged("json").splitlines()
    found = json.loads(line)
    assert found["message"] == "it failed"
    assert (found["level"], found["logger"], found["event"], found["queue"]) == ("ERROR", "sqlqueue.receive", "some_event", "Sales")
    assert found["time"].endswith("+00:00")
    assert "ValueError: ☃" in found["exception"]


def test_text_lines_hold_the_fields_behind_the_sentence() -> None:
    first = logged("text").splitlines()[0]
    assert first.endswith("ERROR sqlqueue.receive it failed [event=some_event queue=Sales message_id=1]")


def test_a_projects_own_handler_is_left_alone() -> None:
    own = logging.NullHandler()
    logging.getLogger("sqlqueue").addHandler(own)
    try:
        assert configure_logging("json", level=logging.INFO) is None
        assert logging.getLogger("sqlqueue").handlers == [own]
    finally:
        logging.getLogger("sqlqueue").removeHandler(own)


def test_a_collector_at_the_root_hears_of_a_worker_that_python_code_runs(
    sqlite_bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="sqlqueue")
    call_command("run_sqlqueue_worker", until_empty=True, log_level="error")

    found = {(record.levelname, getattr(record, "event", None)) for record in caplog.records}
    assert {("INFO", "worker_started"), ("INFO", "worker_stopped"), ("DEBUG", "thread_started")} <= found
    logger = logging.getLogger("sqlqueue")
    assert (logger.handlers, logger.level, logger.propagate) == ([], logging.DEBUG, True)
