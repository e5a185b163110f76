"""Tables of your database as message queues, wire-compatible with NServiceBus.

    from sqlqueue_app import handles, message_type, send

The names are imported when they are first used: importing the package needs no configured Django.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlqueue_app.health_checks import health_check
    from sqlqueue_app.messages.errors import QueueNotFound, SqlQueueError, Unrecoverable
    from sqlqueue_app.messages.types import message_type
    from sqlqueue_app.policies.recoverability import Discard, MoveToError, RetryLater, RetryNow, default_policy
    from sqlqueue_app.receiving.context import MessageContext
    from sqlqueue_app.receiving.handlers import handles
    from sqlqueue_app.receiving.requests import close_callbacks, request
    from sqlqueue_app.sending.sender import publish, send, send_many, subscribe, unsubscribe
    from sqlqueue_app.sending.subscribers import forget_subscribers
    from sqlqueue_app.status.control import pause, resume, set_concurrency

__version__ = "0.1.0"

__all__ = [
    "send",
    "send_many",
    "publish",
    "subscribe",
    "unsubscribe",
    "handles",
    "health_check",
    "message_type",
    "request",
    "Unrecoverable",
    "RetryNow",
    "RetryLater",
    "MoveToError",
    "Discard",
    "default_policy",
    "MessageContext",
    "SqlQueueError",
    "QueueNotFound",
    "pause",
    "resume",
    "set_concurrency",
    "close_callbacks",
    "forget_subscribers",
]

_CONTROL = "sqlqueue_app.status.control"
_ERRORS = "sqlqueue_app.messages.errors"
_RECOVERABILITY = "sqlqueue_app.policies.recoverability"
_REQUESTS = "sqlqueue_app.receiving.requests"
_SENDER = "sqlqueue_app.sending.sender"

_MODULES = {
    "Discard": _RECOVERABILITY,
    "MessageContext": "sqlqueue_app.receiving.context",
    "MoveToError": _RECOVERABILITY,
    "QueueNotFound": _ERRORS,
    "RetryLater": _RECOVERABILITY,
    "RetryNow": _RECOVERABILITY,
    "SqlQueueError": _ERRORS,
    "Unrecoverable": _ERRORS,
    "close_callbacks": _REQUESTS,
    "default_policy": _RECOVERABILITY,
    "forget_subscribers": "sqlqueue_app.sending.subscribers",
    "handles": "sqlqueue_app.receiving.handlers",
    "health_check": "sqlqueue_app.health_checks",
    "message_type": "sqlqueue_app.messages.types",
    "pause": _CONTROL,
    "publish": _SENDER,
    "request": _REQUESTS,
    "resume": _CONTROL,
    "send": _SENDER,
    "send_many": _SENDER,
    "set_concurrency": _CONTROL,
    "subscribe": _SENDER,
    "unsubscribe": _SENDER,
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
