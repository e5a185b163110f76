"""What the processing of one queue needs, shared by all its threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.policies.failure_memory import FailureMemory
from sqlqueue_app.policies.lower_bound import LowerBound
from sqlqueue_app.policies.recoverability import Policy, RecoverabilityConfig, default_policy
from sqlqueue_app.policies.transaction_mode import TransactionMode
from sqlqueue_app.receiving.allowed import AllowedDestinations
from sqlqueue_app.receiving.auditing import Auditing
from sqlqueue_app.receiving.calling import HandlerTable
from sqlqueue_app.receiving.duplicates import Duplicates
from sqlqueue_app.receiving.error_queue import ErrorQueue
from sqlqueue_app.receiving.failures import Failure
from sqlqueue_app.receiving.forwarding import Forwarding
from sqlqueue_app.receiving.in_work import UNWATCHED, InWork
from sqlqueue_app.receiving.measures import Measures
from sqlqueue_app.receiving.rate_limiting import RateLimit
from sqlqueue_app.receiving.slow_handlers import SlowHandlers
from sqlqueue_app.sending.composer import Composer
from sqlqueue_app.sending.dispatcher import Dispatcher
from sqlqueue_app.tables.other_aliases import NoOtherAliases
from sqlqueue_app.tables.rows import ReceivedRow


@dataclass(slots=True)
class SharedFailures:
    """The failure memory of a queue, shared by its threads."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _memory: FailureMemory[Failure] = field(default_factory=FailureMemory)

    def failed(self, row: ReceivedRow, attempts: int, failure: Failure) -> None:
        """Remember a failure whose transaction is gone."""
        with self._lock:
            self._memory.failed(row.id, attempts, failure)

    def recall(self, row: ReceivedRow) -> tuple[int, Failure] | None:
        """What is remembered of the row."""
        # Nearly always there is nothing: no lock for that. What another thread writes meanwhile is of another row.
        if not self._memory:
            return None
        with self._lock:
            return self._memory.recall(row.id)

    def forget(self, row: ReceivedRow) -> None:
        """The row is done."""
        if not self._memory:
            return
        with self._lock:
            self._memory.forget(row.id)


@dataclass(frozen=True, slots=True)
class ProcessorConfig:
    """What the processing of one queue needs; shared by all its threads."""

    endpoint: str
    queue: str
    handlers: HandlerTable
    composer: Composer
    dispatcher: Dispatcher
    """Writes what handlers send, as the mode says."""
    joined_dispatcher: Dispatcher
    """Writes in the receive transaction, in every mode that has one: delayed retries."""
    error_queue: ErrorQueue
    auditing: Auditing
    address: QueueAddress
    forwarding: Forwarding
    """Knows which messages belong to another queue."""
    recoverability: RecoverabilityConfig
    failures: SharedFailures
    policy: Policy = default_policy
    rate_limit: RateLimit = field(default_factory=RateLimit)
    duplicates: Duplicates | None = None
    """Drops second copies of handled messages."""
    slow_handlers: SlowHandlers | None = None
    """Watches how long handlers run."""
    mode: TransactionMode = TransactionMode.TRANSACTION_SCOPE
    allowed: AllowedDestinations | None = None
    immediate_dispatcher: Dispatcher | None = None
    """Writes immediate sends outside of the receive transaction; None where they must wait for its end (SQLite)."""
    discard_failures: bool = False
    """Mode none only: a failed message is dropped instead of going to the error queue."""
    batch_size: int | Literal["auto"] = 1
    """The most messages of one transaction; mode none takes each alone."""
    bound: LowerBound = field(default_factory=LowerBound)
    """Where the next receive looks, shared by the threads of the queue."""
    measures: Measures = field(default_factory=Measures)
    """Counts what becomes of messages, for the whole endpoint."""
    others: Callable[[], NoOtherAliases] = NoOtherAliases
    """The other databases that take part in the receive transactions of a thread."""
    in_work: InWork = UNWATCHED
    """Is told which row is being handled, so that a message that kills its process is not received for ever (design 6.13)."""
