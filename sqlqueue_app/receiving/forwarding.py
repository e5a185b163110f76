"""Messages that came here on their way to another queue: peers' movers bring what was delayed into the sender's own queue first.

The header says where to (transport reference 7.2). It is taken away with the first look at it, so that no message can go round in
circles: where it arrives, nothing says any more that it belongs elsewhere.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.envelope import IncomingMessage, columns_of, new_message_id
from sqlqueue_app.messages.headers import write_headers
from sqlqueue_app.receiving.error_queue import ErrorQueue
from sqlqueue_app.receiving.failures import failure_of
from sqlqueue_app.receiving.reading import headers_of_copy
from sqlqueue_app.receiving.routes_of_satellites import Destinations, Unroutable
from sqlqueue_app.tables.rows import NewRow, ReceivedRow

logger = logging.getLogger("sqlqueue.receive")


class Forwarding:
    """Sends messages of one queue on, or finds that they have arrived. Shared by the queue's threads."""

    def __init__(
        self,
        endpoint: str,
        own: QueueAddress,
        own_text: str,
        destinations: Destinations,
        error_queue_of: Callable[[str], ErrorQueue],
    ) -> None:
        """`own` is the address of the queue, resolved, `own_text` the canonical text of it."""
        self._endpoint = endpoint
        self._own = own
        self._own_texts = (own_text, own.table)
        self._destinations = destinations
        self._error_queue_of = error_queue_of

    def send_on(self, row: ReceivedRow, incoming: IncomingMessage) -> bool:
        """False if the message belongs to this queue. Else it is written where it belongs, or into the error queue with the reason.

        In the caller's transaction, which has deleted the row. The header is gone from `incoming` in each case.
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
            table = self._destinations.table(to)
        except Unroutable as error:
            queue = self._error_queue_of(to)
            failure = failure_of(error, unrecoverable=True)
            queue.move(row.id, headers, incoming.body, failure, row.correlation_id, row.reply_to_address)
            logger.error("message moved to the error queue: %s", error, extra=extra | {"event": "message_unroutable"})
            return True
        if table.address == self._own:
            return False
        # On PostgreSQL the row's id is a primary key there too, and somebody may have copied rows. No expiry, as NServiceBus does.
        row_id = new_message_id() if table.dialect.name == "postgresql" else str(row.id)
        table.send([NewRow(row_id, write_headers(headers), incoming.body, *columns_of(headers))])
        logger.debug("message sent on to %s", table.qualified, extra=extra)
        return True
