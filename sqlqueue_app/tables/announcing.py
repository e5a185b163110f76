"""Queue tables whose inserts announce themselves, so that idle receivers wake up with the commit. PostgreSQL only."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import nullcontext
from weakref import WeakKeyDictionary

from sqlqueue_app.databases.statements import Rendered
from sqlqueue_app.databases.wake_up import announcing, channel_literal
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.tables.copying import can_copy
from sqlqueue_app.tables.queue import COPY_FROM_ROWS, QueueTable, queue_table
from sqlqueue_app.tables.rows import NewRow
from sqlqueue_app.tables.writing import all_or_none


class AnnouncingQueueTable(QueueTable):
    """Each statement that inserts also notifies: in the transaction of the rows and without a round trip of its own.

    The server keeps one of the notifications of a transaction that are alike, whether we or a trigger made them, and drops them
    on a rollback.
    """

    def __init__(self, alias: str, address: QueueAddress) -> None:
        super().__init__(alias, address)
        self._of_one_row: tuple[Rendered, Rendered] | None = None

    def insert(self, rows: Sequence[NewRow]) -> None:
        connection = self.connection()
        if len(rows) < COPY_FROM_ROWS or not can_copy(connection):
            super().insert(rows)
            return
        with nullcontext() if connection.in_atomic_block else all_or_none(self.alias):
            super().insert(rows)
            with self.errors(f"announce messages in {self.qualified}"), connection.cursor() as cursor:
                cursor.execute(self.dialect.script("notify", channel=channel_literal(self.qualified)))

    def _send_statement(self, rows: int) -> Rendered:
        send = super()._send_statement(rows)
        kept = self._of_one_row
        if kept is not None and kept[0] is send:
            return kept[1]
        made = announcing(self.dialect, send, self.qualified)
        if rows == 1:
            self._of_one_row = send, made
        return made


_tables: WeakKeyDictionary[QueueTable, AnnouncingQueueTable] = WeakKeyDictionary()
_lock = threading.Lock()


def announcing_table(alias: str, address: QueueAddress) -> QueueTable:
    """As `queue_table`, but what is inserted is announced where the database can do that."""
    shared = queue_table(alias, address)
    if shared.dialect.name != "postgresql":
        return shared
    with _lock:
        # It lives as long as the shared one, which is forgotten when tables are made or settings change.
        table = _tables.get(shared)
        if table is None:
            table = _tables[shared] = AnnouncingQueueTable(alias, address)
    return table
