"""Actions after a message failed: an immediate retry, a delayed retry, the error queue, or discarding it.

A custom policy (setting RECOVERABILITY) is a function `(config, context)` that returns one of the four actions:

    def policy(config, context):
        if context.exception_type == "shop.errors.CardExpired":
            return MoveToError("cards")
        return default_policy(config, context)
"""

from __future__ import annotations

import enum
import random
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar, cast
from uuid import UUID

# No further delayed retry if the last one is older than this (docs/internals/endpoints.md#retry-policy).
DELAYED_RETRIES_END_AFTER = timedelta(days=1)

_LONGEST_DELAY = timedelta(days=3652)


ErrorClass = type[BaseException] | str


@dataclass(frozen=True, slots=True)
class Retry:
    """The retries of the messages of a handler, `@handles(PlaceOrder, retry=Retry(…))`, or of a type, by the setting RETRIES.

    `immediate`: immediate retries in each round; None: as the endpoint. `delays`: the wait before each delayed retry, in seconds
    or as timedeltas; None: as the endpoint. Each is made longer or shorter by a random part of up to `jitter` (0 to 1).

    `on`: the errors that are retried; empty: all. `give_up_on`: errors that are not, whatever `on` lists. Both take classes of
    exceptions, which include their subclasses, or dotted paths of classes. A message whose error is not retried goes to the error
    queue at once. Raises ValueError or TypeError for a value that cannot be used.
    """

    immediate: int | None = None
    delays: Sequence[float | timedelta] | None = None
    jitter: float = 0.0
    on: Sequence[ErrorClass] = ()
    give_up_on: Sequence[ErrorClass] = ()

    def __post_init__(self) -> None:
        if self.immediate is not None and not _is_number(self.immediate, int):
            raise ValueError(f"Retry(immediate={self.immediate!r}): expected a whole number of zero or more, or None")
        if not _is_number(self.jitter, (int, float)) or self.jitter > 1:
            raise ValueError(f"Retry(jitter={self.jitter!r}): expected a number from 0 to 1, the greatest part of a delay")
        if self.delays is not None:
            object.__setattr__(self, "delays", _durations(self.delays))
        for name in ("on", "give_up_on"):
            object.__setattr__(self, name, _classes(name, getattr(self, name)))

    def __str__(self) -> str:
        parts = [] if self.immediate is None else [f"immediate: {self.immediate}"]
        if self.delays is not None:
            delays = ", ".join(f"{_seconds(delay):g} s" for delay in self.delays) or "none"
            parts.append(f"delayed: {delays}" + (f" ± {self.jitter:.0%}" if self.jitter and self.delays else ""))
        for name, errors in (("on", self.on), ("give up on", self.give_up_on)):
            if errors:
                parts.append(f"{name}: " + ", ".join(each if isinstance(each, str) else path_of_class(each) for each in errors))
        return "; ".join(parts) or "as the endpoint"

    @classmethod
    def exponential(
        cls,
        times: int,
        *,
        first: float | timedelta = 1.0,
        factor: float = 2.0,
        cap: float | timedelta = timedelta(hours=1),
        jitter: float = 0.1,
        immediate: int | None = 0,
        on: Sequence[ErrorClass] = (),
        give_up_on: Sequence[ErrorClass] = (),
    ) -> Retry:
        """`times` delayed retries: after `first`, then each time `factor` times as long, at most `cap`."""
        if times < 0 or factor < 1:
            raise ValueError(f"Retry.exponential({times}, factor={factor}): expected times of zero or more and a factor from 1 on")
        delay, longest = _seconds(first), _seconds(cap)
        delays = []
        for _ in range(times):
            delays.append(min(delay, longest))
            # Beyond the cap nothing changes, and a float would overflow.
            delay = min(delay, longest) * factor
        return cls(immediate, delays, jitter, on, give_up_on)

    def covers(self, error: BaseException | None, error_type: str) -> bool:
        """Whether a message with this error is tried again. `error` is None if only the name of its class is known."""
        classes = type(error).__mro__ if error is not None else _classes_named(error_type)
        known = {*classes, *map(path_of_class, classes), error_type}

        def among(wanted: Sequence[ErrorClass]) -> bool:
            # A path may be that of an import, such as django.db.IntegrityError.
            imported = (cls for each in wanted if isinstance(each, str) for cls in _classes_named(each)[:1])
            return not known.isdisjoint((*wanted, *imported))

        return (not self.on or among(self.on)) and not among(self.give_up_on)


def path_of_class(cls: type) -> str:
    """The dotted path of a class; that of a built-in one is its name."""
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def _classes_named(path: str) -> tuple[type, ...]:
    """The class of a dotted path and its bases; empty if no imported module has it."""
    module, _, name = path.rpartition(".")
    found = getattr(sys.modules.get(module or "builtins"), name, None)
    return found.__mro__ if isinstance(found, type) else ()


def _is_number(value: Any, kinds: Any) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool) and value >= 0


def _seconds(delay: float | timedelta) -> float:
    return delay.total_seconds() if isinstance(delay, timedelta) else float(delay)


def _durations(delays: Any) -> tuple[timedelta, ...]:
    if isinstance(delays, str) or not isinstance(delays, Iterable):
        raise ValueError(f"Retry(delays={delays!r}): expected a list of seconds or timedeltas, as in delays=[10, 60]")
    return tuple(_duration(delay, number) for number, delay in enumerate(delays))


def _duration(delay: Any, number: int) -> timedelta:
    try:
        found = delay if isinstance(delay, timedelta) else timedelta(seconds=delay)
    except (TypeError, ValueError, OverflowError):
        found = timedelta(-1)
    if not timedelta(0) <= found <= _LONGEST_DELAY:
        raise ValueError(f"Retry(delays=…): delays[{number}] is {delay!r}, expected seconds or a timedelta, from zero to ten years")
    return found


def _classes(name: str, given: Any) -> tuple[ErrorClass, ...]:
    found = (given,) if isinstance(given, (str, type)) else tuple(given)
    for each in found:
        if not isinstance(each, str) and not (isinstance(each, type) and issubclass(each, BaseException)):
            raise TypeError(f"Retry({name}=…) has {each!r}: expected classes of exceptions or their dotted paths")
    return found


@dataclass(frozen=True, slots=True)
class RecoverabilityConfig:
    """The settings for a message: the number of retries, their delay, and the destination after the last one.

    `retry` is that of its handler or type, None if neither has one; the numbers of retries are the effective ones.
    """

    immediate_retries: int
    error_queue: str
    delayed_retries: int = 0
    delayed_retry_increase: timedelta = timedelta(seconds=10)
    retry: Retry | None = None

    def with_retry(self, retry: Retry) -> RecoverabilityConfig:
        """These settings with the retries of a handler or a type."""
        immediate = self.immediate_retries if retry.immediate is None else retry.immediate
        delayed = self.delayed_retries if retry.delays is None else len(retry.delays)
        return replace(self, immediate_retries=immediate, delayed_retries=delayed, retry=retry)


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
    retry is n times `delayed_retry_increase`, or the n-th of the `delays` of its `Retry`.
    """
    retry = config.retry
    if context.unrecoverable or (retry is not None and not retry.covers(context.exception, context.exception_type)):
        return MoveToError(config.error_queue)
    if context.failed_attempts <= config.immediate_retries:
        return RetryNow()
    if context.delayed_retries < config.delayed_retries and not _is_too_old(config, context):
        return RetryLater(_delay(config, context.delayed_retries))
    return MoveToError(config.error_queue)


def _delay(config: RecoverabilityConfig, earlier: int) -> timedelta:
    """The wait before the next delayed retry, after `earlier` ones."""
    retry = config.retry
    if retry is None:
        return config.delayed_retry_increase * (earlier + 1)
    delay = config.delayed_retry_increase * (earlier + 1) if retry.delays is None else retry.delays[earlier]
    # Not for secrets: it spreads the retries of messages that failed together.
    return cast(timedelta, delay) * (1 + retry.jitter * random.uniform(-1, 1))  # noqa: S311


def _is_too_old(config: RecoverabilityConfig, context: FailureContext) -> bool:
    if config.retry is not None and config.retry.delays is not None:
        return False  # explicit delays may be days
    at, now = context.last_delayed_retry_at, context.now
    return at is not None and now is not None and now - at > DELAYED_RETRIES_END_AFTER


# The number of entries that NServiceBus keeps per receiver (docs/internals/endpoints.md#failure-memory).
REMEMBERED_FAILURES = 10_000

_Cause = TypeVar("_Cause")
RowKey = tuple[UUID, int]
"""A row of a queue by its id and its RowVersion."""


class FailureMemory(Generic[_Cause]):
    """Failed attempts and the last cause by row, for failures whose transaction was lost. Not thread-safe: callers lock.

    A rollback keeps the id and the RowVersion of a row. A retry may keep the id, but it gets a new RowVersion, so its attempts
    count from the beginning.
    """

    def __init__(self, size: int = REMEMBERED_FAILURES) -> None:
        self._size = size
        self._failures: OrderedDict[RowKey, tuple[int, _Cause]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._failures)

    def failed(self, row: RowKey, attempts: int, cause: _Cause) -> None:
        """Remember the number of failed attempts of the row, and the cause of the last one."""
        self._failures[row] = (attempts, cause)
        self._failures.move_to_end(row)
        if len(self._failures) > self._size:
            self._failures.popitem(last=False)

    def recall(self, row: RowKey) -> tuple[int, _Cause] | None:
        """The number of failed attempts of the row and the last cause, or None."""
        return self._failures.get(row)

    def forget(self, row: RowKey) -> None:
        """Remove a row that is done."""
        self._failures.pop(row, None)


class TransactionMode(enum.Enum):
    """The scope of atomicity of a receive, with the names of the settings (docs/internals/endpoints.md#transaction-modes)."""

    NONE = "none"
    RECEIVE_ONLY = "receive_only"
    SENDS_ATOMIC_WITH_RECEIVE = "sends_atomic_with_receive"
    TRANSACTION_SCOPE = "transaction_scope"
