"""Log lines of the worker, as text or as JSON; the fields of a record (`extra`) are kept in both.

Loggers: `sqlqueue.worker`, `sqlqueue.receive`, `sqlqueue.send`, `sqlqueue.background`. The `event` of a record is stable, its
sentence may change. Bodies are never logged.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

from sqlqueue_app.messages.errors import json_text, terminal_line, terminal_text

FIELDS = ("event", "endpoint", "queue", "message_id", "attempt", "delay_seconds", "due", "job")

_before: dict[logging.Handler, tuple[int, bool]] = {}  # what `remove_logging` brings back


class TextFormatter(logging.Formatter):
    """`2026-11-20 10:11:12.123+01:00 INFO sqlqueue.receive message expired [event=message_expired queue=Sales]`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 - overrides logging.Formatter
        """The local time with its offset from UTC."""
        return datetime.fromtimestamp(record.created, UTC).astimezone().isoformat(" ", "milliseconds")

    def format(self, record: logging.LogRecord) -> str:
        """Format the line, with the fields in brackets after its sentence and before a traceback.

        Further lines are indented: names of queues and error texts come from messages, and could imitate log lines.
        """
        first, *rest = terminal_text(super().format(record)).split("\n")
        found = ((name, getattr(record, name, None)) for name in FIELDS)
        fields = " ".join(f"{name}={terminal_line(str(value))}" for name, value in found if value not in (None, ""))
        return "\n".join([f"{first} [{fields}]" if fields else first, *(f"    {line}" for line in rest)])


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time (UTC, ISO 8601), level, logger, message, the fields, exception."""

    def format(self, record: logging.LogRecord) -> str:
        """Format the record."""
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
    """Add a handler to the `sqlqueue` loggers, unless the project's LOGGING has one, and return it for `remove_logging`.

    With `propagate` the handlers of the root logger also receive every record, and a level that was set before stays.
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
    """Remove the handler."""
    if handler is None:
        return
    root = logging.getLogger("sqlqueue")
    root.removeHandler(handler)
    level, root.propagate = _before.pop(handler)
    root.setLevel(level)
