"""Processors of special queues: satellites of old transports, which are drained, and callback queues."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.envelope import IncomingMessage, OutgoingMessage, body_for_null, columns_of
from sqlqueue_app.messages.errors import PoisonMessage, SqlQueueError
from sqlqueue_app.messages.headers import Headers, read_headers, write_headers
from sqlqueue_app.policies.recoverability import FailureContext, MoveToError, RetryLater, TransactionMode
from sqlqueue_app.receiving.destinations import Destinations, Unroutable, cancelled_saga, is_for_retries, route_of
from sqlqueue_app.receiving.error_queue import (
    ErrorQueue,
    failure_of,
    headers_of_copy,
    last_retry_at,
    retries_so_far,
    with_next_retry,
)
from sqlqueue_app.receiving.measures import done
from sqlqueue_app.receiving.processing import (
    Delivery,
    MessageProcessor,
    NonTransactionalProcessor,
    ProcessorConfig,
    ReceivedBatch,
    RowOutcome,
    logger,
)
from sqlqueue_app.receiving.recovery import by_default
from sqlqueue_app.receiving.stopping import StopSignal
from sqlqueue_app.receiving.waiting import WakeUp
from sqlqueue_app.sending.replies import Request, is_reply, pending
from sqlqueue_app.tables.delayed import DelayedTable
from sqlqueue_app.tables.queue import QueueTable
from sqlqueue_app.tables.receive_transaction import ReceiveTransaction
from sqlqueue_app.tables.rows import NewRow, ReceivedRow

# A timeout that is due within this is forwarded at once (docs/internals/wire.md#timeout-manager).
DUE_WITHIN = timedelta(seconds=1)
_OF_THE_DELAY = (names.TIMEOUT_EXPIRE, names.TIMEOUT_ROUTE_TO, names.TIMEOUT_REPLY_TO_ADDRESS)


class RetriesUsedUp(SqlQueueError):
    """A message that gets no further delayed retry."""


@dataclass(frozen=True, slots=True)
class SatelliteRoutes:
    """The additional configuration for draining; shared by the threads of an endpoint."""

    main: str
    """The address of the endpoint's own queue."""
    destinations: Destinations
    delayed: DelayedTable
    error_queue_of: Callable[[str], ErrorQueue]
    """The error queue as used for messages of the failed queue of this address text."""
    now: Callable[[], datetime]


class SatelliteProcessor(MessageProcessor):
    """Moves the messages of one satellite queue of transports 1.x to 3.x in one thread, one at a time. Calls no handler.

    A move is a receive and an insert in one transaction, whatever the endpoint's transaction mode, so no row is lost. An
    unroutable message goes to the error queue with the reason. A retry waits as long as if the message had failed here; when its
    retries are exhausted, it goes to the error queue with the failure in its headers.
    """

    takes_batches = False

    def __init__(self, config: ProcessorConfig, transaction: ReceiveTransaction, routes: SatelliteRoutes) -> None:
        super().__init__(config, transaction)
        self._routes = routes

    def process_row(self, batch: ReceivedBatch, row: ReceivedRow) -> RowOutcome:
        """Move the message to its destination, or to the error queue."""
        extra = self.config.log_extra("message_drained", str(row.id))
        if row.expired:
            self.transaction.commit()
            logger.info("message expired", extra={**extra, "event": "message_expired"})
            return RowOutcome.EXPIRED
        try:
            headers = read_headers(row.headers)
            if row.body is None:
                row = row._replace(body=body_for_null(headers))
        except PoisonMessage as poison:
            return self.move_poison(batch, row, poison)
        extra["message_id"] = headers.get(names.MESSAGE_ID) or str(row.id)
        try:
            moved_to = self._move(row, headers)
        except RetriesUsedUp as error:
            self.config.error_queue.move_failed(row, headers, failure_of(error, unrecoverable=True))
            self.transaction.commit()
            moved = {**extra, "event": "moved_to_error_queue"}
            logger.error("message moved to the error queue %s: %s", self.config.error_queue.address, error, extra=moved)
            return RowOutcome.FAILED
        except Unroutable as error:
            self._refuse(row, headers, error)
            self.transaction.commit()
            logger.error("message moved to the error queue: %s", error, extra={**extra, "event": "message_unroutable"})
            return RowOutcome.FAILED
        self.run_hooks(self.transaction.commit(), str(extra["message_id"]))
        logger.debug("message moved to %s", moved_to, extra=extra)
        return RowOutcome.HANDLED

    def _move(self, row: ReceivedRow, headers: Headers) -> str:
        """Write the message to its destination, and return that. Raises Unroutable or RetriesUsedUp; nothing is written then."""
        if (saga := cancelled_saga(self.config.queue, headers)) and (timeouts := self._cancel(saga)):
            return f"its end: {timeouts} timeouts of the saga {saga} are cancelled"
        route = route_of(self.config.queue, headers)
        now = self._routes.now()
        delay = self._delay_of_retry(headers, now) if is_for_retries(self.config.queue) else None
        with self._routes.destinations.writing_to(route.to) as table:
            if delay is None and route.due is None:
                table.send([_whole(row, headers, table)])
                return table.qualified
            if route.due is not None and route.due <= now + DUE_WITHIN:
                kept = _without_delay(row, headers)
                table.send([NewRow(str(table.id_of_copy(row.id)), write_headers(kept), row.body or b"", *columns_of(kept))])
                return table.qualified
        if delay is None:
            return self._keep(OutgoingMessage(table.address, _without_delay(row, headers), row.body or b"", deliver_at=route.due))
        kept = with_next_retry(headers_of_copy(row, headers), now)
        return self._keep(OutgoingMessage(table.address, kept, row.body or b"", delay=delay))

    def _cancel(self, saga: str) -> int:
        # Delayed replies to the saga also carry its id.
        return self._routes.delayed.cancel({names.SAGA_ID: saga, names.IS_SAGA_TIMEOUT_MESSAGE: "True"})

    def _delay_of_retry(self, headers: Headers, now: datetime) -> timedelta | None:
        """The delay of the default policy; None without delayed retries: no delay. Raises RetriesUsedUp."""
        config = self.config.recoverability
        if not config.delayed_retries:
            return None
        context = FailureContext(
            # The old endpoint has made its immediate retries.
            failed_attempts=config.immediate_retries + 1,
            unrecoverable=False,
            delayed_retries=retries_so_far(headers),
            last_delayed_retry_at=last_retry_at(headers),
            now=now,
        )
        action = by_default(config, context, now)
        if isinstance(action, RetryLater):
            return action.delay
        raise RetriesUsedUp(f"no delayed retry is left after {context.delayed_retries}")

    def _keep(self, message: OutgoingMessage) -> str:
        """Write the message to the endpoint's table of delayed messages, in the receive transaction."""
        self.config.joined_dispatcher.dispatch([message], begun=True)
        return f"the delayed messages, for {message.destination}"

    def _refuse(self, row: ReceivedRow, headers: Headers, error: Unroutable) -> None:
        # A retry by an operator sends it to its destination. Without one, a retry goes to the main queue, where it has most
        # likely failed, anything else to the satellite again.
        failed = headers.get(names.FAILED_QUEUE) or (self._routes.main if is_for_retries(self.config.queue) else None)
        queue = self.config.error_queue if not failed else self._routes.error_queue_of(failed)
        queue.move(row, headers, failure_of(error, unrecoverable=True))


def _whole(row: ReceivedRow, headers: Headers, table: QueueTable) -> NewRow:
    """The row without its expiry, as NServiceBus forwards it; if it needs a new id, the headers keep the old one."""
    # Transports 1.x and 2.x take the message id from the row.
    row_id = table.id_of_copy(row.id)
    text = row.headers or ""
    if row_id != row.id and not headers.get(names.MESSAGE_ID):
        text = write_headers({**headers, names.MESSAGE_ID: str(row.id)})
    return NewRow(str(row_id), text, row.body or b"", row.correlation_id, row.reply_to_address)


def _without_delay(row: ReceivedRow, headers: Headers) -> Headers:
    """The headers of a timeout without those of its delay, with the values of columns that a delayed table does not have."""
    kept = headers_of_copy(row, {name: value for name, value in headers.items() if name not in _OF_THE_DELAY})
    if reply_to := headers.get(names.TIMEOUT_REPLY_TO_ADDRESS):
        kept[names.REPLY_TO_ADDRESS] = reply_to
    return kept


class CallbackProcessor(MessageProcessor):
    """Processes the messages of one callback queue in one thread, one at a time.

    A reply is delivered after the commit of its receive, so at most once; if the process crashes in between, its waiting requests
    are lost with it. A reply without a waiting request is audited like any other, and logged.
    """

    takes_batches = False

    def deliver(self, batch: ReceivedBatch, delivery: Delivery) -> RowOutcome:
        """Deliver a reply to its waiting request, any other message to its handlers."""
        row, incoming = delivery.row, delivery.incoming
        if not is_reply(incoming):
            return super().deliver(batch, delivery)
        delivery.started = time.perf_counter()
        began = self.config.auditing.begins()
        request = pending.find(incoming.correlation_id)
        try:
            reply = None if request is None else request.read(incoming)
            copies = self.config.auditing.copies(row, incoming, began)
        except Exception as error:  # noqa: BLE001 - user-defined message classes may raise anything
            return self._refuse(delivery, request, error)
        if copies:
            self.config.joined_dispatcher.dispatch(copies, begun=True)
        delivery.completed = time.perf_counter()
        self.transaction.commit()
        batch.handled.append(done(incoming.headers, delivery.started, delivery.completed))
        if request is None or not request.succeed(reply):
            self._log_unclaimed(incoming)
        return RowOutcome.HANDLED

    def _refuse(self, delivery: Delivery, request: Request[Any] | None, error: Exception) -> RowOutcome:
        """Fail the request of an unreadable reply, and keep the reply in the error queue."""
        incoming = delivery.incoming
        failure = failure_of(error, unrecoverable=True)
        moved = MoveToError(self.config.recoverability.error_queue)
        self.recovery.write(moved, delivery, failure)
        self.transaction.commit()
        self.outcomes.failed(delivery, failure, error, moved)
        self.outcomes.given_up(delivery, failure, moved)()
        self.config.measures.failed(incoming.headers)
        self.config.measures.decided(incoming.headers, moved)
        if request is not None:
            request.fail(error)
        extra = self.config.log_extra("reply_unreadable", incoming.message_id)
        logger.error("reply moved to the error queue: %s", failure.message, extra=extra)
        return RowOutcome.FAILED

    def _log_unclaimed(self, incoming: IncomingMessage) -> None:
        logger.warning(
            "no request waits for the reply to message %r: it has a reply, has timed out, was cancelled, or its process is gone",
            incoming.correlation_id,
            extra=self.config.log_extra("reply_unclaimed", incoming.message_id),
        )


class NonTransactionalCallbackProcessor(CallbackProcessor, NonTransactionalProcessor):
    """The processor for transaction mode none: delivers replies in the same way, handles other messages as in that mode."""


def callback_processor(mode: TransactionMode) -> type[CallbackProcessor]:
    """The processor of callback queues in a transaction mode."""
    return NonTransactionalCallbackProcessor if mode is TransactionMode.NONE else CallbackProcessor


class CallbackWakeUp(WakeUp):
    """Makes the threads of a callback queue poll more often while a request waits, unless new messages are announced."""

    def __init__(self, queue: str, qualified: str, stop: StopSignal, *, listens: bool) -> None:
        super().__init__(queue, qualified, stop)
        self.listens = listens

    def poll_soon(self) -> None:
        """Poll now, then at short intervals, because a request was sent; also ends a long wait that has begun."""
        if not self.push_enabled:
            self.wake()

    def _wait(self, seconds: float | None) -> None:
        if seconds is not None and not self.push_enabled and (longest := pending.longest_wait(self.queue)) is not None:
            seconds = min(seconds, longest)
        super()._wait(seconds)
