"""The row of links above every page, to the first page of each part of the dashboard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from django.contrib.admin import AdminSite
from django.db.models import Model
from django.http import HttpRequest
from django.urls import reverse
from django.utils.text import capfirst

from sqlqueue_app.models import (
    Analytics,
    CheckResult,
    Conversation,
    Dashboard,
    DelayedMessage,
    Endpoint,
    Event,
    FailedMessage,
    LakeSearch,
    NotificationRule,
    Operation,
    OperatorAction,
    PipelineRun,
    Queue,
    Redirect,
    Schedule,
    Subscription,
)

PARTS: Final[tuple[type[Model], ...]] = (
    Dashboard,
    Queue,
    Endpoint,
    FailedMessage,
    Conversation,
    LakeSearch,
    Analytics,
    DelayedMessage,
    Subscription,
    Schedule,
    Redirect,
    CheckResult,
    Event,
    NotificationRule,
    Operation,
    PipelineRun,
    OperatorAction,
)


@dataclass(frozen=True, slots=True)
class Tab:
    """A link of the row."""

    label: str
    url: str
    is_here: bool


def tabs(site: AdminSite, request: HttpRequest) -> tuple[Tab, ...]:
    """The parts that are on this site, in their order."""
    found = []
    for model in PARTS:
        if site.is_registered(model):
            url = reverse(f"admin:sqlqueue_app_{model._meta.model_name}_changelist", current_app=site.name)
            found.append(Tab(capfirst(str(model._meta.verbose_name_plural)), url, request.path.startswith(url)))
    return tuple(found)
