"""Receives one message per key at a time: it takes the lock of the key before the row and holds it until the transaction ends.

The lock belongs to the transaction, so a commit, a rollback and a crash release it, when the row is gone or back in its place.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final

from django.db.transaction import Atomic

from sqlqueue_app.tables.key_window import KeyWindow, Tried
from sqlqueue_app.tables.queue import QueueTable
from sqlqueue_app.tables.receive_transaction import ReceiveTransaction
from sqlqueue_app.tables.rows import ReceivedRow

# The maximum number of times that one receive reads rows.
_READS: Final = 3


class KeyedReceive(ReceiveTransaction):
    """The part that all databases share. It receives one row at a time."""

    def __init__(self, table: QueueTable, window: KeyWindow) -> None:
        self.window = window
        self.taken: int | None = None
        """The row that this transaction has taken."""
        self._tried: Tried = []
        super().__init__(table)

    def _tries(self) -> Iterator[Tried]:
        """The rows of each attempt to receive. Between two attempts there is no transaction."""
        for number in itertools.count():
            # Others may have made progress. Only a few times: a thread that finds nothing must notice a stop.
            if number < _READS:
                self.window.refill(self.table)
            tried = self.window.tried()
            if not tried:
                return
            yield tried

    def took(self, rows: list[ReceivedRow]) -> list[ReceivedRow]:
        """Record what a receive has returned. Returns nothing if the rows are not the known ones; the caller rolls back."""
        row = rows[0] if rows else None
        number = None if row is None else row.row_version
        if not self.window.took(self._tried, number, None if row is None else row.id):
            self.window.forget()
            return []
        self.taken = number
        return rows

    def end_key(self, *, gone: bool) -> None:
        """Record that the transaction, and with it the lock, has ended: the row is gone, or back in its place."""
        taken, self.taken = self.taken, None
        if taken is not None:
            self.window.ended(taken, gone=gone)

    def _commit(self, atomic: Atomic) -> None:
        super()._commit(atomic)
        self.end_key(gone=True)

    def abandon(self) -> None:
        super().abandon()
        # Rows that the commit has received stay with their lock.
        if not self.rows_ahead:
            self.end_key(gone=False)
