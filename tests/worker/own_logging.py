"""Settings of a project that configures the logging of its workers."""

from __future__ import annotations

from tests.settings import *  # noqa: F403 - settings

LOGGING = {
    "version": 1,
    "formatters": {"own": {"format": "OWN %(name)s %(message)s"}},
    "handlers": {"own": {"class": "logging.StreamHandler", "formatter": "own"}},
    "loggers": {"sqlqueue": {"handlers": ["own"], "level": "INFO"}},
}
