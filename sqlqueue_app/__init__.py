"""Tables of your database as message queues, wire-compatible with NServiceBus.

    from sqlqueue_app import handles, message_type, send

The names are imported when they are first used: importing the package needs no configured Django.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlqueue_app.callbacks.request import request
    from sqlqueue_app.health_checks import health_check
    from sqlqueue_app.messages.errors import Unrecoverable
    from sqlqueue_app.messages.types import message_type
    from sqlqueue_app.policies.recoverability import Discard, MoveToError, RetryLater, RetryNow, default_policy
    from sqlqueue_app.receiving.handlers import handles
    from sqlqueue_app.sending.publisher import publish
    from sqlqueue_app.sending.sender import send, send_many
    from sqlqueue_app.sending.subscribing import subscribe, unsubscribe

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
]

_RECOVERABILITY = "sqlqueue_app.policies.recoverability"

_HOMES = {
    "Discard": _RECOVERABILITY,
    "MoveToError": _RECOVERABILITY,
    "RetryLater": _RECOVERABILITY,
    "RetryNow": _RECOVERABILITY,
    "Unrecoverable": "sqlqueue_app.messages.errors",
    "default_policy": _RECOVERABILITY,
    "handles": "sqlqueue_app.receiving.handlers",
    "health_check": "sqlqueue_app.health_checks",
    "message_type": "sqlqueue_app.messages.types",
    "publish": "sqlqueue_app.sending.publisher",
    "request": "sqlqueue_app.callbacks.request",
    "send": "sqlqueue_app.sending.sender",
    "send_many": "sqlqueue_app.sending.sender",
    "subscribe": "sqlqueue_app.sending.subscribing",
    "unsubscribe": "sqlqueue_app.sending.subscribing",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
