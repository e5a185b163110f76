"""Stored results of Django tasks, for tests."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlqueue_app.models import TaskResult

ENQUEUED_AT = datetime(2026, 5, 1, 12, tzinfo=UTC)
ERROR = {"exception_class_path": "shop.OutOfStock", "traceback": "Traceback (most recent call last):\n  no tea\n"}


def task(name: str, *, minutes: int = 0, status: str = "SUCCESSFUL", **more: Any) -> TaskResult:
    """The result of a task enqueued `minutes` after ENQUEUED_AT; a finished task took two seconds."""
    at = ENQUEUED_AT + timedelta(minutes=minutes)
    ended = {"started_at": at, "last_attempted_at": at, "finished_at": at + timedelta(seconds=2)} if status != "READY" else {}
    known: dict[str, Any] = {"id": str(uuid.uuid4()), "args": ["order 42"], "kwargs": {}, "errors": [], "worker_ids": ["mill:7"]}
    return TaskResult.objects.create(
        **{"backend": "default", "queue_name": "Sales", "task": name, "status": status, "enqueued_at": at, **known, **ended, **more}
    )
