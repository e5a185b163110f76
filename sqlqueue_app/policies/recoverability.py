"""What becomes of a message whose handling failed: again at once, again later, the error queue, or nothing more.

A custom policy (setting RECOVERABILITY) is a function `(config, context)` that returns one of the four actions, such as

    def policy(config, context):
        if context.exception_type == "shop.errors.CardExpired":
            return MoveToError("cards")
        return default_policy(config, context)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

# Transport reference 9: a delayed retry that lies longer back than this was the last.
DELAYED_RETRIES_END_AFTER = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class RecoverabilityConfig:
    """The settings of an endpoint: how often a failed message is tried again, how much later, and where it goes then."""

    immediate_retries: int
    error_queue: str
    delayed_retries: int = 0
    delayed_retry_increase: timedelta = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class FailureContext:
    """One failure.

    `failed_attempts` counts the attempts of this round that have failed, this one included; `delayed_retries` the rounds before
    it. `unrecoverable`: trying again cannot help (`Unrecoverable` was raised, or the body or type cannot be read).
    `last_delayed_retry_at` is when the last delayed retry was stored, aware, None if there was none. `exception` is None where only
    the text is left of it: after a lost transaction.
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
    """Put the message into its queue again after a delay of zero or more, with a new round of attempts.

    The delay is a timedelta, or seconds as in the settings.
    """

    delay: timedelta

    def __init__(self, delay: timedelta | float) -> None:
        if isinstance(delay, (int, float)) and not isinstance(delay, bool):
            delay = timedelta(seconds=delay)
        object.__setattr__(self, "delay", delay)


@dataclass(frozen=True, slots=True)
class MoveToError:
    """Move the message to the queue of this address, in the same receive transaction."""

    queue: str


@dataclass(frozen=True, slots=True)
class Discard:
    """Drop the message; the reason stands in the log."""

    reason: str = "the policy says so"


Action = RetryNow | RetryLater | MoveToError | Discard
Policy = Callable[[RecoverabilityConfig, FailureContext], Action]


def default_policy(config: RecoverabilityConfig, context: FailureContext) -> Action:
    """Immediate retries while there are any, then a delayed one, then the error queue (transport reference 9).

    A message that always fails is tried `(immediate_retries + 1) * (delayed_retries + 1)` times; the n-th delayed retry comes after
    n times `delayed_retry_increase`.
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
