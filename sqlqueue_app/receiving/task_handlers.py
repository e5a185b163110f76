"""The handler that runs Django Tasks, for the endpoints that tasks are sent to."""

from __future__ import annotations

from sqlqueue_app.conf import TASK_HANDLER, TASK_MESSAGE, Settings
from sqlqueue_app.conf.callables import load_callable
from sqlqueue_app.receiving.handlers import Handler


def task_handlers(settings: Settings, endpoint: str) -> list[Handler]:
    """What runs the tasks that Django's setting TASKS sends to this endpoint. Known by its path: nothing imports the backend."""
    if not takes_tasks(settings, endpoint):
        return []
    return [Handler(TASK_MESSAGE, load_callable(TASK_HANDLER, setting="TASKS"), None)]


def takes_tasks(settings: Settings, endpoint: str) -> bool:
    """Whether TASKS sends anything to this endpoint."""
    return any(backend.takes_tasks(endpoint, settings.endpoints) for backend in settings.task_backends.values())
