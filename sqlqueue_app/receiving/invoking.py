"""Calling the handlers of one message, in their order, with what they need around them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import NoReturn

from django.db.backends.base.base import BaseDatabaseWrapper

from sqlqueue_app.messages.envelope import IncomingMessage, OutgoingMessage
from sqlqueue_app.messages.times import format_time
from sqlqueue_app.policies.transaction_mode import TransactionMode
from sqlqueue_app.receiving.calling import refuse_unrun
from sqlqueue_app.receiving.context import MessageContext
from sqlqueue_app.receiving.handlers import Handler
from sqlqueue_app.receiving.processor_config import ProcessorConfig
from sqlqueue_app.sending.current import Handling, handling
from sqlqueue_app.sending.tracing import tracing

SendAtOnce = Callable[[Sequence[OutgoingMessage]], None]


class Invoker:
    """Calls handlers for one processor, in its thread."""

    def __init__(self, config: ProcessorConfig, send_at_once: SendAtOnce, *, clock: Callable[[], float] = time.time) -> None:
        """`clock` gives seconds since 1970: cheaper than a datetime, which is wanted of failures only."""
        self._config = config
        self._send_at_once = send_at_once
        self._clock = clock
        self._process_id = os.getpid()
        self._slot = config.slow_handlers.slot(config.queue) if config.slow_handlers is not None else None
        self._called: tuple[Handler, float] | None = None

    def call(self, incoming: IncomingMessage, attempt: int, connection: BaseDatabaseWrapper | None) -> list[OutgoingMessage]:
        """Call every handler of the message; what they sent and is not written yet. Raises what a handler raises.

        `connection` is what handlers see as `context.connection`.
        """
        config = self._config
        self._called = None
        context = MessageContext(
            incoming,
            attempt=attempt,
            composer=config.composer,
            connection=connection,
            send_at_once=self._send_at_once,
            allowed=config.allowed,
        )
        collect = context.outgoing.extend if config.mode is TransactionMode.RECEIVE_ONLY else None
        try:
            with handling(Handling(incoming, config.endpoint, collect)):
                if (active := tracing()) is None:
                    self._call_handlers(incoming, context)
                else:
                    with active.processing(incoming, endpoint=config.endpoint, queue=config.queue, attempt=attempt):
                        self._call_handlers(incoming, context)
        finally:
            if self._slot is not None:
                self._slot.ends()
            if os.getpid() != self._process_id:
                _end_child()
        return context.outgoing

    def _call_handlers(self, incoming: IncomingMessage, context: MessageContext) -> None:
        for handler, message in self._config.handlers.calls(incoming):
            self._called = handler, self._clock()
            context.called = handler
            if self._slot is not None:
                self._slot.begins(handler, incoming)
            if (result := (handler.call or handler.function)(message, context)) is not None:
                refuse_unrun(result, handler)

    def facts(self, incoming: IncomingMessage) -> dict[str, str]:
        """What is known about the attempt that has just failed, in the names of core 10 (transport reference 6.7)."""
        found = {"Message ID": incoming.message_id, "Transport message ID": str(incoming.row_id)}
        if types := incoming.message_types:
            found["Message type"] = types[0]
        if self._called is not None:
            handler, began = self._called
            found["Handler type"] = handler.path
            found["Handler start time"] = format_time(datetime.fromtimestamp(began, UTC))
            found["Handler failure time"] = format_time(datetime.fromtimestamp(self._clock(), UTC))
        return found


def _end_child() -> NoReturn:
    # A handler forked, and this is the child: it has one thread, and the connection in the middle of the parent's transaction.
    os.write(2, b"a handler forked and its child came back: the child ends here; end it in the handler, by os._exit()\n")
    os._exit(1)
