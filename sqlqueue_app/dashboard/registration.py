"""Putting the pages on an admin site."""

from __future__ import annotations

from typing import Final

from django.contrib.admin import AdminSite

from sqlqueue_app.dashboard.action_admin import ActionAdmin
from sqlqueue_app.dashboard.analytics_admin import AnalyticsAdmin
from sqlqueue_app.dashboard.check_admin import CheckAdmin
from sqlqueue_app.dashboard.conversation_admin import ConversationAdmin
from sqlqueue_app.dashboard.dashboard_admin import DashboardAdmin
from sqlqueue_app.dashboard.delayed_admin import DelayedAdmin
from sqlqueue_app.dashboard.endpoint_admin import EndpointAdmin
from sqlqueue_app.dashboard.event_admin import EventAdmin
from sqlqueue_app.dashboard.failure_admin import FailureAdmin
from sqlqueue_app.dashboard.instance_admin import InstanceAdmin
from sqlqueue_app.dashboard.lake_admin import LakeSearchAdmin
from sqlqueue_app.dashboard.notification_admin import NotificationAdmin
from sqlqueue_app.dashboard.operation_admin import OperationAdmin
from sqlqueue_app.dashboard.pipeline_admin import PipelineAdmin
from sqlqueue_app.dashboard.queue_admin import QueueAdmin
from sqlqueue_app.dashboard.redirect_admin import RedirectAdmin
from sqlqueue_app.dashboard.schedule_admin import ScheduleAdmin
from sqlqueue_app.dashboard.subscription_admin import SubscriptionAdmin
from sqlqueue_app.models import (
    Analytics,
    CheckResult,
    Conversation,
    Dashboard,
    DelayedMessage,
    Endpoint,
    Event,
    FailedMessage,
    Instance,
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

ADMINS: Final = (
    (Dashboard, DashboardAdmin),
    (Queue, QueueAdmin),
    (Endpoint, EndpointAdmin),
    (FailedMessage, FailureAdmin),
    (Conversation, ConversationAdmin),
    (LakeSearch, LakeSearchAdmin),
    (Analytics, AnalyticsAdmin),
    (Instance, InstanceAdmin),
    (DelayedMessage, DelayedAdmin),
    (Subscription, SubscriptionAdmin),
    (Schedule, ScheduleAdmin),
    (Redirect, RedirectAdmin),
    (CheckResult, CheckAdmin),
    (Event, EventAdmin),
    (NotificationRule, NotificationAdmin),
    (Operation, OperationAdmin),
    (PipelineRun, PipelineAdmin),
    (OperatorAction, ActionAdmin),
)


def register(site: AdminSite) -> None:
    """Register all pages on a site; harmless where they are registered already.

    The default site has them by itself. A project with further sites calls this for each.
    """
    for model, model_admin in ADMINS:
        if not site.is_registered(model):
            site.register(model, model_admin)
