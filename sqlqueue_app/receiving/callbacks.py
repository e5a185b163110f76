"""Receiving from a callback queue: replies are handed to the requests that wait for them, all else to the handlers.

A reply is delivered when its receive has been committed, so once at most; a process that dies in between takes those who wait for
it along. A reply that nobody waits for is audited as any other, logged and counted: its request has timed out, was cancelled, or
was of another process.
"""

from __future__ import annotations

import time
from typing import Any

from sqlqueue_app.messages.envelope import IncomingMessage
from sqlqueue_app.policies.recoverability import MoveToError
from sqlqueue_app.policies.transaction_mode import TransactionMode
from sqlqueue_app.receiving.failures import failure_of
from sqlqueue_app.receiving.measures import done
from sqlqueue_app.receiving.non_transactional import NonTransactionalProcessor
from sqlqueue_app.receiving.processing import MessageProcessor, Outcome, logger
from sqlqueue_app.receiving.stopping import StopSignal
from sqlqueue_app.receiving.wake_up import WakeUp
from sqlqueue_app.sending.pending import Request, pending
from sqlqueue_app.sending.replies import is_reply
from sqlqueue_app.tables.rows import ReceivedRow


class CallbackProcessor(MessageProcessor):
    """Processes the messages of one callback queue in one thread, one at a time."""

    takes_batches = False

    def _attempt(self, row: ReceivedRow, incoming: IncomingMessage) -> Outcome:
        if not is_reply(incoming):
            return super()._attempt(row, incoming)
        started = time.perf_counter()
        began = self._config.auditing.begins()
        request = pending.find(incoming.correlation_id)
        try:
            reply = None if request is None else request.read(incoming)
            copies = self._config.auditing.copies(row, incoming, began)
        except Exception as error:  # noqa: BLE001 - the classes of messages are the user's, and may raise anything
            return self._refuse(row, incoming, request, error)
        if copies:
            self._config.joined_dispatcher.dispatch(copies, begun=True)
        completed = time.perf_counter()
        self._transaction.commit()
        self._done.append(done(incoming.headers, started, completed))
        if request is None:
            pending.count_unclaimed()
        if request is None or not pending.answer(request, reply):
            self._say_unclaimed(incoming)
        return Outcome.HANDLED

    def _refuse(self, row: ReceivedRow, incoming: IncomingMessage, request: Request[Any] | None, error: Exception) -> Outcome:
        """The reply cannot be read: who waits is told, and the reply is kept in the error queue."""
        failure = failure_of(error, unrecoverable=True)
        moved = MoveToError(self._config.recoverability.error_queue)
        self._recovery.write(moved, row, incoming, failure)
        self._transaction.commit()
        self._config.measures.failed(incoming.headers)
        self._config.measures.decided(incoming.headers, moved)
        if request is not None:
            request.fail(error)
        logger.error(
            "reply moved to the error queue: %s", failure.message, extra=self._extra("reply_unreadable", incoming.message_id)
        )
        return Outcome.FAILED

    def _say_unclaimed(self, incoming: IncomingMessage) -> None:
        logger.warning(
            "nobody waits for the reply to message %r any more: the request has timed out, was cancelled, or its process is gone",
            incoming.correlation_id,
            extra=self._extra("reply_unclaimed", incoming.message_id),
        )


class NonTransactionalCallbackProcessor(CallbackProcessor, NonTransactionalProcessor):
    """The same in transaction mode none: replies are delivered as ever, other messages are handled as that mode does."""


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
        if not self.covered:
            self.wake()

    def _wait(self, seconds: float | None) -> None:
        if seconds is not None and not self.covered and (longest := pending.longest_wait(self.queue)) is not None:
            seconds = min(seconds, longest)
        super()._wait(seconds)
