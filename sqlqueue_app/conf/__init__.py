"""The `SQLQUEUE` setting: typed, checked, read when first needed.

`get_settings()` returns the settings of the process; `settings_problems()` lists the problems of a dictionary.
"""

from __future__ import annotations

from sqlqueue_app.conf.settings import (
    ClaimCheckSettings,
    ConcurrencyModel,
    CustomCheckSettings,
    EndpointSettings,
    MetricsSettings,
    PipelineSettings,
    SatelliteSettings,
    ScheduleSettings,
    Settings,
    current_problems,
    dialect_of,
    get_settings,
    instance_name,
    is_configured,
    settings_for,
    settings_problems,
)
from sqlqueue_app.conf.task_backends import TASK_HANDLER, TASK_MESSAGE, TaskBackend, TaskQueue
from sqlqueue_app.conf.validation import Code

__all__ = [
    "TASK_HANDLER",
    "TASK_MESSAGE",
    "ClaimCheckSettings",
    "Code",
    "ConcurrencyModel",
    "CustomCheckSettings",
    "EndpointSettings",
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
    "settings_for",
    "settings_problems",
]
