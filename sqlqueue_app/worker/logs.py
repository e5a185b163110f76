"""Log lines of the worker, as text or as JSON; the fields of a record (`extra`) are kept in both.

Loggers: `sqlqueue.worker`, `sqlqueue.receive`, `sqlqueue.send`, `sqlqueue.background`. Each record has an `event` that never
changes, though its sentence may. Bodies are never logged.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

from sqlqueue_app.messages.errors import json_text, terminal_line, terminal_text

FIELDS = ("event", "endpoint", "queue", "message_id", "attempt", "delay_seconds", "job")

_before: dict[logging.Handler, tuple[int, bool]] = {}  # what `remove_logging` brings back


class TextFormatter(logging.Formatter):
    """`2026-11-20 10:11:12,123 INFO sqlqueue.receive message expired [event=message_expired queue=Sales]`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """The line, with the fields in brackets behind its sentence and before a traceback.

        More lines are indented: names of queues and texts of errors come out of messages, and could look like lines of their own.
        """
        first, *rest = terminal_text(super().format(record)).split("\n")
        found = ((name, getattr(record, name, None)) for name in FIELDS)
        fields = " ".join(f"{name}={terminal_line(str(value))}" for name, value in found if value not in (None, ""))
        return "\n".join([f"{first} [{fields}]" if fields else first, *(f"    {line}" for line in rest)])


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time (UTC, ISO 8601), level, logger, message, the fields, exception."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "thread": record.threadName,
        }
        line |= {name: value for name in FIELDS if (value := getattr(record, name, None)) is not None}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json_text(json.dumps(line, ensure_ascii=False, default=str))


def configure_logging(form: str, *, level: int, stream: TextIO | None = None, propagate: bool = False) -> logging.Handler | None:
    """Give the `sqlqueue` loggers a handler, unless the project's LOGGING has; returns it, for `remove_logging`.

    With `propagate` the handlers of the root logger hear of everything as well, and a level that was set before stays.
    """
    root = logging.getLogger("sqlqueue")
    if root.handlers:
        return None
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    handler.setLevel(level)
    root.addHandler(handler)
    _before[handler] = (root.level, root.propagate)
    if not propagate or root.level == logging.NOTSET:
        root.setLevel(level)
    root.propagate = propagate
    return handler


def remove_logging(handler: logging.Handler | None) -> None:
    """Take the handler away again."""
    if handler is None:
        return
    root = logging.getLogger("sqlqueue")
    root.removeHandler(handler)
    level, root.propagate = _before.pop(handler)
    root.setLevel(level)
