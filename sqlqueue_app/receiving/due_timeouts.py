"""Moving the drained timeouts that are due from the endpoint's delayed table to their destinations (transport reference 7.2)."""

from __future__ import annotations

import uuid

from django.db import transaction

from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.errors import LockTimeout, PoisonMessage
from sqlqueue_app.messages.headers import read_headers, write_headers
from sqlqueue_app.receiving.failures import failure_of
from sqlqueue_app.receiving.processing import logger
from sqlqueue_app.receiving.routes_of_satellites import Unroutable
from sqlqueue_app.receiving.satellites import SatelliteRoutes, columns_of
from sqlqueue_app.tables.delayed import DelayedRow
from sqlqueue_app.tables.rows import NewRow, ReceivedRow

# Transport reference 7.2, versions 3.1 to 4.3: look every second, a hundred messages in a transaction.
EVERY_SECONDS = 1.0
BATCH = 100


class DueTimeouts:
    """Moves what is due. Several processes may do so side by side; one object serves one thread at a time."""

    def __init__(self, endpoint: str, routes: SatelliteRoutes) -> None:
        self._endpoint = endpoint
        self._routes = routes

    def run(self) -> None:
        """The background job: `move`, its count put aside."""
        self.move()

    def move(self) -> int:
        """Move everything that is due and return how many messages; each batch is one transaction. Raises DatabaseError.

        On SQLite, where a handler may hold the write lock for long, it is left to the next time then.
        """
        delayed = self._routes.delayed
        moved = 0
        try:
            while (seconds := delayed.seconds_until_due()) is not None and seconds <= 0:
                with transaction.atomic(using=delayed.alias):
                    rows = delayed.take_due(BATCH)
                    for row in rows:
                        self._forward(row)
                moved += len(rows)
                if not rows:
                    break  # another process is at them
        except LockTimeout:
            pass
        return moved

    def _forward(self, row: DelayedRow) -> None:
        extra = {"event": "message_unroutable", "endpoint": self._endpoint, "queue": self._routes.delayed.address.table}
        try:
            headers = read_headers(row.headers)
        except PoisonMessage as poison:
            self._routes.error_queue_of(self._routes.main).move_poison(
                ReceivedRow(uuid.uuid4(), None, None, False, row.headers, row.body)
            )
            logger.error("a delayed message cannot be read, moving it to the error queue: %s", poison, extra=extra)
            return
        to = headers.pop(names.FORWARD_DESTINATION, None) or self._routes.main
        row_id = _id_of_row(headers.get(names.MESSAGE_ID))
        try:
            table = self._routes.destinations.table(to)
        except Unroutable as error:
            failure = failure_of(error, unrecoverable=True)
            self._routes.error_queue_of(to).move(row_id, headers, row.body, failure)
            extra |= {"message_id": headers.get(names.MESSAGE_ID) or str(row_id)}
            logger.error("message moved to the error queue: %s", error, extra=extra)
            return
        new_id = uuid.uuid4() if table.dialect.name == "postgresql" else row_id
        table.send([NewRow(str(new_id), write_headers(headers), row.body, *columns_of(headers))])


def _id_of_row(message_id: str | None) -> uuid.UUID:
    """The message id where it can be a row's id, which transports 1.x and 2.x take it from."""
    try:
        return uuid.UUID(message_id or "")
    except ValueError:
        return uuid.uuid4()
