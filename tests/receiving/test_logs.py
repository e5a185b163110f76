"""Log lines of the worker."""

from __future__ import annotations

import io
import json
import logging

from sqlqueue_app.logs import configure_logging, remove_logging


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
