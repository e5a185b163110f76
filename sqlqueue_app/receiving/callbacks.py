"""Receiving from a callback queue: replies are handed to the requests that wait for them, other messages to the handlers.

A reply is delivered after the commit of its receive, so at most once; a process that crashes in between takes its waiting requests
with it. A reply without a waiting request is audited like any other, logged and counted: the request has timed out, was cancelled,
or belongs to another process.
"""

from __future__ import annotations

import time
from typing import Any

from sqlqueue_app.messages.envelope import IncomingMessage
from sqlqueue_app.policies.recoverability import MoveToError, TransactionMode
from sqlqueue_app.receiving.error_queue import failure_of
from sqlqueue_app.receiving.measures import done
from sqlqueue_app.receiving.processing import (
    Delivery,
    MessageProcessor,
    NonTransactionalProcessor,
    Outcome,
    ReceivedBatch,
    logger,
)
from sqlqueue_app.receiving.waiting import StopSignal, WakeUp
from sqlqueue_app.sending.replies import Request, is_reply, pending


class CallbackProcessor(MessageProcessor):
    """Processes the messages of one callback queue in one thread, one at a time."""

    takes_batches = False

    def deliver(self, batch: ReceivedBatch, delivery: Delivery) -> Outcome:
        """Hand a reply to the request that waits for it; deliver any other message to its handlers."""
        row, incoming = delivery.row, delivery.incoming
        if not is_reply(incoming):
            return super().deliver(batch, delivery)
        delivery.started = time.perf_counter()
        began = self.config.auditing.begins()
        request = pending.find(incoming.correlation_id)
        try:
            reply = None if request is None else request.read(incoming)
            copies = self.config.auditing.copies(row, incoming, began)
        except Exception as error:  # noqa: BLE001 - the classes of messages are the user's, and may raise anything
            return self._refuse(delivery, request, error)
        if copies:
            self.config.joined_dispatcher.dispatch(copies, begun=True)
        delivery.completed = time.perf_counter()
        self.transaction.commit()
        batch.handled.append(done(incoming.headers, delivery.started, delivery.completed))
        if request is None:
            pending.count_unclaimed()
        if request is None or not pending.answer(request, reply):
            self._log_unclaimed(incoming)
        return Outcome.HANDLED

    def _refuse(self, delivery: Delivery, request: Request[Any] | None, error: Exception) -> Outcome:
        """The reply cannot be read: the request fails, and the reply is kept in the error queue."""
        incoming = delivery.incoming
        failure = failure_of(error, unrecoverable=True)
        moved = MoveToError(self.config.recoverability.error_queue)
        self.recovery.write(moved, delivery, failure)
        self.transaction.commit()
        self.config.measures.failed(incoming.headers)
        self.config.measures.decided(incoming.headers, moved)
        if request is not None:
            request.fail(error)
        extra = self.log_extra("reply_unreadable", incoming.message_id)
        logger.error("reply moved to the error queue: %s", failure.message, extra=extra)
        return Outcome.FAILED

    def _log_unclaimed(self, incoming: IncomingMessage) -> None:
        logger.warning(
            "nobody waits for the reply to message %r any more: the request has timed out, was cancelled, or its process is gone",
            incoming.correlation_id,
            extra=self.log_extra("reply_unclaimed", incoming.message_id),
        )


class NonTransactionalCallbackProcessor(CallbackProcessor, NonTransactionalProcessor):
    """The same in transaction mode none: replies are handed over alike, other messages are handled as in that mode."""


def callback_processor(mode: TransactionMode) -> type[CallbackProcessor]:
    """The processor of callback queues in a transaction mode."""
    return NonTransactionalCallbackProcessor if mode is TransactionMode.NONE else CallbackProcessor


class CallbackWakeUp(WakeUp):
    """Has the threads of a callback queue look more often while a reply is waited for, unless new messages are announced."""

    def __init__(self, queue: str, qualified: str, stop: StopSignal, *, listens: bool) -> None:
        super().__init__(queue, qualified, stop)
        self.listens = listens

    def hurry(self) -> None:
        """A request was sent: a thread that has begun a long wait looks now, and then in short intervals."""
        if not self.push_enabled:
            self.wake()

    def _wait(self, seconds: float | None) -> None:
        if seconds is not None and not self.push_enabled and (longest := pending.longest_wait(self.queue)) is not None:
            seconds = min(seconds, longest)
        super()._wait(seconds)
