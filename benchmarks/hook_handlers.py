"""The hooks of one turn: a receiver of a signal, outgoing middleware, or a handler that sends."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from sqlqueue_app import handles
from sqlqueue_app.signals import message_handled, message_sent

HOOK = "SQLQUEUE_BENCH_HOOK"
"""Names the hook, as in `benchmarks.hooks`."""

_HOOK = os.environ.get(HOOK)


def receiver(**_arguments: Any) -> None:
    """The receiver of a signal."""


def middleware(call: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def handle(message: Any, context: Any) -> Any:
        context.headers["Bench.Tenant"] = "main"
        return call(message, context)

    return handle


if _HOOK == "handled":
    message_handled.connect(receiver)
if _HOOK == "sent":
    message_sent.connect(receiver)
if _HOOK in ("sends", "sent", "middleware"):

    @handles("Bench.Message")
    def on_message(_message: Any, context: Any) -> None:
        context.send("Bench.Out", {"number": 1}, to="error")
