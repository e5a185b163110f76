"""Log lines of the worker."""

from __future__ import annotations

import io
import json
import logging
import re
import time
from typing import Any

import pytest
from django.core.management import call_command

from sqlqueue_app import handles
from sqlqueue_app.conf import get_settings
from sqlqueue_app.receiving.endpoint import endpoints_of
from sqlqueue_app.receiving.measures import done
from sqlqueue_app.worker.logs import configure_logging, remove_logging
from sqlqueue_app.worker.run import Activity
from tests.support.bench import Bench
from tests.support.databases import QueueDatabase


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


def test_text_lines_begin_with_local_time_and_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        text = logged("text")
    finally:
        monkeypatch.undo()
        time.tzset()
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}\+05:30 ERROR ", text)


def test_worker_logs_handled_messages_once_a_minute(sqlite_database: QueueDatabase, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="sqlqueue")
    sqlite_database.configure(ENDPOINTS={"Sales": {}, "Billing": {}})
    endpoints = endpoints_of(get_settings(), None)
    now = 100.0
    activity = Activity(endpoints, clock=lambda: now)

    activity.report()
    endpoints[0].measures.handled([done({}, 0.0, 1.0)], 0.0)
    endpoints[0].measures.failed({})
    endpoints[0].measures.failed({})
    now = 160.0
    activity.report()
    now = 220.0
    activity.report()

    assert [record.getMessage() for record in caplog.records if record.__dict__.get("event") == "worker_activity"] == [
        "handled in the last 60 s: Sales 1 message, 2 failed attempts; Billing 0 messages, 0 failed attempts",
        "handled in the last 60 s: Sales 0 messages, 0 failed attempts; Billing 0 messages, 0 failed attempts",
    ]


def test_json_lines_contain_fields_and_exception() -> None:
    (line,) = logged("json").splitlines()
    found = json.loads(line)
    assert found["message"] == "it failed"
    assert (found["level"], found["logger"], found["event"], found["queue"]) == ("ERROR", "sqlqueue.receive", "some_event", "Sales")
    assert found["time"].endswith("+00:00")
    assert "ValueError: ☃" in found["exception"]


def test_text_lines_end_with_the_fields() -> None:
    first = logged("text").splitlines()[0]
    assert first.endswith("ERROR sqlqueue.receive it failed [event=some_event queue=Sales message_id=1]")


def test_handler_of_the_project_is_left_alone() -> None:
    own = logging.NullHandler()
    logging.getLogger("sqlqueue").addHandler(own)
    try:
        assert configure_logging("json", level=logging.INFO) is None
        assert logging.getLogger("sqlqueue").handlers == [own]
    finally:
        logging.getLogger("sqlqueue").removeHandler(own)


def test_root_collector_gets_the_log_of_a_worker_in_process(sqlite_bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="sqlqueue")
    call_command("run_sqlqueue_worker", until_empty=True, log_level="error")

    found = {(record.levelname, getattr(record, "event", None)) for record in caplog.records}
    assert {("INFO", "worker_started"), ("INFO", "worker_stopped"), ("DEBUG", "thread_started")} <= found
    logger = logging.getLogger("sqlqueue")
    assert (logger.handlers, logger.level, logger.propagate) == ([], logging.DEBUG, True)


@pytest.mark.parametrize(("retries", "event"), [(0, "moved_to_error_queue"), (1, "delayed_retry")])
def test_failed_attempt_is_one_record_with_a_short_traceback(
    bench: Bench, caplog: pytest.LogCaptureFixture, retries: int, event: str
) -> None:
    caplog.set_level(logging.DEBUG, logger="sqlqueue")
    bench.configure(DELAYED_RETRIES=retries, DELAYED_RETRY_INCREASE=3600)

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        raise LookupError("no such order")

    bench.put_message("Test.Message")
    bench.run()

    found = [record for record in caplog.records if record.__dict__.get("event") == event]
    assert len(found) == 1
    assert len([record for record in caplog.records if "Traceback" in record.getMessage() or record.exc_info]) == 1
    text, trace = found[0].getMessage().split("\nTraceback (most recent call last):\n")
    assert text.endswith("no such order")
    assert retries == 0 or text.startswith("attempt 1 failed, trying again in 3600 s: ")
    assert trace.splitlines()[0].startswith(f'  File "{__file__}", line ')
    assert trace.splitlines()[-1] == "LookupError: no such order"
    assert "processing.py" not in trace


def test_lost_transaction_is_one_record_with_a_traceback(postgresql_bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="sqlqueue")

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        with context.connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    postgresql_bench.put_message("Test.Message")
    postgresql_bench.run()

    with_trace = [record.__dict__["event"] for record in caplog.records if "Traceback" in record.getMessage() or record.exc_info]
    assert with_trace == ["moved_to_error_queue"]
