"""What happens to a message whose handler failed, as a function of how often it failed and why."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RecoverabilityConfig:
    """How often a failed message is tried again at once, and where it goes then."""

    immediate_retries: int
    error_queue: str


@dataclass(frozen=True, slots=True)
class FailureContext:
    """One failure: how many attempts have failed, this one included, and whether trying again can help at all."""

    failed_attempts: int
    unrecoverable: bool


@dataclass(frozen=True, slots=True)
class RetryNow:
    """Call the handlers again, in the same receive transaction."""


@dataclass(frozen=True, slots=True)
class MoveToError:
    """Move the message to the queue of this address, in the same receive transaction."""

    queue: str


Action = RetryNow | MoveToError


def default_policy(config: RecoverabilityConfig, context: FailureContext) -> Action:
    """Immediate retries while there are any, then the error queue: `1 + immediate_retries` attempts (transport reference 9)."""
    if not context.unrecoverable and context.failed_attempts <= config.immediate_retries:
        return RetryNow()
    return MoveToError(config.error_queue)
