"""Messages sent because of a received one: its audit copy, the acknowledgement of a retry, forwarded messages."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container
from datetime import datetime

from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.envelope import VERSION, IncomingMessage, OutgoingMessage, columns_of
from sqlqueue_app.messages.headers import write_headers
from sqlqueue_app.messages.times import format_time
from sqlqueue_app.receiving.destinations import AllowedDestinations, Destinations, Unroutable
from sqlqueue_app.receiving.error_queue import ErrorQueue, failure_of, headers_of_copy
from sqlqueue_app.sending.composer import Composer, utc_now
from sqlqueue_app.tables.rows import NewRow, ReceivedRow

logger = logging.getLogger("sqlqueue.receive")


class Auditing:
    """Creates the audit copy and the acknowledgement of a retry for one endpoint; `queue` is its audit queue, or None.

    Both are dispatched with the handlers' outgoing messages, in the same transaction. Form and order of the headers follow
    docs/internals/wire.md#audit-headers. A retry from one of the `error_queues` is acknowledged there, whatever is `allowed`.
    Immutable; shared by all threads.
    """

    def __init__(
        self,
        queue: QueueAddress | None,
        composer: Composer,
        *,
        acknowledges: bool = True,
        allowed: AllowedDestinations | None = None,
        error_queues: Container[QueueAddress] = (),
    ) -> None:
        self._queue = queue
        self._composer = composer
        self._acknowledges = acknowledges
        self._allowed = allowed
        self._error_queues = error_queues

    @property
    def copies_all(self) -> bool:
        """Whether there is an audit queue; without one, only retries that request an acknowledgement matter."""
        return self._queue is not None

    def begins(self) -> datetime | None:
        """The instant for `copies`, from before the handlers are called; None without an audit queue."""
        return None if self._queue is None else utc_now()

    def copies(self, row: ReceivedRow, incoming: IncomingMessage, began: datetime | None) -> list[OutgoingMessage]:
        """The messages to send for a handled message; usually none, without an audit queue.

        Raises AddressError for an invalid acknowledgement queue, ConfigurationError for one that is not allowed.
        """
        retry = incoming.headers.get(names.RETRY_UNIQUE_MESSAGE_ID) if self._acknowledges else None
        acknowledge = incoming.headers.get(names.RETRY_ACKNOWLEDGEMENT_QUEUE) if retry else None
        sent: list[OutgoingMessage] = []
        # A claim check keeps only its header: its file is deleted with the handled message.
        if self._queue is not None and began is not None:
            sent.append(OutgoingMessage(self._queue, self._audit_headers(row, incoming, began, bool(acknowledge)), row.body or b""))
        if retry and acknowledge:
            sent.append(self._acknowledgement(incoming, retry, acknowledge))
        return sent

    def _audit_headers(self, row: ReceivedRow, incoming: IncomingMessage, began: datetime, acknowledged: bool) -> names.Headers:
        identity = self._composer.identity
        headers = headers_of_copy(row, incoming.headers)
        headers[names.PROCESSING_STARTED] = format_time(began)
        headers[names.PROCESSING_ENDED] = format_time(utc_now())
        if acknowledged:
            headers[names.RETRY_ACKNOWLEDGEMENT_SENT] = "true"
        headers[names.HOST_ID] = identity.host_id.hex
        headers[names.HOST_DISPLAY_NAME] = identity.machine
        headers[names.PROCESSING_MACHINE] = identity.machine
        headers[names.PROCESSING_ENDPOINT] = identity.endpoint
        return headers

    def _acknowledgement(self, incoming: IncomingMessage, retry: str, queue: str) -> OutgoingMessage:
        """The message that reports a handled retry to ServiceControl: five headers, no id and no body."""
        destination = self._composer.destination(queue)
        if self._allowed is not None and destination not in self._error_queues:
            self._allowed.check(destination, message_id=incoming.message_id, what="the acknowledgement of its retry")
        now = format_time(utc_now())
        headers: names.Headers = {
            names.RETRY_SUCCESSFUL: now,
            names.RETRY_UNIQUE_MESSAGE_ID: retry,
            names.CONTROL_MESSAGE: "True",
            names.VERSION: VERSION,
            names.TIME_SENT: now,
        }
        return OutgoingMessage(destination, headers, b"")


class Forwarding:
    """Forwards messages of one queue, or detects that they have arrived. Shared by the queue's threads.

    Peers move delayed messages into the sender's own queue first; a header holds the destination
    (docs/internals/wire.md#delayed-messages). It is removed when it is first read, so that no message loops.
    """

    def __init__(
        self,
        endpoint: str,
        own: QueueAddress,
        own_text: str,
        destinations: Destinations,
        error_queue_of: Callable[[str], ErrorQueue],
    ) -> None:
        """`own` is the resolved address of the queue, `own_text` its canonical text."""
        self._endpoint = endpoint
        self._own = own
        self._own_texts = (own_text, own.table)
        self._destinations = destinations
        self._error_queue_of = error_queue_of

    def send_on(self, row: ReceivedRow, incoming: IncomingMessage) -> bool:
        """Forward a message, or move it to the error queue with the reason. Returns False if it belongs to this queue.

        Runs in the caller's transaction, which has deleted the row. Removes the header from `incoming` in each case.
        """
        to = incoming.headers.pop(names.FORWARD_DESTINATION)
        if not to or to in self._own_texts:
            return False
        extra = {
            "event": "message_forwarded",
            "endpoint": self._endpoint,
            "queue": self._own.table,
            "message_id": incoming.message_id,
        }
        headers = headers_of_copy(row, incoming.headers)
        try:
            with self._destinations.writing_to(to) as table:
                if table.address == self._own:
                    return False
                # Without expiry, like NServiceBus.
                table.send([NewRow(str(table.id_of_copy(row.id)), write_headers(headers), incoming.body, *columns_of(headers))])
        except Unroutable as error:
            self._error_queue_of(to).move(row, headers, failure_of(error, unrecoverable=True))
            logger.error("message moved to the error queue: %s", error, extra=extra | {"event": "message_unroutable"})
            return True
        logger.debug("message sent on to %s", table.qualified, extra=extra)
        return True
