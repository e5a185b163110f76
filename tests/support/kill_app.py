"""Handlers and traps for worker processes that kill themselves once at a chosen point of message processing.

KILL_AT names the point, KILL_ONCE a file that records the kill. The traps wrap the product's own methods.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

from django.db import connections

from sqlqueue_app import handles
from sqlqueue_app.receiving.error_queue import ErrorQueue
from sqlqueue_app.receiving.processing import MessageProcessor, NonTransactionalProcessor
from sqlqueue_app.sending.dispatcher import Dispatcher, SeparateDispatcher
from sqlqueue_app.tables.receive_transaction import ReceiveTransaction
from tests.support.failpoints import die, trap

MODULE = __name__
KILL_AT = os.environ.get("KILL_AT", "")


def die_at(point: str) -> None:
    if point != KILL_AT:
        return
    once = Path(os.environ["KILL_ONCE"])
    if not once.exists():
        once.touch()
        die()


def trap_outgoing(dispatcher: type[Dispatcher]) -> None:
    """Set a trap after the dispatch of the ordinary send: uncommitted in the atomic modes, committed in the others."""
    method = dispatcher.dispatch

    def dispatch(self: Dispatcher, messages: Any, **more: Any) -> None:
        method(self, messages, **more)
        types = {message.headers["NServiceBus.EnclosedMessageTypes"] for message in messages}
        if "Kill.Out" in types:
            die_at("after an outgoing insert")

    dispatcher.dispatch = dispatch  # type: ignore[method-assign]


@handles("Kill.Work")
def work(message: Any, context: Any) -> None:
    """Write a row, send immediately and ordinarily; or fail."""
    alias = message["alias"]
    assert (context.connection is None) == (message["mode"] == "none")
    with connections[alias].cursor() as cursor:
        cursor.execute("INSERT INTO handled (number, pid) VALUES (1, 0)")
    die_at("in handler")
    if message["fail"]:
        raise ValueError("as asked")
    context.send("Kill.Immediate", {}, to=message["immediate"], immediate=True)
    die_at("in an immediate send")
    context.send("Kill.Out", {}, to=message["out"])


if KILL_AT:
    trap(MessageProcessor, "process", partial(die_at, "after the receive"), before=True)
    trap(NonTransactionalProcessor, "process", partial(die_at, "after the receive"), before=True)
    for dispatcher in (Dispatcher, SeparateDispatcher):
        trap_outgoing(dispatcher)
    trap(ErrorQueue, "move", partial(die_at, "in the move to the error queue"))
    trap(ReceiveTransaction, "commit", partial(die_at, "before the commit"), before=True)
    trap(ReceiveTransaction, "commit", partial(die_at, "after the commit"))
