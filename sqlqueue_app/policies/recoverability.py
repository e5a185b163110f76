"""Actions after a message failed: an immediate retry, a delayed retry, the error queue, or discarding it.

A custom policy (setting RECOVERABILITY) is a function `(config, context)` that returns one of the four actions:

    def policy(config, context):
        if context.exception_type == "shop.errors.CardExpired":
            return MoveToError("cards")
        return default_policy(config, context)
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Generic, TypeVar
from uuid import UUID

# No further delayed retry if the last one is older than this (docs/internals/endpoints.md#retry-policy).
DELAYED_RETRIES_END_AFTER = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class RecoverabilityConfig:
    """The settings of an endpoint: the number of retries, their delay, and the destination after the last one."""

    immediate_retries: int
    error_queue: str
    delayed_retries: int = 0
    delayed_retry_increase: timedelta = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class FailureContext:
    """One failure.

    `failed_attempts` counts the failed attempts of this round, including this one; `delayed_retries` counts the earlier rounds.
    `unrecoverable`: a retry cannot help (`Unrecoverable` was raised, or the body or type cannot be read). `last_delayed_retry_at`
    is the time when the last delayed retry was stored, aware, None if there was none. `exception` is None if only its text is
    known: after a lost transaction.
    """

    failed_attempts: int
    unrecoverable: bool
    delayed_retries: int = 0
    last_delayed_retry_at: datetime | None = None
    now: datetime | None = None
    endpoint: str = ""
    queue: str = ""
    message_id: str = ""
    message_types: tuple[str, ...] = ()
    headers: Mapping[str, str | None] = field(default_factory=dict)
    exception_type: str = ""
    exception_message: str = ""
    exception: BaseException | None = None


@dataclass(frozen=True, slots=True)
class RetryNow:
    """Call the handlers again, in the same receive transaction."""


@dataclass(frozen=True, slots=True)
class RetryLater:
    """Return the message to its queue after a delay (a timedelta, or seconds) of zero or more, for a new round of attempts."""

    delay: timedelta

    def __init__(self, delay: timedelta | float) -> None:
        if isinstance(delay, (int, float)) and not isinstance(delay, bool):
            delay = timedelta(seconds=delay)
        object.__setattr__(self, "delay", delay)


@dataclass(frozen=True, slots=True)
class MoveToError:
    """Move the message to the queue with this address, in the same receive transaction."""

    queue: str


@dataclass(frozen=True, slots=True)
class Discard:
    """Drop the message; the reason is logged."""

    reason: str = "by the policy"


Action = RetryNow | RetryLater | MoveToError | Discard
Policy = Callable[[RecoverabilityConfig, FailureContext], Action]


def default_policy(config: RecoverabilityConfig, context: FailureContext) -> Action:
    """Immediate retries while any are left, then a delayed one, then the error queue (docs/internals/endpoints.md#retry-policy).

    A message that always fails has `(immediate_retries + 1) * (delayed_retries + 1)` attempts; the delay of the n-th delayed
    retry is n times `delayed_retry_increase`.
    """
    if context.unrecoverable:
        return MoveToError(config.error_queue)
    if context.failed_attempts <= config.immediate_retries:
        return RetryNow()
    if context.delayed_retries < config.delayed_retries and not _is_too_old(context):
        return RetryLater(config.delayed_retry_increase * (context.delayed_retries + 1))
    return MoveToError(config.error_queue)


def _is_too_old(context: FailureContext) -> bool:
    at, now = context.last_delayed_retry_at, context.now
    return at is not None and now is not None and now - at > DELAYED_RETRIES_END_AFTER


# The number of entries that NServiceBus keeps per receiver (docs/internals/endpoints.md#failure-memory).
REMEMBERED_FAILURES = 10_000

_Cause = TypeVar("_Cause")


class FailureMemory(Generic[_Cause]):
    """Failed attempts and the last cause by row id, for failures whose transaction was lost. Not thread-safe: callers lock."""

    def __init__(self, size: int = REMEMBERED_FAILURES) -> None:
        self._size = size
        self._failures: OrderedDict[UUID, tuple[int, _Cause]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._failures)

    def failed(self, row_id: UUID, attempts: int, cause: _Cause) -> None:
        """Remember the number of failed attempts of the row, and the cause of the last one."""
        self._failures[row_id] = (attempts, cause)
        self._failures.move_to_end(row_id)
        if len(self._failures) > self._size:
            self._failures.popitem(last=False)

    def recall(self, row_id: UUID) -> tuple[int, _Cause] | None:
        """The number of failed attempts of the row and the last cause, or None."""
        return self._failures.get(row_id)

    def forget(self, row_id: UUID) -> None:
        """Remove a row that is done."""
        self._failures.pop(row_id, None)


class TransactionMode(enum.Enum):
    """The scope of atomicity of a receive, with the names of the settings (docs/internals/endpoints.md#transaction-modes)."""

    NONE = "none"
    RECEIVE_ONLY = "receive_only"
    SENDS_ATOMIC_WITH_RECEIVE = "sends_atomic_with_receive"
    TRANSACTION_SCOPE = "transaction_scope"
