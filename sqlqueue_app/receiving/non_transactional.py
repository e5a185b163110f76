"""Transaction mode none: the message is gone as soon as it is received, whatever becomes of it (transport reference 5.1).

The receive commits before the handlers are called, once, outside of any transaction. A failed message goes to the error queue in a
transaction of its own, or is dropped, as the settings say. A process that dies in between loses the message: that is the mode.
"""

from __future__ import annotations

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from sqlqueue_app.messages.envelope import IncomingMessage
from sqlqueue_app.messages.errors import DatabaseError, DoomedTransaction
from sqlqueue_app.policies.recoverability import Action, Discard, MoveToError
from sqlqueue_app.receiving.failures import Failure
from sqlqueue_app.receiving.measures import done
from sqlqueue_app.receiving.processing import MessageProcessor, Outcome, logger
from sqlqueue_app.tables.rows import ReceivedRow


class NonTransactionalProcessor(MessageProcessor):
    """Processes the messages of one queue in one thread, without a transaction around the handlers."""

    # A process that dies loses what it has received: one message and not a batch.
    takes_batches = False

    def _attempt(self, row: ReceivedRow, incoming: IncomingMessage) -> Outcome:
        self._transaction.commit()
        try:
            if outgoing := self._handle(row, incoming, 1):
                self._config.dispatcher.dispatch(outgoing)
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its message's failure
            self._leave_no_transaction()
            failure = self._failed(incoming, error)
            action = self._recovery.decide(incoming, 1, failure, error)
            if self._config.discard_failures and isinstance(action, MoveToError):
                action = Discard("ON_FAILURE_WITHOUT_TRANSACTION")
            return self._settle(action, row, incoming, failure, 1)
        self._config.rate_limit.succeeded()
        self._done.append(done(incoming.headers, *self._attempt_took))
        return Outcome.HANDLED

    def _connection_for_handlers(self) -> BaseDatabaseWrapper | None:
        return None

    def _check_handlers_left_it_usable(self) -> None:
        if self._transaction.connection.in_atomic_block:
            raise DoomedTransaction(
                "the handler left an atomic() open that it had entered by hand; use it in a with statement or as a decorator"
            )

    def _leave_no_transaction(self) -> None:
        connection = self._transaction.connection
        if connection.in_atomic_block:
            # Nobody will ever leave that block; closing is the one way out of it that Django knows.
            connection.in_atomic_block = False
            connection.close()

    def _settle(self, action: Action, row: ReceivedRow, incoming: IncomingMessage, failure: Failure, attempt: int) -> Outcome:
        try:
            with transaction.atomic(using=self._transaction.table.alias):
                self._recovery.write(action, row, incoming, failure)
        except DatabaseError as error:
            logger.critical(
                "message lost: it failed (%s) and could not be written to the error queue (%s)",
                failure.message,
                error,
                extra=self._extra("message_lost", incoming.message_id),
            )
            raise
        self._settled(action, row, incoming, failure, attempt)
        return Outcome.FAILED
