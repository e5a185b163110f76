"""The `SQLQUEUE` setting: typed, checked, read when first needed.

`get_settings()` gives the settings of the process; `settings_problems()` says what is wrong with a dictionary.
"""

from __future__ import annotations

from sqlqueue_app.conf.aliases import dialect_of
from sqlqueue_app.conf.current import current_problems, get_settings, instance_name, is_configured
from sqlqueue_app.conf.not_yet import NOT_YET
from sqlqueue_app.conf.problems import Code, KeyPath, Problem
from sqlqueue_app.conf.reading import settings_problems
from sqlqueue_app.conf.task_backends import TASK_HANDLER, TASK_MESSAGE, TaskBackend, TaskQueue
from sqlqueue_app.conf.values import (
    ConcurrencyModel,
    CustomCheckSettings,
    EndpointSettings,
    MetricsSettings,
    PipelineSettings,
    SatelliteSettings,
    ScheduleSettings,
    Settings,
)

__all__ = [
    "NOT_YET",
    "TASK_HANDLER",
    "TASK_MESSAGE",
    "Code",
    "ConcurrencyModel",
    "CustomCheckSettings",
    "EndpointSettings",
    "KeyPath",
    "Problem",
    "SatelliteSettings",
    "MetricsSettings",
    "PipelineSettings",
    "ScheduleSettings",
    "Settings",
    "TaskBackend",
    "TaskQueue",
    "current_problems",
    "dialect_of",
    "get_settings",
    "instance_name",
    "is_configured",
    "settings_problems",
]
