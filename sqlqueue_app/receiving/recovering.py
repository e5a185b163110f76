"""Recoverability at work: asks the policy what becomes of a failed message, and does it in the receive transaction (design 6.4)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.delays import deliver_at_header
from sqlqueue_app.messages.envelope import IncomingMessage, OutgoingMessage
from sqlqueue_app.messages.errors import AddressError, QueueNotFound, TableMismatch
from sqlqueue_app.policies.recoverability import (
    Action,
    Discard,
    FailureContext,
    MoveToError,
    RecoverabilityConfig,
    RetryLater,
    RetryNow,
    default_policy,
)
from sqlqueue_app.policies.transaction_mode import TransactionMode
from sqlqueue_app.receiving.error_queue import ErrorQueue
from sqlqueue_app.receiving.failures import Failure
from sqlqueue_app.receiving.processor_config import ProcessorConfig
from sqlqueue_app.receiving.reading import headers_of_copy
from sqlqueue_app.receiving.retry_headers import last_retry_at, retries_so_far, with_next_retry
from sqlqueue_app.sending.composer import utc_now
from sqlqueue_app.tables.queue import queue_table
from sqlqueue_app.tables.rows import ReceivedRow

logger = logging.getLogger("sqlqueue.receive")


class Recovery:
    """Decides and acts for one queue. Has no state; used in the thread of its processor."""

    def __init__(self, config: ProcessorConfig, *, now: Callable[[], datetime] = utc_now) -> None:
        self._config = config
        self._now = now

    def decide(self, incoming: IncomingMessage, attempt: int, failure: Failure, error: BaseException | None = None) -> Action:
        """What the policy says of the failed attempt. Never raises: of a policy that fails the default one takes the place."""
        context = self._context(incoming, attempt, failure, error)
        try:
            action: Any = self._config.policy(self._config.recoverability, context)
            if action is RetryNow or action is Discard:
                # Said without parentheses: there is nothing to put into them.
                action = action()
            _check(action, self._now())
            return self._possible(action, incoming)
        except Exception as broken:
            logger.critical(
                "the recoverability policy failed (%s: %s), the default policy decides",
                type(broken).__name__,
                broken,
                extra=self._extra("recoverability_failed", incoming.message_id),
                exc_info=broken,
            )
            return self._possible(by_default(self._config.recoverability, context, self._now()), incoming)

    def write(self, action: Action, row: ReceivedRow, incoming: IncomingMessage, failure: Failure) -> None:
        """Write what the action says, on the connection and in the transaction of the caller. DatabaseError if that fails."""
        if isinstance(action, RetryLater):
            self._config.joined_dispatcher.dispatch([self._delayed_copy(action.delay, row, incoming)], begun=True)
        elif isinstance(action, MoveToError):
            queue = self._error_queue(action.queue)
            queue.move(row.id, incoming.headers, incoming.body, failure, row.correlation_id, row.reply_to_address)

    def say(self, action: Action, incoming: IncomingMessage, failure: Failure, attempt: int) -> None:
        """Log and count what was decided, once it is sure."""
        what = failure.exception_type, failure.message
        message_id = incoming.message_id
        self._config.measures.decided(incoming.headers, action)
        if isinstance(action, RetryNow):
            extra = self._extra("immediate_retry", message_id, attempt=attempt)
            logger.info("attempt %s failed, trying again: %s: %s", attempt, *what, extra=extra)
        elif isinstance(action, RetryLater):
            extra = self._extra("delayed_retry", message_id, attempt=attempt, delay_seconds=action.delay.total_seconds())
            text = "attempt %s failed, trying again in %s: %s: %s\n%s"
            logger.warning(text, attempt, action.delay, *what, failure.stack_trace, extra=extra)
        elif isinstance(action, Discard):
            extra = self._extra("message_discarded", message_id)
            logger.error("message failed and is dropped (%s): %s\n%s", action.reason, what[1], failure.stack_trace, extra=extra)
        else:
            extra = self._extra("moved_to_error_queue", message_id)
            logger.error("message moved to the error queue %s: %s\n%s", action.queue, what[1], failure.stack_trace, extra=extra)

    def _context(self, incoming: IncomingMessage, attempt: int, failure: Failure, error: BaseException | None) -> FailureContext:
        return FailureContext(
            failed_attempts=attempt,
            unrecoverable=failure.unrecoverable,
            delayed_retries=retries_so_far(incoming.headers),
            last_delayed_retry_at=last_retry_at(incoming.headers),
            now=self._now(),
            endpoint=self._config.endpoint,
            queue=self._config.queue,
            message_id=incoming.message_id,
            message_types=tuple(incoming.message_types),
            headers=dict(incoming.headers),
            exception_type=failure.exception_type,
            exception_message=failure.message,
            exception=error,
        )

    def _possible(self, action: Action, incoming: IncomingMessage) -> Action:
        """The action, or the error queue where there is no transaction that a retry could stand in (transport reference 9)."""
        if self._config.mode is not TransactionMode.NONE or not isinstance(action, (RetryNow, RetryLater)):
            return action
        logger.warning(
            "no retries in transaction mode none: moving the message to the error queue",
            extra=self._extra("retry_refused", incoming.message_id),
        )
        return MoveToError(self._config.recoverability.error_queue)

    def _delayed_copy(self, delay: timedelta, row: ReceivedRow, incoming: IncomingMessage) -> OutgoingMessage:
        headers = with_next_retry(headers_of_copy(row, incoming.headers), self._now())
        return OutgoingMessage(self._config.address, headers, incoming.body, delay=delay)

    def _error_queue(self, text: str) -> ErrorQueue:
        configured = self._config.error_queue
        if text == self._config.recoverability.error_queue:
            return configured
        try:
            address: QueueAddress = self._config.composer.destination(text)
            queue_table(configured.alias, address).layout()
        except (AddressError, QueueNotFound, TableMismatch) as error:
            logger.critical(
                "the recoverability policy names the error queue %r, which cannot be written (%s); %s takes the message",
                text,
                error,
                configured.address,
                extra=self._extra("recoverability_failed", ""),
            )
            return configured
        return configured.at(address)

    def _extra(self, event: str, message_id: str, **more: object) -> dict[str, object]:
        return {"event": event, "endpoint": self._config.endpoint, "queue": self._config.queue, "message_id": message_id, **more}


def by_default(config: RecoverabilityConfig, context: FailureContext, now: datetime) -> Action:
    """What the default policy says; the error queue where its delay would end after the last year that there is."""
    try:
        action = default_policy(config, context)
        _check(action, now)
    except (ArithmeticError, ValueError):
        # So many delayed retries, each so much later, that time ends before.
        return MoveToError(config.error_queue)
    return action


def _check(action: object, now: datetime) -> None:
    """Raise for what no policy may answer, also a delay that ends after the last year that there is."""
    if isinstance(action, RetryLater):
        delay: object = action.delay
        if not isinstance(delay, timedelta) or delay < timedelta(0):
            raise ValueError(f"RetryLater({delay!r}): expected a timedelta of zero or more")
        deliver_at_header(delay, None, now)
    elif not isinstance(action, (RetryNow, MoveToError, Discard)):
        raise TypeError(f"it returned {action!r}: expected RetryNow(), RetryLater(delay), MoveToError(queue) or Discard(reason)")
