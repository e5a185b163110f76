"""`DATABASE_ROUTERS = ["sqlqueue_app.routers.SqlQueueRouter"]` for projects whose queues are not in `default`."""

from __future__ import annotations

from typing import Any

from django.db.models import Model

from sqlqueue_app.conf import get_settings
from sqlqueue_app.messages.errors import ConfigurationError
from sqlqueue_app.models.queues import QUEUE_MODELS_LABEL

_OURS = frozenset({"sqlqueue_app", QUEUE_MODELS_LABEL})


class SqlQueueRouter:
    """Keeps sqlqueue's own tables and the queue models on `SQLQUEUE["DATABASE"]`; has no opinion on other apps.

    Stateless; safe from any thread. Reads raise ConfigurationError if the settings are invalid.
    """

    def db_for_read(self, model: type[Model], **hints: Any) -> str | None:
        return get_settings().database if model._meta.app_label in _OURS else None

    def db_for_write(self, model: type[Model], **hints: Any) -> str | None:
        return self.db_for_read(model, **hints)

    def allow_migrate(self, db: str, app_label: str, model_name: str | None = None, **hints: Any) -> bool | None:
        """Whether a table of sqlqueue may be created in this database; None for other apps."""
        if app_label not in _OURS:
            return None
        try:
            return db == get_settings().database
        except ConfigurationError:
            return None  # system checks call this too, and report invalid settings themselves
