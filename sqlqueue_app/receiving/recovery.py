"""Recoverability: applies the policy's decision on a failed message in the receive transaction; the rate limit."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlqueue_app.messages.envelope import IncomingMessage, OutgoingMessage
from sqlqueue_app.messages.errors import AddressError, DatabaseError, DoomedTransaction, QueueNotFound, TableMismatch
from sqlqueue_app.messages.times import deliver_at_header, format_time
from sqlqueue_app.policies.polling import WAIT_SECONDS, ConsecutiveFailures
from sqlqueue_app.policies.recoverability import (
    Action,
    Discard,
    FailureContext,
    FailureMemory,
    MoveToError,
    RecoverabilityConfig,
    RetryLater,
    RetryNow,
    TransactionMode,
    default_policy,
)
from sqlqueue_app.receiving.error_queue import (
    ErrorQueue,
    Failure,
    headers_of_copy,
    last_retry_at,
    retries_so_far,
    text_of,
    with_next_retry,
)
from sqlqueue_app.sending.composer import utc_now
from sqlqueue_app.tables.queue import queue_table
from sqlqueue_app.tables.rows import ReceivedRow

if TYPE_CHECKING:
    from sqlqueue_app.receiving.processing import Delivery, ProcessorConfig

logger = logging.getLogger("sqlqueue.receive")

# A policy that formats the exception may raise whatever its `__str__` raises. Tests end a receive by a BaseException of their own.
_RAISED_BY_POLICIES = (Exception, SystemExit, KeyboardInterrupt, GeneratorExit)


class Recovery:
    """Decides and acts for one queue. Has no state; used in the thread of its processor."""

    def __init__(self, config: ProcessorConfig) -> None:
        self._config = config

    def decide(self, delivery: Delivery, failure: Failure, error: BaseException | None = None) -> Action:
        """The policy's decision on a failed attempt. Never raises: if the policy fails, the default one decides."""
        incoming = delivery.incoming
        context = self._context(delivery, failure, error)
        settings = self._settings(delivery)
        try:
            if failure.policy_failed:
                raise DoomedTransaction("it has ended the receive transaction: a policy must not use the database")
            action: Any = self._config.policy(settings, context)
            if action is RetryNow or action is Discard:
                # The policy returned the class: it takes no arguments.
                action = action()
            _check(action, utc_now())
        except _RAISED_BY_POLICIES as broken:
            logger.critical(
                "the recoverability policy failed (%s: %s), the default policy decides",
                type(broken).__name__,
                text_of(broken),
                extra=self._config.log_extra("recoverability_failed", incoming.message_id),
                exc_info=broken,
            )
            action = by_default(settings, context, utc_now())
        return self._possible(action, incoming)

    def write(self, action: Action, delivery: Delivery, failure: Failure) -> None:
        """Apply the decision, on the connection and in the transaction of the caller. DatabaseError if that fails."""
        row, incoming = delivery.row, delivery.incoming
        if isinstance(action, RetryLater):
            self._config.joined_dispatcher.dispatch([self._delayed_copy(action.delay, delivery)], begun=True)
        elif isinstance(action, MoveToError):
            self._error_queue(action.queue).move(row, incoming.headers, failure)

    def report(self, action: Action, delivery: Delivery, failure: Failure) -> None:
        """Log and count the decision, once it is final."""
        what = failure.exception_type, failure.message
        message_id, attempt = delivery.incoming.message_id, delivery.attempt
        self._config.measures.decided(delivery.incoming.headers, action)
        if isinstance(action, RetryNow):
            extra = self._config.log_extra("immediate_retry", message_id, attempt=attempt)
            logger.info("attempt %s failed, trying again: %s: %s", attempt, *what, extra=extra)
        elif isinstance(action, RetryLater):
            seconds = action.delay.total_seconds()
            extra = self._config.log_extra("delayed_retry", message_id, attempt=attempt, delay_seconds=seconds)
            text = "attempt %s failed, trying again in %g s: %s: %s\n%s"
            logger.warning(text, attempt, seconds, *what, failure.traceback, extra=extra)
        elif isinstance(action, Discard):
            extra = self._config.log_extra("message_discarded", message_id)
            logger.error("message failed and was discarded (%s): %s\n%s", action.reason, what[1], failure.traceback, extra=extra)
        else:
            extra = self._config.log_extra("moved_to_error_queue", message_id)
            logger.error("message moved to the error queue %s: %s\n%s", action.queue, what[1], failure.traceback, extra=extra)

    def _settings(self, delivery: Delivery) -> RecoverabilityConfig:
        """The settings of the endpoint with the retries of the handler that failed."""
        called = None if delivery.called is None else delivery.called[0]
        retry = self._config.handlers.retry_of(delivery.incoming, called)
        return self._config.recoverability if retry is None else self._config.recoverability.with_retry(retry)

    def _context(self, delivery: Delivery, failure: Failure, error: BaseException | None) -> FailureContext:
        incoming = delivery.incoming
        return FailureContext(
            failed_attempts=delivery.attempt,
            unrecoverable=failure.unrecoverable,
            delayed_retries=retries_so_far(incoming.headers),
            last_delayed_retry_at=last_retry_at(incoming.headers),
            now=utc_now(),
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
        """The action, or the error queue if there is no transaction for a retry (docs/internals/endpoints.md#retry-policy).

        Also for a queue that a policy names and that cannot be written, so that logs and signals name the queue that is.
        """
        if isinstance(action, MoveToError):
            return action if self._is_usable(action.queue) else MoveToError(self._config.recoverability.error_queue)
        if self._config.mode is not TransactionMode.NONE or not isinstance(action, (RetryNow, RetryLater)):
            return action
        logger.warning(
            "no retries in transaction mode none: moving the message to the error queue",
            extra=self._config.log_extra("retry_refused", incoming.message_id),
        )
        return MoveToError(self._config.recoverability.error_queue)

    def _delayed_copy(self, delay: timedelta, delivery: Delivery) -> OutgoingMessage:
        headers = with_next_retry(headers_of_copy(delivery.row, delivery.incoming.headers), utc_now())
        return OutgoingMessage(self._config.address, headers, delivery.row.body or b"", delay=delay)

    def _error_queue(self, text: str) -> ErrorQueue:
        configured = self._config.error_queue
        if text == self._config.recoverability.error_queue:
            return configured
        return configured.at(self._config.composer.destination(text))

    def _is_usable(self, text: str) -> bool:
        """Whether a message can be moved to an error queue; the reason is logged if not."""
        if text == self._config.recoverability.error_queue:
            return True
        configured = self._config.error_queue
        try:
            address = self._config.composer.destination(text)
            configured.at(address)
            queue_table(configured.alias, address).layout()
        except (AddressError, QueueNotFound, TableMismatch) as error:
            logger.critical(
                "the recoverability policy names the error queue %r, which cannot be used (%s); using %s",
                text,
                error,
                configured.address,
                extra=self._config.log_extra("recoverability_failed", ""),
            )
            return False
        except DatabaseError:
            # Writing it fails with the same error, where the caller expects one.
            return True
        return True


def by_default(config: RecoverabilityConfig, context: FailureContext, now: datetime) -> Action:
    """The decision of the default policy; the error queue if its delay would end after the last supported year."""
    try:
        action = default_policy(config, context)
        _check(action, now)
    except (ArithmeticError, ValueError):
        # The delay of so many retries exceeds the range of dates.
        return MoveToError(config.error_queue)
    return action


def _check(action: object, now: datetime) -> None:
    """Raise for an invalid action of a policy, including a delay that ends after the last supported year."""
    if isinstance(action, RetryLater):
        delay: object = action.delay
        if not isinstance(delay, timedelta) or delay < timedelta(0):
            raise ValueError(f"RetryLater({delay!r}): expected seconds or a timedelta, of zero or more")
        deliver_at_header(delay, None, now)
    elif not isinstance(action, (RetryNow, MoveToError, Discard)):
        raise TypeError(f"it returned {action!r}: expected RetryNow(), RetryLater(delay), MoveToError(queue) or Discard(reason)")


def facts_of(delivery: Delivery) -> dict[str, str]:
    """The facts about a failed attempt, with the names of core 10 (docs/internals/wire.md#error-queue-headers)."""
    incoming = delivery.incoming
    found = {"Message ID": incoming.message_id, "Transport message ID": str(incoming.row_id)}
    if types := incoming.message_types:
        found["Message type"] = types[0]
    if delivery.called is not None:
        handler, began = delivery.called
        found["Handler type"] = handler.path
        found["Handler start time"] = format_time(datetime.fromtimestamp(began, UTC))
        found["Handler failure time"] = format_time(datetime.fromtimestamp(time.time(), UTC))
    return found


@dataclass(slots=True)
class SharedFailures:
    """The failure memory of a queue, shared by its threads."""

    is_empty: bool = True
    """Whether nothing is remembered, the usual case. Read without the lock: other threads remember other rows."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _memory: FailureMemory[Failure] = field(default_factory=FailureMemory)

    def failed(self, row: ReceivedRow, attempts: int, failure: Failure) -> None:
        """Remember a failure whose transaction is lost."""
        with self._lock:
            self._memory.failed((row.id, row.row_version), attempts, failure)
            self.is_empty = False

    def recall(self, row: ReceivedRow) -> tuple[int, Failure] | None:
        """The remembered attempts and failure of a row."""
        with self._lock:
            return self._memory.recall((row.id, row.row_version))

    def forget(self, row: ReceivedRow) -> None:
        """Drop the memory of a finished row."""
        if self.is_empty:
            return
        with self._lock:
            self._memory.forget((row.id, row.row_version))
            self.is_empty = not self._memory


class RateLimit:
    """Limits a queue after consecutive failures: its threads handle one message at a time, and pause after each failure."""

    def __init__(self, queue: str, after: int) -> None:
        self._queue = queue
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._count = ConsecutiveFailures(after)
        self._clean = True

    @property
    def limited(self) -> bool:
        """Whether the threads handle one message at a time now."""
        return self._count.limited

    @contextmanager
    def one_at_a_time(self) -> Iterator[None]:
        """Wait for the calling thread's turn."""
        with self._turn:
            yield

    def failed(self) -> None:
        """Record a failed attempt."""
        with self._lock:
            self._clean = False
            begins = self._count.failed()
        if begins:
            logger.warning(
                "too many failures in a row: one message of %s at a time from now on, %g s after each failure",
                self._queue,
                WAIT_SECONDS,
                extra={"event": "rate_limit_begins", "queue": self._queue},
            )

    def succeeded(self) -> None:
        """Record a handled message."""
        if self._clean:
            return
        with self._lock:
            self._clean = True
            ends = self._count.succeeded()
        if ends:
            logger.info("a message was handled: the rate limit has ended", extra={"event": "rate_limit_ends", "queue": self._queue})
