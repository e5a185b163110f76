"""The life of a message: receive, decode, call the handlers, dispatch, commit; or undo, decide, and retry or move it.

Read `MessageProcessor` from top to bottom: its methods are in the order in which a message passes them. A `Delivery` holds the
state of one message, a `ReceivedBatch` that of one receive transaction; both are passed from step to step.

Everything happens in the receive transaction, for one message or for a batch. The savepoint before a message's work allows a
failed attempt to be undone while the row stays received. So attempts are counted exactly, however many instances compete, and the
work of earlier messages of the batch is kept.
"""

from __future__ import annotations

import enum
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from django.db import Error as DjangoError, transaction

from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.envelope import IncomingMessage, OutgoingMessage, body_for_null
from sqlqueue_app.messages.errors import DatabaseError, Deadlock, DoomedTransaction, PoisonMessage, TransientError, counted
from sqlqueue_app.messages.headers import read_headers
from sqlqueue_app.policies.polling import BatchSize, LowerBound
from sqlqueue_app.policies.recoverability import (
    Action,
    Discard,
    MoveToError,
    Policy,
    RecoverabilityConfig,
    RetryNow,
    TransactionMode,
    default_policy,
)
from sqlqueue_app.receiving.auditing import Auditing, Forwarding
from sqlqueue_app.receiving.context import MessageContext
from sqlqueue_app.receiving.destinations import AllowedDestinations
from sqlqueue_app.receiving.duplicates import Duplicates
from sqlqueue_app.receiving.error_queue import UNRECOVERABLE, ErrorQueue, Failure, failure_of, text_of
from sqlqueue_app.receiving.handlers import Handler, HandlerTable, is_subscription_message, refuse_unrun
from sqlqueue_app.receiving.in_flight import InFlightRegistry, end_child
from sqlqueue_app.receiving.measures import Done, Measures, SlowHandlers, done
from sqlqueue_app.receiving.outcomes import Outcomes, are_observed
from sqlqueue_app.receiving.rate_limits import TypeLimits
from sqlqueue_app.receiving.recovery import RateLimit, Recovery, SharedFailures, facts_of
from sqlqueue_app.receiving.time_limits import TimeLimits
from sqlqueue_app.receiving.waiting import BatchTurn
from sqlqueue_app.sending.claim_checks import claimed_body
from sqlqueue_app.sending.composer import Composer
from sqlqueue_app.sending.dispatcher import Dispatcher
from sqlqueue_app.sending.sender import Handling
from sqlqueue_app.sending.tracing import tracer_provider, tracing
from sqlqueue_app.signals import message_handled
from sqlqueue_app.tables.connections import Hooks, leave_no_transaction
from sqlqueue_app.tables.key_window import KeyWindow
from sqlqueue_app.tables.queue import all_or_none
from sqlqueue_app.tables.receive_transaction import LEFT_OPEN, ReceiveTransaction
from sqlqueue_app.tables.rows import ReceivedRow
from sqlqueue_app.tables.two_phase import TwoPhaseParticipants

logger = logging.getLogger("sqlqueue.receive")


class RowOutcome(enum.Enum):
    """The outcome of a received row."""

    EXPIRED = "expired"
    POISON = "poison"
    HANDLED = "handled"
    POSTPONED = "postponed"
    FAILED = "failed"
    ROLLED_BACK = "rolled back"


# A poll with one of these counts as a success of the ramp-up controller (docs/internals/endpoints.md#ramp-up-controller).
_FOUND_WORK = (RowOutcome.HANDLED, RowOutcome.POSTPONED, RowOutcome.FAILED, RowOutcome.ROLLED_BACK)
_NOT_HANDLED = (RowOutcome.POISON, RowOutcome.FAILED, RowOutcome.ROLLED_BACK)


@dataclass(slots=True, eq=False)
class Delivery:
    """One received message and the state of its attempts. Used by one thread."""

    row: ReceivedRow
    incoming: IncomingMessage
    attempt: int = 0
    """The number of the current attempt, from 1; before it begins, the number of failed ones."""
    outgoing: list[OutgoingMessage] = field(default_factory=list)
    """The unwritten messages that the handlers of this attempt have sent, and the copy for the audit queue."""
    claim: str | None = None
    """The file of the body, to be deleted when the message is finished; None if the row has the body."""
    is_duplicate: bool = False
    """Whether a copy of the message was handled before, so that no handler is called."""
    called: tuple[Handler, float] | None = None
    """The handler that was called last, and the time of the call, in seconds since 1970."""
    started: float = 0.0
    """The start and the end of this attempt, by `perf_counter`."""
    completed: float = 0.0


@dataclass(slots=True, eq=False)
class ReceivedBatch:
    """The rows of one receive transaction, and the work deferred to its end."""

    rows: Sequence[ReceivedRow]
    several: bool
    """Whether the messages are committed together, so that work after the commit of one waits for the last."""
    outgoing: list[Sequence[OutgoingMessage]] = field(default_factory=list)
    """The outgoing messages of several messages; written before their commit."""
    after_commit: list[Callable[[], None]] = field(default_factory=list)
    """The functions to call after the commit of several messages."""
    handled: list[Done] = field(default_factory=list)
    """Handled messages, for the measures."""
    immediate: list[OutgoingMessage] = field(default_factory=list)
    """Immediate sends that wait for the end of the transaction, where the database has one writer (SQLite)."""

    @property
    def content(self) -> int:
        """The bytes of the bodies."""
        return sum(len(row.body) for row in self.rows if row.body is not None)


class _TransactionLost(Exception):
    """The transaction was lost to another session: no failure of the message."""


class MessageProcessor:
    """Processes the messages of one queue in one thread, one receive transaction at a time.

    Processors of other kinds override a step that has a public name: `process_row`, `deliver`, `move_poison`, `check_usable`,
    `give_up`, `run_hooks`.
    """

    takes_batches = True
    """Whether a transaction may have more than one message."""
    shares_transaction = True
    """Whether handlers get the connection of the receive transaction."""
    has_lost = False
    """Whether its last message is in no queue. Nothing is received afterwards: the error closes the thread's connections."""

    def __init__(
        self, config: ProcessorConfig, transaction: ReceiveTransaction, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.config = config
        self.transaction = transaction
        self.recovery = Recovery(config)
        self.outcomes = Outcomes(config.endpoint, config.queue)
        self.may_receive_ahead: Callable[[], bool] | None = None
        """Whether a commit may also receive the next rows. The caller that sets it must receive again, or call `give_back`."""
        self._clock = clock
        self._size = BatchSize(config.batch_size) if self.takes_batches and config.batch_size != 1 else None
        self._turn = BatchTurn(clock=clock)
        self._audits = config.auditing.copies_all
        self._slot = config.slow_handlers.slot(config.queue) if config.slow_handlers is not None else None
        self._tracer_provider = tracer_provider()
        self._process_id = os.getpid()

    # receive

    def receive(self) -> list[ReceivedRow]:
        """Receive the next rows and leave their transaction open; [] if there are none. Raises database errors as our types."""
        return self.transaction.receive_many(1 if self._size is None or self.transaction.rows_ahead else self._size.next())

    def give_back(self) -> None:
        """Return rows that were received ahead to their queue."""
        self.transaction.give_back()

    def process(self, rows: Sequence[ReceivedRow]) -> bool:
        """Process received rows and end their transaction. Returns whether the poll counts as having found work.

        Raises DatabaseError if the error queue cannot be written or a poison row cannot be moved; the rows return to their queue.
        """
        batch = ReceivedBatch(rows, len(rows) > 1)
        try:
            return self._process_batch(batch) if batch.several else self._process_single(batch)
        except BaseException:
            self._note_lost_batch(len(rows))
            self.outcomes.forget()
            raise
        finally:
            # Leave nothing behind, neither after an error nor after a handler that closed the connection.
            self.transaction.abandon()
            if self.config.in_flight is not None:
                self.config.in_flight.end()
            if batch.immediate:
                self.outcomes.send_immediate(self.config.dispatcher, batch.immediate)
            if self.outcomes.ready:
                self.outcomes.send()

    def _process_single(self, batch: ReceivedBatch) -> bool:
        began = self._clock()
        outcome = self.process_row(batch, batch.rows[0])
        if self._size is not None:
            self._size.done(1, self._clock() - began, failed=outcome in _NOT_HANDLED, content=batch.content)
        self._measure(batch)
        return outcome in _FOUND_WORK

    def _process_batch(self, batch: ReceivedBatch) -> bool:
        count, began = len(batch.rows), self._clock()
        outcomes: list[RowOutcome] = []
        with self._turn:
            for row in batch.rows:
                if outcomes:
                    self._turn.between()
                    self.transaction.begin_message()
                outcomes.append(self.process_row(batch, row))
                if outcomes[-1] is RowOutcome.ROLLED_BACK:
                    self._note_lost_batch(count)
                    return True
        if self._size is not None:
            failed = any(outcome in _NOT_HANDLED for outcome in outcomes)
            self._size.done(count, self._clock() - began, failed=failed, content=batch.content)
        return self._commit_batch(batch) or any(outcome in _FOUND_WORK for outcome in outcomes)

    # decode

    def process_row(self, batch: ReceivedBatch, row: ReceivedRow) -> RowOutcome:
        """Process one row: drop an expired message, move an unreadable or misdirected one, deliver any other."""
        if row.expired:
            self._complete(batch)
            logger.info("message expired", extra=self.config.log_extra("message_expired", str(row.id)))
            return RowOutcome.EXPIRED
        try:
            incoming = read_message(row)
        except PoisonMessage as poison:
            return self.move_poison(batch, row, poison)
        if names.FORWARD_DESTINATION in incoming.headers and self.config.forwarding.send_on(row, incoming):
            self._complete(batch)
            return RowOutcome.HANDLED
        return self.deliver(batch, Delivery(row, incoming))

    def move_poison(self, batch: ReceivedBatch, row: ReceivedRow, poison: PoisonMessage) -> RowOutcome:
        """Move an unreadable row to the error queue."""
        text = "message cannot be read, moving it to the error queue: %s"
        logger.error(text, poison, extra=self.config.log_extra("message_poison", str(row.id)))
        failure = failure_of(poison, unrecoverable=True)
        self.config.error_queue.move_poison(row, poison, failure)
        self._complete(batch)
        _when_committed(batch, self.outcomes.moved(row, failure, poison, self.config.recoverability.error_queue))
        return RowOutcome.POISON

    # attempt after attempt

    def deliver(self, batch: ReceivedBatch, delivery: Delivery) -> RowOutcome:
        """Attempt the message until it is handled, recoverability gives up, or the transaction is lost."""
        row, config = delivery.row, self.config
        if config.in_flight is not None and (died := config.in_flight.begin(row.id)) is not None:
            gives_up = MoveToError(config.recoverability.error_queue)
            return self.give_up(batch, delivery, gives_up, failure_of(died, unrecoverable=True))
        if not config.failures.is_empty and (remembered := config.failures.recall(row)) is not None:
            delivery.attempt, failure = remembered
            action = self._decide(batch, delivery, failure, None)
            if action is None:
                return RowOutcome.ROLLED_BACK
            if not self._retries_now(delivery, action, failure):
                return self.give_up(batch, delivery, action, failure)
        elif config.type_limits is not None and config.type_limits.postpones(config, self.transaction, delivery):
            self.run_hooks(self._complete(batch), delivery.incoming.message_id)
            return RowOutcome.POSTPONED
        return self._attempt_until_decided(batch, delivery)

    def _attempt_until_decided(self, batch: ReceivedBatch, delivery: Delivery) -> RowOutcome:
        while True:
            delivery.attempt += 1
            try:
                self._attempt(batch, delivery)
                hooks = self._complete(batch, delivery.outgoing)
            except _TransactionLost as gave_way:
                text = "a message was in the way of another transaction, its batch will be received again: %s"
                extra = self.config.log_extra("receive_gave_way", delivery.incoming.message_id)
                logger.warning(text, gave_way.__cause__, extra=extra)
                self.outcomes.forget()
                return RowOutcome.ROLLED_BACK
            except BaseException as error:  # noqa: BLE001 - any error of a handler fails the message; Ctrl-C is raised elsewhere
                failure = self._note_failure(delivery, error)
                action = self._decide(batch, delivery, failure, error)
                self.outcomes.failed(delivery, failure, error, action)
                if action is None:
                    return RowOutcome.ROLLED_BACK
                if not self._retries_now(delivery, action, failure):
                    return self.give_up(batch, delivery, action, failure)
            else:
                return self._note_success(batch, delivery, hooks)

    # call the handlers

    def _attempt(self, batch: ReceivedBatch, delivery: Delivery) -> None:
        """Call the handlers, unless the message is a duplicate or empty, and leave outgoing messages in `delivery.outgoing`."""
        config, incoming = self.config, delivery.incoming
        delivery.started = time.perf_counter()
        began = config.auditing.begins() if self._audits else None
        delivery.outgoing = []
        claim = None if incoming.body else incoming.headers.get(names.CLAIM_CHECK)
        has_body = bool(incoming.body or claim)
        delivery.is_duplicate = config.duplicates is not None and has_body and not _is_first(config.duplicates, incoming)
        if claim and not delivery.is_duplicate:
            incoming = self._with_claimed_body(delivery, claim)
        if delivery.is_duplicate:
            # The audit queue has the first copy; acknowledge a retry again, because its sender waits for that.
            began = None
        elif incoming.body or is_subscription_message(incoming):
            try:
                delivery.outgoing = self._call_handlers(batch, delivery)
            except (Deadlock, DjangoError) as error:
                if batch.several and self.transaction.table.dialect.error_kind(error) is Deadlock:
                    # Locks of earlier messages are part of the deadlock: another attempt in this transaction would repeat it.
                    raise _TransactionLost from error
                raise
            self.check_usable()
        else:
            # As NServiceBus does: a control message, or a message without content, is done when it arrives.
            logger.info(
                "message without a body, no handler called", extra=self.config.log_extra("message_empty", incoming.message_id)
            )
        if self._audits or names.RETRY_UNIQUE_MESSAGE_ID in incoming.headers:
            delivery.outgoing += config.auditing.copies(delivery.row, incoming, began)
        delivery.completed = time.perf_counter()

    def _with_claimed_body(self, delivery: Delivery, name: str) -> IncomingMessage:
        """Replace the message by one with its body from the storage. Raises as `claimed_body`."""
        row, headers = delivery.row, delivery.incoming.headers
        body = claimed_body(self.config.composer.claim_checks, name)
        delivery.claim = name
        delivery.incoming = IncomingMessage(row.id, headers, body, row.correlation_id, row.reply_to_address)
        return delivery.incoming

    def remove_claimed_body(self, delivery: Delivery) -> None:
        """Delete the file of a finished message, after its commit."""
        if delivery.claim is not None and (claim_checks := self.config.composer.claim_checks) is not None:
            claim_checks.remove(delivery.claim)

    def _call_handlers(self, batch: ReceivedBatch, delivery: Delivery) -> list[OutgoingMessage]:
        """Call every handler of the message. Returns the messages that they sent and that are not written yet."""
        config, incoming = self.config, delivery.incoming
        at_once = config.immediate_dispatcher
        delivery.called = None
        context = MessageContext(
            incoming,
            attempt=delivery.attempt,
            composer=config.composer,
            connection=self.transaction.connection if self.shares_transaction else None,
            send_at_once=at_once.dispatch if at_once is not None else partial(config.dispatcher.keep, kept=batch.immediate),
            allowed=config.allowed,
        )
        context.participants = self.transaction.participants
        collect = context.outgoing.extend if config.mode is TransactionMode.RECEIVE_ONLY else None
        try:
            with Handling(incoming, config.endpoint, collect):
                if self._tracer_provider is None or self._tracer_provider() is None or (active := tracing()) is None:
                    self._call_each(delivery, context)
                else:
                    with active.processing(incoming, endpoint=config.endpoint, queue=config.queue, attempt=delivery.attempt):
                        self._call_each(delivery, context)
        finally:
            if self._slot is not None:
                self._slot.running = None
            if os.getpid() != self._process_id:
                end_child()
        return context.outgoing

    def _call_each(self, delivery: Delivery, context: MessageContext) -> None:
        incoming, slot = delivery.incoming, self._slot
        for handler, message in self.config.handlers.calls(incoming):
            delivery.called = handler, time.time()
            context.called = handler
            if slot is not None:
                slot.running = handler, incoming, slot.clock(), threading.get_ident()
            if handler.soft_time_limit is None and handler.hard_time_limit is None:
                result = (handler.call or handler.function)(message, context)
            else:
                result = self.config.time_limits.call(handler, message, context, self.config.in_flight)
            if result is not None:
                refuse_unrun(result, handler)

    def check_usable(self) -> None:
        """Raise DoomedTransaction if the handlers have left the transaction in a state in which it cannot commit."""
        self.transaction.check_usable()

    # dispatch and commit

    def _complete(self, batch: ReceivedBatch, outgoing: Sequence[OutgoingMessage] = ()) -> Hooks:
        """Write the outgoing messages of a handled message and commit, or leave both to the end of the batch."""
        if batch.several:
            self.transaction.end_message()
            if outgoing:
                batch.outgoing.append(outgoing)
            return []
        if outgoing:
            # An error undoes the attempt together with what is written here.
            self.config.dispatcher.dispatch(outgoing, begun=True)
        return self._commit()

    def _commit(self) -> Hooks:
        if self.may_receive_ahead is None or are_observed() or not self.may_receive_ahead():
            return self.transaction.commit()
        return self.transaction.commit(then_receive=self._size.next if self._size is not None else lambda: 1)

    def _commit_batch(self, batch: ReceivedBatch) -> bool:
        """Write all outgoing messages, with one statement for each queue, and commit. Returns True if the batch was lost."""
        try:
            if batch.outgoing:
                self.config.dispatcher.dispatch_each(batch.outgoing, begun=True)
            hooks = self._commit()
        except Exception as error:
            # One of the messages caused it; processing them one by one will show which.
            self._note_lost_batch(len(batch.rows))
            text = "the transaction of %s is lost, each is received again and handled alone: %s"
            extra = self.config.log_extra("batch_lost", "")
            logger.warning(text, counted(len(batch.rows), "message"), text_of(error), extra=extra, exc_info=error)
            return True
        for call in batch.after_commit:
            call()
        self._measure(batch)
        self.run_hooks(hooks, "")
        return False

    def _note_lost_batch(self, count: int) -> None:
        if self._size is not None:
            self._size.lost(count)

    def _note_success(self, batch: ReceivedBatch, delivery: Delivery, hooks: Hooks) -> RowOutcome:
        """Record that a message is handled, and committed unless it waits for its batch."""
        config = self.config
        if delivery.attempt > 1:
            _when_committed(batch, lambda: config.failures.forget(delivery.row))
        if message_handled.receivers or delivery.attempt > 1:
            _when_committed(batch, self.outcomes.handled(delivery))
        if delivery.is_duplicate and (duplicates := config.duplicates) is not None:
            _when_committed(batch, lambda: duplicates.dropped(delivery.incoming))
        if delivery.claim is not None:
            _when_committed(batch, lambda: self.remove_claimed_body(delivery))
        if config.rate_limit is not None:
            config.rate_limit.succeeded()
        batch.handled.append(done(delivery.incoming.headers, delivery.started, delivery.completed))
        if hooks:
            self.run_hooks(hooks, delivery.incoming.message_id)
        return RowOutcome.HANDLED

    def run_hooks(self, hooks: Hooks, message_id: str) -> None:
        """Run the `on_commit` hooks of a committed message, and log their errors."""
        for hook in hooks:
            try:
                hook()
            except BaseException:
                # Such as SystemExit: the message is done, and the worker continues.
                text = "an on_commit hook failed; the message stays committed"
                logger.exception(text, extra=self.config.log_extra("on_commit_hook_failed", message_id))

    def _measure(self, batch: ReceivedBatch) -> None:
        """Count the handled messages after their commit."""
        if batch.handled:
            self.config.measures.handled(batch.handled, time.time() - time.perf_counter())
            batch.handled = []

    # undo, decide, retry or move

    def _note_failure(self, delivery: Delivery, error: BaseException) -> Failure:
        """Count a failed attempt. Returns its error as text."""
        if self.config.rate_limit is not None:
            self.config.rate_limit.failed()
        self.config.measures.failed(delivery.incoming.headers)
        return failure_of(error, unrecoverable=isinstance(error, UNRECOVERABLE), facts=facts_of(delivery))

    def _decide(self, batch: ReceivedBatch, delivery: Delivery, failure: Failure, error: BaseException | None) -> Action | None:
        """Undo the attempt and decide. What the policy does in the database is undone, too. None if `_undo` returns False."""
        if not self._undo(batch, delivery, failure, error):
            return None
        action = self.recovery.decide(delivery, failure, error)
        # A policy that has ended the transaction is not asked again about this failure.
        return action if self._undo(batch, delivery, replace(failure, policy_failed=True), error) else None

    def _undo(self, batch: ReceivedBatch, delivery: Delivery, failure: Failure, error: BaseException | None) -> bool:
        """Undo the attempt. Returns False if the whole transaction is lost: the row is in its queue, the failure remembered."""
        row, attempt = delivery.row, delivery.attempt
        try:
            self.transaction.undo_handler()
            self.transaction.check_usable()
        except (DatabaseError, DoomedTransaction) as lost:
            if self.transaction.was_ended():
                self._rescue(batch, delivery, failure, error)
                return False
            self.config.failures.failed(row, attempt, failure)
            logger.warning(
                "attempt %s failed and its transaction is lost (%s), the message will be received again: %s",
                attempt,
                type(lost).__name__,
                failure.message,
                extra=self.config.log_extra("transaction_lost", delivery.incoming.message_id, attempt=attempt),
            )
            return False
        return True

    def _rescue(self, batch: ReceivedBatch, delivery: Delivery, failure: Failure, error: BaseException | None) -> None:
        """Recover after user code ended the transaction past Django. A ROLLBACK leaves the rows in their queue, a COMMIT in none.

        After a COMMIT, write unhandled rows to the error queue, and send the outgoing messages of those handled before them.
        """
        row, table = delivery.row, self.transaction.table
        self.transaction.abandon()
        missing = [each for each in batch.rows[batch.rows.index(row) :] if not table.holds(each)]
        with transaction.atomic(using=table.alias):
            if missing and batch.outgoing:
                self.config.dispatcher.dispatch_each(batch.outgoing)
            for each in missing:
                self.config.error_queue.rescue(each, failure)
        if row not in missing:
            self.config.failures.failed(row, delivery.attempt, failure)
        else:
            for call in batch.after_commit:
                call()
            self._measure(batch)
        for each in missing:
            self.outcomes.moved(each, failure, error, self.config.recoverability.error_queue)()
        logger.error(
            "a handler or policy ended the receive transaction with a COMMIT or ROLLBACK; %s of %s moved to the error queue: %s",
            len(missing),
            counted(len(batch.rows), "message"),
            failure.message,
            extra=self.config.log_extra("transaction_ended", delivery.incoming.message_id),
        )

    def _retries_now(self, delivery: Delivery, action: Action, failure: Failure) -> bool:
        if not isinstance(action, RetryNow):
            return False
        self.recovery.report(action, delivery, failure)
        return True

    def give_up(self, batch: ReceivedBatch, delivery: Delivery, action: Action, failure: Failure) -> RowOutcome:
        """Apply the decision of recoverability to a failed message, in the receive transaction."""
        self.recovery.write(action, delivery, failure)
        # A delayed retry may be due before the mover would look.
        self.run_hooks(self._complete(batch), delivery.incoming.message_id)
        _when_committed(batch, lambda: self._report(delivery, action, failure))
        _when_committed(batch, self.outcomes.given_up(delivery, failure, action))
        return RowOutcome.FAILED

    def _report(self, delivery: Delivery, action: Action, failure: Failure) -> None:
        """Log and count a message that was given up, after the commit."""
        self.config.failures.forget(delivery.row)
        if isinstance(action, Discard):
            self.remove_claimed_body(delivery)
        self.recovery.report(action, delivery, failure)


def read_message(row: ReceivedRow) -> IncomingMessage:
    """Decode the message of a row. Raises PoisonMessage, also for a body that is NULL as `body_for_null` does."""
    headers = read_headers(row.headers)
    body = body_for_null(headers) if row.body is None else row.body
    return IncomingMessage(row.id, headers, body, row.correlation_id, row.reply_to_address)


def _is_first(duplicates: Duplicates, incoming: IncomingMessage) -> bool:
    try:
        return duplicates.is_first(incoming)
    except TransientError as error:
        # Two batches with the same two messages in opposite order wait for each other. Rolling back to a savepoint keeps the ids
        # of earlier messages, and the deadlock: roll back the whole batch and process its messages one by one.
        raise _TransactionLost from error


def _when_committed(batch: ReceivedBatch, call: Callable[[], None]) -> None:
    """Call it when the message is committed: now, after `_complete`, or with the batch."""
    if batch.several:
        batch.after_commit.append(call)
    else:
        call()


class NonTransactionalProcessor(MessageProcessor):
    """Transaction mode none: the receive commits first; the handlers are called once, outside any transaction.

    Depending on the settings, a failed message is dropped or goes to the error queue in its own transaction. A process that
    crashes in between loses the message (docs/internals/endpoints.md#transaction-modes).
    """

    # A crash loses what the process has received: one message, not a batch.
    takes_batches = False
    shares_transaction = False

    def deliver(self, batch: ReceivedBatch, delivery: Delivery) -> RowOutcome:
        """Commit the receive, then attempt to handle the message once."""
        row, limits = delivery.row, self.config.type_limits
        is_postponed = limits is not None and limits.postpones(self.config, self.transaction, delivery)
        hooks = self.transaction.commit()
        if is_postponed:
            self.run_hooks(hooks, delivery.incoming.message_id)
            return RowOutcome.POSTPONED
        if self.config.in_flight is not None:
            # No other process receives it again; but the supervisor enforces its hard limit, and takes no exit for an orderly one.
            self.config.in_flight.begin(row.id)
        delivery.attempt = 1
        try:
            self._attempt(batch, delivery)
            if delivery.outgoing:
                self.config.dispatcher.dispatch(delivery.outgoing)
        except BaseException as error:  # noqa: BLE001 - any error of a handler fails the message
            self.leave_no_transaction()
            failure = self._note_failure(delivery, error)
            action = self.recovery.decide(delivery, failure, error)
            self.outcomes.failed(delivery, failure, error, action)
            if self.config.discard_failures and isinstance(action, MoveToError):
                action = Discard("ON_FAILURE_WITHOUT_TRANSACTION")
            return self.give_up(batch, delivery, action, failure)
        if self.config.rate_limit is not None:
            self.config.rate_limit.succeeded()
        batch.handled.append(done(delivery.incoming.headers, delivery.started, delivery.completed))
        self.remove_claimed_body(delivery)
        if message_handled.receivers:
            self.outcomes.handled(delivery)()
        return RowOutcome.HANDLED

    def check_usable(self) -> None:
        """Raise DoomedTransaction if a handler has left a transaction open."""
        if self.transaction.connection.in_atomic_block:
            raise DoomedTransaction(LEFT_OPEN)

    def leave_no_transaction(self) -> None:
        """Close the connection if the handler has lost it, or has left a transaction open on it."""
        leave_no_transaction(self.transaction.connection)

    def give_up(self, batch: ReceivedBatch, delivery: Delivery, action: Action, failure: Failure) -> RowOutcome:
        """Apply the decision of recoverability to a failed message, in its own transaction."""
        try:
            with all_or_none(self.transaction.table.alias):
                self.recovery.write(action, delivery, failure)
        except DatabaseError as error:
            text = "message lost: it failed (%s) and could not be written to the error queue (%s)"
            extra = self.config.log_extra("message_lost", delivery.incoming.message_id)
            logger.critical(text, failure.message, error, extra=extra)
            self.has_lost = True
            raise
        self._report(delivery, action, failure)
        self.outcomes.given_up(delivery, failure, action)()
        return RowOutcome.FAILED


@dataclass(frozen=True, slots=True)
class ProcessorConfig:
    """Everything that processing one queue requires; shared by all its threads."""

    endpoint: str
    queue: str
    handlers: HandlerTable
    composer: Composer
    dispatcher: Dispatcher
    """Writes the messages that handlers send, according to the mode."""
    joined_dispatcher: Dispatcher
    """Writes in the receive transaction, in every mode that has one: delayed retries."""
    error_queue: ErrorQueue
    auditing: Auditing
    address: QueueAddress
    forwarding: Forwarding
    """Forwards messages that belong to another queue."""
    recoverability: RecoverabilityConfig
    failures: SharedFailures
    policy: Policy = default_policy
    type_limits: TypeLimits | None = None
    """Delays messages whose types have a rate limit."""
    rate_limit: RateLimit | None = None
    duplicates: Duplicates | None = None
    """Drops further copies of handled messages."""
    slow_handlers: SlowHandlers | None = None
    time_limits: TimeLimits = field(default_factory=TimeLimits)
    mode: TransactionMode = TransactionMode.TRANSACTION_SCOPE
    allowed: AllowedDestinations | None = None
    immediate_dispatcher: Dispatcher | None = None
    """Writes immediate sends outside the receive transaction; None where they must wait for its end (SQLite)."""
    discard_failures: bool = False
    """Mode none only: a failed message is dropped instead of going to the error queue."""
    batch_size: int | Literal["auto"] = 1
    """The maximum number of messages in one transaction; mode none takes each alone."""
    bound: LowerBound = field(default_factory=LowerBound)
    """The start of the next receive, shared by the threads of the queue."""
    keys: KeyWindow | None = None
    """The waiting messages of handlers with `key=`, shared by the threads of the queue; None if no handler has one."""
    measures: Measures = field(default_factory=Measures)
    """Counts the outcomes of messages, for the whole endpoint."""
    participants: Callable[[], TwoPhaseParticipants | None] = lambda: None
    """Creates the two-phase participants of a thread's receive transactions; None for one database."""
    in_flight: InFlightRegistry | None = None
    """Records the row of each thread for the supervisor, so that a message that kills its process is not retried forever."""

    def log_extra(self, event: str, message_id: str, **more: object) -> dict[str, object]:
        """The `extra` of a log line about a message."""
        return {"event": event, "endpoint": self.endpoint, "queue": self.queue, "message_id": message_id, **more}
