"""Tables of your database as message queues, wire-compatible with NServiceBus.

Import the public names from here::

    from sqlqueue_app import handles, message_type, send

The names are imported when they are first used: importing the package needs no configured Django.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlqueue_app.browsing.lookup import (
        MessageState,
        MessageStatus,
        RevokeResult,
        amessage_status,
        arevoke,
        message_status,
        revoke,
    )
    from sqlqueue_app.health_checks import health_check
    from sqlqueue_app.messages.errors import QueueNotFound, SoftTimeLimitExceeded, SqlQueueError, Unrecoverable
    from sqlqueue_app.messages.types import message_type
    from sqlqueue_app.policies.recoverability import Discard, MoveToError, Retry, RetryLater, RetryNow, default_policy
    from sqlqueue_app.receiving.context import MessageContext
    from sqlqueue_app.receiving.handlers import handles
    from sqlqueue_app.receiving.requests import close_callbacks, request
    from sqlqueue_app.sagas.marks import continues, on_timeout, starts
    from sqlqueue_app.sagas.model import Saga
    from sqlqueue_app.sagas.saga_admin import SagaAdmin
    from sqlqueue_app.sending.sender import apublish, asend, asend_many, publish, send, send_many, subscribe, unsubscribe
    from sqlqueue_app.sending.subscribers import forget_subscribers
    from sqlqueue_app.status.control import pause, resume, set_concurrency
    from sqlqueue_app.status.scheduling import schedule, unschedule

__version__ = "0.1.0"

__all__ = [
    "send", "send_many", "publish", "asend", "asend_many", "apublish", "subscribe", "unsubscribe",
    "revoke", "arevoke", "RevokeResult", "message_status", "amessage_status", "MessageStatus", "MessageState",
    "handles", "health_check", "message_type", "request", "schedule", "unschedule",
    "Unrecoverable", "Retry", "RetryNow", "RetryLater", "MoveToError", "Discard", "default_policy",
    "MessageContext", "SqlQueueError", "QueueNotFound", "SoftTimeLimitExceeded",
    "Saga", "starts", "continues", "on_timeout", "SagaAdmin",
    "pause", "resume", "set_concurrency", "close_callbacks", "forget_subscribers",
]  # fmt: skip

_NAMES = {
    "sqlqueue_app.browsing.lookup": (
        "MessageState",
        "MessageStatus",
        "RevokeResult",
        "amessage_status",
        "arevoke",
        "message_status",
        "revoke",
    ),
    "sqlqueue_app.health_checks": ("health_check",),
    "sqlqueue_app.messages.errors": ("QueueNotFound", "SoftTimeLimitExceeded", "SqlQueueError", "Unrecoverable"),
    "sqlqueue_app.messages.types": ("message_type",),
    "sqlqueue_app.policies.recoverability": ("Discard", "MoveToError", "Retry", "RetryLater", "RetryNow", "default_policy"),
    "sqlqueue_app.receiving.context": ("MessageContext",),
    "sqlqueue_app.receiving.handlers": ("handles",),
    "sqlqueue_app.receiving.requests": ("close_callbacks", "request"),
    "sqlqueue_app.sagas.marks": ("continues", "on_timeout", "starts"),
    "sqlqueue_app.sagas.model": ("Saga",),
    "sqlqueue_app.sagas.saga_admin": ("SagaAdmin",),
    "sqlqueue_app.sending.sender": ("apublish", "asend", "asend_many", "publish", "send", "send_many", "subscribe", "unsubscribe"),
    "sqlqueue_app.sending.subscribers": ("forget_subscribers",),
    "sqlqueue_app.status.control": ("pause", "resume", "set_concurrency"),
    "sqlqueue_app.status.scheduling": ("schedule", "unschedule"),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
