"""The way of a message: receive, read, call the handlers, write what they sent, commit; or retry, or the error queue.

Everything happens in the receive transaction (design section 5), alone or with others of a batch. The savepoint before the work of
a message lets a failed attempt be undone while the row stays ours, so attempts are counted exactly, however many instances
compete (design 6.4), and what messages before it in the batch did stays done.
"""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Callable, Sequence

from django.db import transaction as django_transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.envelope import IncomingMessage, OutgoingMessage
from sqlqueue_app.messages.errors import (
    DatabaseError,
    DoomedTransaction,
    NullHeaders,
    PoisonMessage,
    TransientError,
)
from sqlqueue_app.messages.headers import read_headers
from sqlqueue_app.policies.batch_size import BatchSize
from sqlqueue_app.policies.recoverability import Action, MoveToError, RetryNow
from sqlqueue_app.receiving.batch_turns import BatchTurn
from sqlqueue_app.receiving.control_messages import is_subscription_message
from sqlqueue_app.receiving.failures import UNRECOVERABLE, Failure, failure_of
from sqlqueue_app.receiving.invoking import Invoker
from sqlqueue_app.receiving.measures import Done, done
from sqlqueue_app.receiving.processor_config import ProcessorConfig
from sqlqueue_app.receiving.reading import NullBody, read_message
from sqlqueue_app.receiving.recovering import Recovery
from sqlqueue_app.tables.receive_transaction import ReceiveTransaction
from sqlqueue_app.tables.rows import ReceivedRow
from sqlqueue_app.tables.watched_connection import Hooks

logger = logging.getLogger("sqlqueue.receive")


class Outcome(enum.Enum):
    """What became of a poll. HANDLED, FAILED and ROLLED_BACK count as a success of the ramp-up controller."""

    EMPTY = "empty"
    EXPIRED = "expired"
    POISON = "poison"
    HANDLED = "handled"
    FAILED = "failed"
    ROLLED_BACK = "rolled back"

    @property
    def yielded_message(self) -> bool:
        """Whether the poll counts as one that found work (transport reference 4.2)."""
        return self in (Outcome.HANDLED, Outcome.FAILED, Outcome.ROLLED_BACK)


class _GaveWay(Exception):
    """The transaction is lost to another session before a handler was called: no failure of the message."""


_NOT_HANDLED = (Outcome.POISON, Outcome.FAILED, Outcome.ROLLED_BACK)


class MessageProcessor:
    """Processes the messages of one queue in one thread, one batch at a time."""

    takes_batches = True

    def __init__(
        self, config: ProcessorConfig, transaction: ReceiveTransaction, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._config = config
        self._transaction = transaction
        self._clock = clock
        self._size = BatchSize(config.batch_size if self.takes_batches else 1)
        self._turn = BatchTurn(clock=clock)
        self._alone = True
        self._invoker = Invoker(config, self._send_at_once)
        self._recovery = Recovery(config)
        self._audits = config.auditing.copies_all
        self._is_copy = False
        self._attempt_took = (0.0, 0.0)
        self._done: list[Done] = []
        self._rows: Sequence[ReceivedRow] = ()
        self._immediate: list[OutgoingMessage] = []
        self._outgoing: list[Sequence[OutgoingMessage]] = []
        self._after_commit: list[Callable[[], None]] = []
        self.may_receive_ahead: Callable[[], bool] = lambda: False
        """Whether a commit may bring the next rows along; who says so receives again, or calls `give_back`."""

    def receive(self) -> list[ReceivedRow]:
        """The next rows, their transaction open; [] if there are none. Database errors come as our kinds."""
        return self._transaction.receive_many(1 if self._transaction.has_rows_ahead else self._size.next())

    @property
    def has_rows_ahead(self) -> bool:
        """Whether the last commit has brought rows along that the next receive will return."""
        return self._transaction.has_rows_ahead

    def give_back(self) -> None:
        """Put rows that were received ahead into their queue again."""
        self._transaction.give_back()

    def process(self, rows: Sequence[ReceivedRow]) -> bool:
        """Bring received rows to their end, their transaction too; whether the poll counts as one that found work.

        DatabaseError if the error queue cannot be written or a poison row cannot be moved: the rows are in their queue again then.
        """
        self._rows = rows
        self._alone = len(rows) == 1
        self._outgoing, self._after_commit, self._done = [], [], []
        try:
            return self._process_alone(rows[0]) if self._alone else self._process_batch(rows)
        except BaseException:
            self._size.lost(len(rows))
            raise
        finally:
            # Nothing of these messages may be left: neither after an error, nor after a handler that closed the connection.
            self._transaction.abandon()
            self._config.in_work.ends()
            if self._immediate:
                messages, self._immediate = self._immediate, []
                self._config.dispatcher.dispatch(messages)

    def _process_alone(self, row: ReceivedRow) -> bool:
        began = self._clock()
        outcome = self._process(row)
        self._size.done(1, self._clock() - began, failed=outcome in _NOT_HANDLED)
        self._count_done()
        return outcome.yielded_message

    def _process_batch(self, rows: Sequence[ReceivedRow]) -> bool:
        began = self._clock()
        outcomes: list[Outcome] = []
        with self._turn:
            for row in rows:
                if outcomes:
                    self._turn.between()
                    self._transaction.begin_message()
                outcomes.append(self._process(row))
                if outcomes[-1] is Outcome.ROLLED_BACK:
                    self._size.lost(len(rows))
                    return True
        self._size.done(len(rows), self._clock() - began, failed=any(outcome in _NOT_HANDLED for outcome in outcomes))
        return self._commit_batch(len(rows)) or any(outcome.yielded_message for outcome in outcomes)

    def _commit_batch(self, messages: int) -> bool:
        """Write what the messages sent, with one statement for each queue, and commit. True if the batch was lost instead."""
        try:
            if self._outgoing:
                self._config.dispatcher.dispatch_each(self._outgoing, begun=True)
            hooks = self._commit()
        except Exception as error:
            # Whatever it was, one of the messages is to blame, and alone it will show.
            self._size.lost(messages)
            logger.warning(
                "the transaction of %s messages is lost, each is received again and handled alone: %s",
                messages,
                error,
                extra=self._extra("batch_lost", ""),
                exc_info=error,
            )
            return True
        for call in self._after_commit:
            call()
        self._count_done()
        self._run_hooks(hooks, "")
        return False

    def _commit(self) -> Hooks:
        return self._transaction.commit(then_receive=self._size.next if self.may_receive_ahead() else None)

    def _finish(self, outgoing: Sequence[OutgoingMessage] = ()) -> Hooks:
        """The message is done: what it sent is written and committed; with the batch, if there is one."""
        if not self._alone:
            self._transaction.end_message()
            if outgoing:
                self._outgoing.append(outgoing)
            return []
        if outgoing:
            # An error undoes the attempt, and what is written here with it.
            self._config.dispatcher.dispatch(outgoing, begun=True)
        return self._commit()

    def _when_committed(self, call: Callable[[], None]) -> None:
        """Call it when the message is committed: after `_finish` that is now, or with the batch."""
        if self._alone:
            call()
        else:
            self._after_commit.append(call)

    def _process(self, row: ReceivedRow) -> Outcome:
        if row.expired:
            self._finish()
            logger.info("message expired", extra=self._extra("message_expired", str(row.id)))
            return Outcome.EXPIRED
        try:
            incoming = read_message(row)
        except PoisonMessage as poison:
            return self._move_poison(row, poison)
        if names.FORWARD_DESTINATION in incoming.headers and self._config.forwarding.send_on(row, incoming):
            self._finish()
            return Outcome.HANDLED
        return self._attempt(row, incoming)

    def _move_poison(self, row: ReceivedRow, poison: PoisonMessage) -> Outcome:
        logger.error(
            "message cannot be read, moving it to the error queue: %s", poison, extra=self._extra("message_poison", str(row.id))
        )
        if isinstance(poison, (NullHeaders, NullBody)):
            headers = {} if isinstance(poison, NullHeaders) else read_headers(row.headers)
            failure = failure_of(poison, unrecoverable=True)
            self._config.error_queue.move(row.id, headers, row.body or b"", failure, row.correlation_id, row.reply_to_address)
        else:
            self._config.error_queue.move_poison(row)
        self._finish()
        return Outcome.POISON

    def _attempt(self, row: ReceivedRow, incoming: IncomingMessage) -> Outcome:
        if (died := self._config.in_work.begins(row.id)) is not None:
            gives_up = MoveToError(self._config.recoverability.error_queue)
            return self._settle(gives_up, row, incoming, failure_of(died, unrecoverable=True), 0)
        remembered = self._config.failures.recall(row)
        attempt = 1
        if remembered is not None:
            failed_attempts, failure = remembered
            action = self._recovery.decide(incoming, failed_attempts, failure)
            if not self._tries_again(action, incoming, failed_attempts, failure):
                return self._settle(action, row, incoming, failure, failed_attempts)
            attempt = failed_attempts + 1
        while True:
            try:
                hooks = self._finish(self._handle(row, incoming, attempt))
            except _GaveWay as gave_way:
                text = "a message could not be remembered for DEDUPLICATE_FOR, what was received with it is received again: %s"
                logger.warning(text, gave_way.__cause__, extra=self._extra("receive_gave_way", incoming.message_id))
                return Outcome.ROLLED_BACK
            except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its message's failure; Ctrl-C comes elsewhere
                failure = self._failed(incoming, error)
                if not self._undo(row, attempt, failure, error):
                    return Outcome.ROLLED_BACK
                action = self._recovery.decide(incoming, attempt, failure, error)
                if not self._tries_again(action, incoming, attempt, failure):
                    return self._settle(action, row, incoming, failure, attempt)
                attempt += 1
                continue
            return self._handled(row, incoming, attempt, hooks)

    def _handled(self, row: ReceivedRow, incoming: IncomingMessage, attempt: int, hooks: Hooks) -> Outcome:
        if attempt > 1:
            self._when_committed(lambda: self._config.failures.forget(row))
        if self._is_copy and (duplicates := self._config.duplicates) is not None:
            self._when_committed(lambda: duplicates.dropped(incoming))
        self._config.rate_limit.succeeded()
        self._done.append(done(incoming.headers, *self._attempt_took))
        self._run_hooks(hooks, incoming.message_id)
        return Outcome.HANDLED

    def _handle(self, row: ReceivedRow, incoming: IncomingMessage, attempt: int) -> list[OutgoingMessage]:
        """Call the handlers; what they sent and is not written yet, with the copy for the audit queue."""
        config = self._config
        started = time.perf_counter()
        began = config.auditing.begins() if self._audits else None
        outgoing: list[OutgoingMessage] = []
        self._is_copy = config.duplicates is not None and bool(incoming.body) and not self._is_first(incoming)
        if self._is_copy:
            # It was copied to the audit queue before; but who has sent it again waits to hear that it is handled.
            began = None
        elif incoming.body or is_subscription_message(incoming):
            outgoing = self._invoker.call(incoming, attempt, self._connection_for_handlers())
            self._check_handlers_left_it_usable()
        else:
            # As NServiceBus does: a control message, or a message without content, is done when it arrives.
            logger.info("message without a body, no handler called", extra=self._extra("message_empty", incoming.message_id))
        if self._audits or names.RETRY_UNIQUE_MESSAGE_ID in incoming.headers:
            outgoing += config.auditing.copies(row, incoming, began)
        self._attempt_took = started, time.perf_counter()
        return outgoing

    def _count_done(self) -> None:
        """The messages that are done are committed."""
        if self._done:
            self._config.measures.handled(self._done, time.time() - time.perf_counter())
            self._done = []

    def _is_first(self, incoming: IncomingMessage) -> bool:
        if (duplicates := self._config.duplicates) is None:
            return True
        try:
            return duplicates.is_first(incoming)
        except TransientError as error:
            # Two batches that hold the same two messages in opposite order wait for each other. A savepoint would keep the ids of
            # the messages before this one, and with them the knot: the whole batch gives way, and its messages come alone.
            raise _GaveWay from error

    def _send_at_once(self, messages: Sequence[OutgoingMessage]) -> None:
        if self._config.immediate_dispatcher is None:
            self._immediate.extend(messages)
        else:
            self._config.immediate_dispatcher.dispatch(messages)

    def _connection_for_handlers(self) -> BaseDatabaseWrapper | None:
        return self._transaction.connection

    def _check_handlers_left_it_usable(self) -> None:
        self._transaction.check_usable()

    def _undo(self, row: ReceivedRow, attempt: int, failure: Failure, error: BaseException) -> bool:
        """Undo the attempt. False if the whole transaction is gone: the row is in its queue again, the failure remembered."""
        try:
            self._transaction.undo_handler()
            self._transaction.check_usable()
        except (DatabaseError, DoomedTransaction) as lost:
            if self._transaction.was_ended():
                self._rescue(row, attempt, failure)
                return False
            self._config.failures.failed(row, attempt, failure)
            logger.warning(
                "attempt %s failed and its transaction is lost (%s), the message will be received again: %s",
                attempt,
                type(lost).__name__,
                failure.message,
                extra=self._extra("transaction_lost", str(row.id), attempt=attempt),
                exc_info=error,
            )
            return False
        return True

    def _rescue(self, row: ReceivedRow, attempt: int, failure: Failure) -> None:
        """A handler has ended the transaction past Django. A COMMIT has deleted the rows, which are in no queue then: those that
        are not handled go to the error queue, and what those before them sent is sent. After a ROLLBACK they are in their queue.
        """
        self._transaction.abandon()
        missing = [each for each in self._rows[self._rows.index(row) :] if not self._transaction.table.holds(each)]
        with django_transaction.atomic(using=self._transaction.table.alias):
            if missing and self._outgoing:
                self._config.dispatcher.dispatch_each(self._outgoing)
            for each in missing:
                self._config.error_queue.rescue(each, failure)
        if row not in missing:
            self._config.failures.failed(row, attempt, failure)
        else:
            for call in self._after_commit:
                call()
            self._count_done()
        logger.error(
            "a handler ended the receive transaction by a COMMIT or ROLLBACK of its own; "
            "%s of %s messages moved to the error queue: %s",
            len(missing),
            len(self._rows),
            failure.message,
            extra=self._extra("transaction_ended", str(row.id)),
        )

    def _failed(self, incoming: IncomingMessage, error: BaseException) -> Failure:
        self._config.rate_limit.failed()
        self._config.measures.failed(incoming.headers)
        return failure_of(error, unrecoverable=isinstance(error, UNRECOVERABLE), facts=self._invoker.facts(incoming))

    def _tries_again(self, action: Action, incoming: IncomingMessage, attempt: int, failure: Failure) -> bool:
        if not isinstance(action, RetryNow):
            return False
        self._recovery.say(action, incoming, failure, attempt)
        return True

    def _settle(self, action: Action, row: ReceivedRow, incoming: IncomingMessage, failure: Failure, attempt: int) -> Outcome:
        """The message is not handled: do what the policy says, and commit that with the receive."""
        self._recovery.write(action, row, incoming, failure)
        self._finish()
        self._when_committed(lambda: self._settled(action, row, incoming, failure, attempt))
        return Outcome.FAILED

    def _settled(self, action: Action, row: ReceivedRow, incoming: IncomingMessage, failure: Failure, attempt: int) -> None:
        self._config.failures.forget(row)
        self._recovery.say(action, incoming, failure, attempt)

    def _run_hooks(self, hooks: Hooks, message_id: str) -> None:
        for hook in hooks:
            try:
                hook()
            except Exception:
                logger.exception(
                    "an on_commit hook failed; the message is committed all the same",
                    extra=self._extra("on_commit_hook_failed", message_id),
                )

    def _extra(self, event: str, message_id: str, **more: object) -> dict[str, object]:
        return {
            "event": event,
            "endpoint": self._config.endpoint,
            "queue": self._config.queue,
            "message_id": message_id,
            **more,
        }
