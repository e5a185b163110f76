"""Django models: managed tables, anchors of the pages and permissions of the dashboard, and `queue_model`."""

from __future__ import annotations

from django.apps import apps
from django.db import models, router

from sqlqueue_app.models.anchors import (
    Analytics,
    Conversation,
    Dashboard,
    DelayedMessage,
    Endpoint,
    LakeSearch,
    Queue,
    Search,
    Subscription,
)
from sqlqueue_app.models.cluster import (
    CallbackQueue,
    Claim,
    DistributedTransaction,
    EndpointExpectation,
    EndpointSample,
    EndpointTotal,
    HandledMessage,
    Instance,
    MissedPolicy,
    QueueSample,
    RateReservation,
    Schedule,
    ScheduleKind,
    ScheduleTick,
    TaskResult,
    TwoPhaseCoordinator,
    UniqueMessage,
)
from sqlqueue_app.models.failures import FailedAttempt, FailedMessage, FailureGroup, FailureStatus, Redirect
from sqlqueue_app.models.lake import (
    BatchKind,
    ConversationEdge,
    CopyOutcome,
    EndpointSeen,
    GroupFigures,
    LakeBatch,
    LakeCopy,
    LakeFile,
    LakePosition,
    MessageFigures,
    NotableKind,
    NotableMessage,
    PipelineRun,
    QueueFigures,
    RunState,
    UsageDay,
)
from sqlqueue_app.models.monitoring import (
    CheckResult,
    DeliveryState,
    Event,
    NotificationChannel,
    NotificationDelivery,
    NotificationKind,
    NotificationRule,
    Severity,
)
from sqlqueue_app.models.operations import ActionResult, Operation, OperationState, OperatorAction
from sqlqueue_app.models.queues import queue_model, queue_models

__all__ = [
    "ActionResult",
    "Analytics",
    "BatchKind",
    "CallbackQueue",
    "CheckResult",
    "Claim",
    "Conversation",
    "ConversationEdge",
    "CopyOutcome",
    "Dashboard",
    "DelayedMessage",
    "DeliveryState",
    "DistributedTransaction",
    "Endpoint",
    "EndpointExpectation",
    "EndpointSample",
    "EndpointSeen",
    "EndpointTotal",
    "Event",
    "FailedAttempt",
    "FailedMessage",
    "FailureGroup",
    "FailureStatus",
    "GroupFigures",
    "HandledMessage",
    "Instance",
    "LakeBatch",
    "LakeCopy",
    "LakeFile",
    "LakePosition",
    "LakeSearch",
    "MessageFigures",
    "MissedPolicy",
    "NotableKind",
    "NotableMessage",
    "NotificationChannel",
    "NotificationDelivery",
    "NotificationKind",
    "NotificationRule",
    "Operation",
    "OperationState",
    "OperatorAction",
    "PipelineRun",
    "Queue",
    "QueueFigures",
    "QueueSample",
    "RateReservation",
    "Redirect",
    "RunState",
    "Schedule",
    "ScheduleKind",
    "ScheduleTick",
    "Search",
    "Severity",
    "Subscription",
    "TaskResult",
    "TwoPhaseCoordinator",
    "UniqueMessage",
    "UsageDay",
    "managed_alias",
    "managed_models",
    "queue_model",
    "queue_models",
]


def managed_models() -> list[type[models.Model]]:
    """The models whose tables `migrate` creates; a worker reads and writes them."""
    return [model for model in apps.get_app_config("sqlqueue_app").get_models() if model._meta.managed]


def managed_alias() -> str:
    """The alias that holds the managed tables, by the project's routers."""
    return router.db_for_write(Instance)
