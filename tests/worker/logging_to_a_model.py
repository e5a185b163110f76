"""Settings of a project whose log handler writes to the database, and therefore imports a model when it is first called."""

from __future__ import annotations

import logging

from tests.settings import *  # noqa: F403 - settings


class ModelHandler(logging.Handler):
    """As handlers of third-party apps do it."""

    def emit(self, record: logging.LogRecord) -> None:
        """Import the model, and write nothing."""
        from django.contrib.auth.models import User  # noqa: F401 - cannot be imported by settings


LOGGING = {
    "version": 1,
    "handlers": {"own": {"class": f"{__name__}.ModelHandler"}},
    "loggers": {"sqlqueue": {"handlers": ["own"], "level": "INFO"}},
}
