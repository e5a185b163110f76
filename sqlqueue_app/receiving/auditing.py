"""What is sent because a message was handled: its copy for the audit queue, and the acknowledgement of a retry.

Both go with what the handlers sent: in the same dispatch, so in the same transaction and, where several messages go to a queue, in
the same statement. Form and order of the headers are those of the recorded rows (transport reference 6.8 and 18).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.envelope import VERSION, IncomingMessage, OutgoingMessage
from sqlqueue_app.messages.times import format_time
from sqlqueue_app.receiving.allowed import AllowedDestinations
from sqlqueue_app.receiving.reading import headers_of_copy
from sqlqueue_app.sending.composer import Composer, utc_now
from sqlqueue_app.tables.rows import ReceivedRow


class Auditing:
    """Makes these messages for one endpoint; `queue` is its audit queue, or None; `acknowledges` whether it answers to retries.

    Immutable; shared by all threads.
    """

    def __init__(
        self,
        queue: QueueAddress | None,
        composer: Composer,
        *,
        acknowledges: bool = True,
        allowed: AllowedDestinations | None = None,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._queue = queue
        self._composer = composer
        self._acknowledges = acknowledges
        self._allowed = allowed
        self._now = now

    @property
    def copies_all(self) -> bool:
        """Whether there is an audit queue; without one, only retries that ask for an acknowledgement concern us."""
        return self._queue is not None

    def begins(self) -> datetime | None:
        """The instant for `copies`, to be asked for before the handlers are called; None where nobody will read it."""
        return None if self._queue is None else self._now()

    def copies(self, row: ReceivedRow, incoming: IncomingMessage, began: datetime | None) -> list[OutgoingMessage]:
        """What is to be sent for the handled message; usually nothing, without an audit queue.

        AddressError for an acknowledgement queue that cannot be read, ConfigurationError for one that is not allowed.
        """
        retry = incoming.headers.get(names.RETRY_UNIQUE_MESSAGE_ID) if self._acknowledges else None
        acknowledge = incoming.headers.get(names.RETRY_ACKNOWLEDGEMENT_QUEUE) if retry else None
        sent: list[OutgoingMessage] = []
        if self._queue is not None and began is not None:
            sent.append(OutgoingMessage(self._queue, self._audit_headers(row, incoming, began, bool(acknowledge)), incoming.body))
        if retry and acknowledge:
            sent.append(self._acknowledgement(incoming, retry, acknowledge))
        return sent

    def _audit_headers(self, row: ReceivedRow, incoming: IncomingMessage, began: datetime, acknowledged: bool) -> names.Headers:
        identity = self._composer.identity
        headers = headers_of_copy(row, incoming.headers)
        headers[names.PROCESSING_STARTED] = format_time(began)
        headers[names.PROCESSING_ENDED] = format_time(self._now())
        if acknowledged:
            headers[names.RETRY_ACKNOWLEDGEMENT_SENT] = "true"
        headers[names.HOST_ID] = identity.host_id.hex
        headers[names.HOST_DISPLAY_NAME] = identity.machine
        headers[names.PROCESSING_MACHINE] = identity.machine
        headers[names.PROCESSING_ENDPOINT] = identity.endpoint
        return headers

    def _acknowledgement(self, incoming: IncomingMessage, retry: str, queue: str) -> OutgoingMessage:
        """Tells ServiceControl that the message it sent again was handled: five headers, no id and no body."""
        destination = self._composer.destination(queue)
        if self._allowed is not None:
            self._allowed.check(destination, message_id=incoming.message_id, what="the acknowledgement of its retry")
        now = format_time(self._now())
        headers: names.Headers = {
            names.RETRY_SUCCESSFUL: now,
            names.RETRY_UNIQUE_MESSAGE_ID: retry,
            names.CONTROL_MESSAGE: "True",
            names.VERSION: VERSION,
            names.TIME_SENT: now,
        }
        return OutgoingMessage(destination, headers, b"")
