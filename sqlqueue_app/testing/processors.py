"""The worker's own processors, with a look at what becomes of each message; failures are raised where the test wants that."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from sqlqueue_app.messages.errors import DoomedTransaction, PoisonMessage
from sqlqueue_app.policies.recoverability import Action, Discard, FailureContext, RecoverabilityConfig, RetryLater, RetryNow
from sqlqueue_app.policies.transaction_mode import TransactionMode
from sqlqueue_app.receiving.non_transactional import NonTransactionalProcessor
from sqlqueue_app.receiving.processing import MessageProcessor, Outcome
from sqlqueue_app.receiving.processor_config import ProcessorConfig
from sqlqueue_app.tables.queue import QueueTable
from sqlqueue_app.tables.receive_transaction import ReceiveTransaction, receive_transaction
from sqlqueue_app.tables.rows import ReceivedRow
from sqlqueue_app.tables.watched_connection import Hooks
from sqlqueue_app.testing.messages import SentMessage
from sqlqueue_app.testing.nested_receive import NestedReceiveTransaction


@dataclass(slots=True)
class Drained:
    """What `drain()` did. Each message counts once in `handled`, `failed`, `discarded`, `expired` or `delayed`.

    `failed`: moved to the error queue; `delayed`: put aside for a delayed retry (it counts again when it comes back). `retried`
    counts the immediate retries. `errors` are the exceptions of all failed attempts, `messages` what was taken from the queues.
    """

    handled: int = 0
    failed: int = 0
    retried: int = 0
    delayed: int = 0
    discarded: int = 0
    expired: int = 0
    errors: list[BaseException] = field(default_factory=list)
    messages: list[SentMessage] = field(default_factory=list)


class FailedInTest(BaseException):
    """Carries the exception of a handler past recoverability, out to the test. No Exception: nothing on the way may keep it."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(repr(error))
        self.error = error


class _Watching(MessageProcessor):
    """One processor of a drain."""

    drained: Drained
    raises: bool

    def _process(self, row: ReceivedRow) -> Outcome:
        outcome = super()._process(row)
        if outcome is Outcome.HANDLED:
            self.drained.handled += 1
        elif outcome is Outcome.EXPIRED:
            self.drained.expired += 1
        elif outcome in (Outcome.POISON, Outcome.FAILED):
            self.drained.failed += 1
        elif isinstance(self._transaction, NestedReceiveTransaction):
            raise DoomedTransaction("the transaction of the test is lost: a handler has ended it, or its connection is gone")
        return outcome

    def _move_poison(self, row: ReceivedRow, poison: PoisonMessage) -> Outcome:
        if self.raises:
            raise poison
        self.drained.errors.append(poison)
        return super()._move_poison(row, poison)

    def _run_hooks(self, hooks: Hooks, message_id: str) -> None:
        if not self.raises:
            super()._run_hooks(hooks, message_id)
            return
        for hook in hooks:
            hook()


class _WatchingWithoutTransaction(_Watching, NonTransactionalProcessor):
    """Mode none, also in the transaction of a test."""

    _blocks: int | None = None

    def _attempt(self, row: ReceivedRow, *rest: Any) -> Outcome:
        # The receive itself is still open, and no block of the handler's.
        self._blocks = len(self._transaction.connection.atomic_blocks) - 1
        return super()._attempt(row, *rest)

    def _check_handlers_left_it_usable(self) -> None:
        if self._left_open:
            raise DoomedTransaction(
                "the handler left an atomic() open that it had entered by hand; use it in a with statement or as a decorator"
            )

    @property
    def _left_open(self) -> bool:
        return len(self._transaction.connection.atomic_blocks) > (self._blocks or 0)

    def _leave_no_transaction(self) -> None:
        if not self._blocks:
            super()._leave_no_transaction()
        elif self._left_open:
            raise FailedInTest(
                DoomedTransaction("a handler in mode none left an atomic() open in the transaction of the test, which is lost")
            )


def watching_processor(
    config: ProcessorConfig, transaction: ReceiveTransaction, drained: Drained, *, raises: bool
) -> MessageProcessor:
    """A processor that counts into `drained`; with `raises` the first failure ends it, and the message is in its queue again."""
    inner = config.policy

    def policy(settings: RecoverabilityConfig, context: FailureContext) -> Action:
        if context.exception is not None:
            drained.errors.append(context.exception)
            if raises:
                raise FailedInTest(context.exception)
        try:
            action = inner(settings, context)
        except Exception as broken:
            if raises:
                raise FailedInTest(broken) from broken
            raise
        _count(action, drained, config.mode)
        return action

    # Sends at once go with the rest, as on SQLite: on a second connection they would outlive the test.
    changed = replace(config, policy=policy, batch_size=1, dispatcher=config.joined_dispatcher, immediate_dispatcher=None)
    kind = _WatchingWithoutTransaction if config.mode is TransactionMode.NONE else _Watching
    made = kind(changed, transaction)
    made.drained, made.raises = drained, raises
    return made


def _count(action: Action, drained: Drained, mode: TransactionMode) -> None:
    if isinstance(action, Discard):
        drained.discarded += 1
        drained.failed -= 1
    elif mode is TransactionMode.NONE:
        return  # whatever else the policy says, the message goes to the error queue
    elif isinstance(action, RetryNow):
        drained.retried += 1
    elif isinstance(action, RetryLater):
        drained.delayed += 1
        drained.failed -= 1


def transaction_for(table: QueueTable) -> ReceiveTransaction:
    """The receive transaction for a table: nested where the calling thread has a transaction open, else the worker's."""
    return NestedReceiveTransaction(table) if table.connection().in_atomic_block else receive_transaction(table)
