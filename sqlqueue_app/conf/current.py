"""The settings of the running process: read once, and again when Django's test tools change them."""

from __future__ import annotations

import platform
from dataclasses import replace
from functools import lru_cache
from typing import Any

from django.conf import settings as django_settings
from django.core.signals import setting_changed
from django.dispatch import receiver

from sqlqueue_app.conf.aliases import ConfiguredDialects
from sqlqueue_app.conf.problems import Findings, Problem
from sqlqueue_app.conf.reading import read_settings
from sqlqueue_app.conf.task_backends import (
    find_missing_queues,
    names_our_backend,
    read_task_backends,
    with_endpoints_for_tasks,
)
from sqlqueue_app.conf.values import EndpointSettings, Settings
from sqlqueue_app.messages.errors import ConfigurationError


@lru_cache(maxsize=1)
def get_settings() -> Settings:
    """The `SQLQUEUE` setting, checked and complete; without the setting, the defaults and no endpoints but those for `TASKS`.

    Reads Django's settings at the first call and never connects to a database. Raises ConfigurationError that lists all
    errors; warnings are left to the system checks. Safe to call from any thread.
    """
    settings, problems = _read()
    errors = [problem.message for problem in problems if problem.is_error]
    if len(errors) == 1:
        raise ConfigurationError(errors[0])
    if errors:
        raise ConfigurationError(f"{len(errors)} settings are wrong: {'; '.join(errors)}")
    return settings


def current_problems() -> list[Problem]:
    """What is wrong with the `SQLQUEUE` setting of this process, and with our entries in `TASKS`: errors and warnings."""
    return _read()[1]


def is_configured() -> bool:
    """Whether the project has a `SQLQUEUE` setting at all, or TASKS that need one."""
    return hasattr(django_settings, "SQLQUEUE") or names_our_backend(getattr(django_settings, "TASKS", None))


def instance_name(endpoint: EndpointSettings | None = None) -> str:
    """The name of this instance in callback queues: the endpoint's INSTANCE, else the machine name.

    Processes on one machine share it (design §6.12). Raises ConfigurationError on a machine without a name.
    """
    name = (endpoint.instance if endpoint is not None else None) or platform.node()
    if not name:
        raise ConfigurationError("the machine has no name, expected one for its callback queues; set INSTANCE")
    return name


def _read() -> tuple[Settings, list[Problem]]:
    if not is_configured():
        return Settings(), []
    findings = Findings()
    backends = read_task_backends(getattr(django_settings, "TASKS", None), findings)
    raw = with_endpoints_for_tasks(getattr(django_settings, "SQLQUEUE", {}), backends)
    settings, problems = read_settings(raw, dialects=ConfiguredDialects())
    if not any(problem.is_error for problem in problems):
        find_missing_queues(backends, settings.endpoints, findings)
    return replace(settings, task_backends=backends), [*problems, *findings.problems]


@receiver(setting_changed, dispatch_uid="sqlqueue_app.conf.forget_settings")
def _forget_settings(*, setting: str, **_: Any) -> None:
    if setting in ("SQLQUEUE", "DATABASES", "TASKS"):
        get_settings.cache_clear()
