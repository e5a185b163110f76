"""Django's Tasks framework on our queues: `TASKS = {"default": {"BACKEND": "sqlqueue_app.tasks.SqlQueueBackend"}}`."""

from __future__ import annotations

from sqlqueue_app.tasks.backend import SqlQueueBackend

__all__ = ["SqlQueueBackend"]
