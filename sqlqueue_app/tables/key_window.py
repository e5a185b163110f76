"""The first waiting rows of a queue by key, as far as a process knows them. Rows with the same key are handled one at a time.

A key is the number of a lock in the database. A process reads rows before it receives them, to know their keys
(docs/internals/endpoints.md#keys). It tries only the lowest row of each key, and takes the lock of the key before the row: so no
session can hold an earlier row of a key and wait for its lock.
"""

from __future__ import annotations

import threading
import time
import uuid
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from typing import Final

from sqlqueue_app.tables.queue import QueueTable
from sqlqueue_app.tables.rows import PeekedRow

# The maximum number of known rows. A key with more waiting rows at the head of the queue delays the keys behind them. Each known
# row takes 300 bytes, and a scan reads all their numbers, which takes 20 ms at the maximum. No more rows are read than needed.
KNOWN_ROWS: Final = 10_000
# The rows that are read with their bodies at once, and the size from which a body is read alone.
READ_ROWS: Final = 100
READ_BODY_BYTES: Final = 65_536
# The keys that one receive tries. As many others, in other processes, may be handling a message.
TRIED_KEYS: Final = 16
# The wait between two scans, which find the rows that others have handled or returned: SCAN_SECONDS plus a time of which a scan
# takes SCAN_SHARE, at most SCAN_CAP_SECONDS. Without a key to try, it is shorter by SCAN_SECONDS, but at least STARVED_SECONDS.
STARVED_SECONDS: Final = 0.01
SCAN_SECONDS: Final = 0.1
SCAN_SHARE: Final = 0.1
SCAN_CAP_SECONDS: Final = 1.0
_BEFORE_ALL: Final = -(2**63)

Tried = list[tuple[int, int]]
"""The row versions that a receive tries, and their locks."""


class KeyWindow:
    """The lowest rows of a queue and their locks, shared by the threads of a process.

    The lowest row of each lock is *free*, *held* by a receive of this process, or *passed*: tried in vain, because another process
    has the lock or the row is gone, and tried again after the next scan. `lock_of` returns the lock of a row and never raises.
    """

    def __init__(self, lock_of: Callable[[PeekedRow], int], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._lock_of = lock_of
        self._clock = clock
        self._refilling = threading.Lock()
        self._lock = threading.Lock()
        self.forget()

    def forget(self) -> None:
        """Forget all rows, which are read again."""
        with self._lock:
            self._known: dict[int, tuple[int, uuid.UUID]] = {}
            self._rows: dict[int, list[int]] = {}
            self._free: Tried = []
            self._held: dict[int, int] = {}
            self._ended: set[int] = set()
            self._unread: list[int] = []
            self._highest = _BEFORE_ALL
            self._is_complete = self._is_stale = False
            self._scanned_at = self._scan_seconds = float("-inf")

    @property
    def is_blocked(self) -> bool:
        """Whether rows wait, as far as known, for keys that are taken."""
        return len(self._known) > len(self._held)

    def waiting(self, table: QueueTable) -> int:
        """The number of rows that a receive could take now. Reads the table if none is known; DatabaseError if that fails."""
        self.refill(table)
        return len(self._free)

    # what a receive tries

    def tried(self, *, ending: int | None = None) -> Tried:
        """The rows to try, lowest first. With `ending`, as if the row of this version were handled; [] if reading comes first."""
        with self._lock:
            if ending is not None and self._clock() >= self._scanned_at + self._wait_seconds:
                return []
            found = self._free[:TRIED_KEYS]
            if ending is not None and ending in self._known:
                lock = self._known[ending][0]
                after = [row for row in self._rows[lock][:2] if row != ending]
                if after:
                    insort(found, (after[0], lock))
            return found

    def took(self, tried: Tried, row: int | None, row_id: uuid.UUID | None = None) -> bool:
        """Record that a receive has taken the row, or none, of those that it tried: it has passed those before it.

        Returns False if the row is another than the known one, because the table was created again.
        """
        with self._lock:
            # Most attempts failed: other processes have made progress.
            self._is_stale = self._is_stale or row is None or bisect_left(tried, (row, 0)) > TRIED_KEYS // 2
            for place in tried:
                if place[0] == row:
                    known = self._known.get(place[0])
                    if known is not None and known[1] != row_id:
                        return False
                    self._hold(place, row_id)
                    return True
                if place[1] not in self._held:
                    self._remove_free(place)
        return row is None

    def _hold(self, place: tuple[int, int], row_id: uuid.UUID | None) -> None:
        row, lock = place
        if rows := self._rows.get(lock):
            self._remove_free((rows[0], lock))
        self._held[lock] = row
        if row not in self._known:
            # A scan on SQL Server does not see what is received.
            self._known[row] = lock, row_id or uuid.UUID(int=0)
            insort(self._rows.setdefault(lock, []), row)

    def ended(self, row: int, *, gone: bool) -> None:
        """Record the end of a receive: the row is gone, or back in its place."""
        with self._lock:
            if row not in self._known:
                return
            lock = self._known[row][0]
            if self._held.get(lock) != row:
                return
            del self._held[lock]
            rows = self._rows[lock]
            if gone:
                self._ended.add(row)
                del self._known[row]
                rows.remove(row)
            if rows:
                insort(self._free, (rows[0], lock))
            else:
                del self._rows[lock]

    def is_out_of_order(self, row: int, below: Iterable[int]) -> bool:
        """Whether one of the rows `below` a received one may have its key. If so, the next receive scans."""
        with self._lock:
            lock = self._known[row][0]
            known = (self._known.get(each) for each in below)
            found = any(each is None or each[0] == lock for each in known)
            if found:
                self._scanned_at = float("-inf")
        return found

    # reading

    def refill(self, table: QueueTable) -> None:
        """Read more rows if none is free, or a scan is due. Not inside a transaction. DatabaseError if the database refuses."""
        if not self._needs_rows():
            return
        with self._refilling:
            # Another thread may have done it.
            if self._needs_rows():
                # A queue counts as empty only if this poll has read it: a worker may end because of that.
                if not self._known or self._clock() >= self._scanned_at + self._wait_seconds:
                    self._scan(table)
                self._read_more(table)
                while not self._free and self._read_more(table):
                    pass

    @property
    def _wait_seconds(self) -> float:
        """The wait between two scans: shorter if there is nothing to try, or if most attempts failed."""
        return self._scan_seconds if self._free and not self._is_stale else max(STARVED_SECONDS, self._scan_seconds - SCAN_SECONDS)

    def _needs_rows(self) -> bool:
        return not self._free or self._clock() >= self._scanned_at + self._wait_seconds

    def _scan(self, table: QueueTable) -> None:
        """Read which rows exist: others may have handled or returned some."""
        with self._lock:
            self._ended.clear()
        began = self._clock()
        limit = min(KNOWN_ROWS, len(self._known) + READ_ROWS)
        found = table.row_versions(limit, after=_BEFORE_ALL)
        with self._lock:
            now = self._clock()
            self._scanned_at, self._is_stale = now, False
            self._scan_seconds = min(SCAN_SECONDS + (now - began) / SCAN_SHARE, SCAN_CAP_SECONDS)
            self._keep(set(found), complete_to=found[-1] if len(found) == limit else 2**63)
            self._unread = [row for row in found if row not in self._known and row not in self._ended]
            self._is_complete = len(found) < limit
            self._highest = max([*found[-1:], *self._known], default=_BEFORE_ALL)

    def _keep(self, found: set[int], *, complete_to: int) -> None:
        """Forget the known rows that are gone, and try again what was passed."""
        self._known = {
            row: known for row, known in self._known.items() if row > complete_to or row in found or self._held.get(known[0]) == row
        }
        self._rows = {}
        for row, (lock, _) in sorted(self._known.items()):
            self._rows.setdefault(lock, []).append(row)
        self._free = sorted((rows[0], lock) for lock, rows in self._rows.items() if lock not in self._held)

    def _read_more(self, table: QueueTable) -> bool:
        """Read the next rows that are not known, with their bodies, which have their keys. Returns whether there were any."""
        with self._lock:
            if not self._unread and (self._is_complete or len(self._known) >= KNOWN_ROWS):
                # A scan has seen the end of the queue; the next one finds new rows.
                return False
            after = self._unread[0] - 1 if self._unread else self._highest
        rows = table.peek(READ_ROWS, after=after, body_limit=READ_BODY_BYTES)
        places = [(row, self._lock_of(self._whole(table, row))) for row in rows if row.row_version not in self._known]
        with self._lock:
            for row, lock in places:
                self._learn(row, lock)
            is_full = len(rows) == READ_ROWS
            self._is_complete = self._is_complete or not is_full
            read_to = rows[-1].row_version if is_full else 2**63
            self._unread = self._unread[bisect_left(self._unread, read_to + 1) :]
            if rows:
                self._highest = max(self._highest, rows[-1].row_version)
        return bool(rows)

    def _whole(self, table: QueueTable, row: PeekedRow) -> PeekedRow:
        """The row with its whole body."""
        if (row.body_length or 0) <= READ_BODY_BYTES:
            return row
        return table.peek_row(row.row_version, body_limit=row.body_length or 0) or row

    def _learn(self, row: PeekedRow, lock: int) -> None:
        number = row.row_version
        if number in self._known or number in self._ended:
            return
        self._known[number] = lock, row.id
        rows = self._rows.setdefault(lock, [])
        before = rows[0] if rows else None
        insort(rows, number)
        if before is None or (number < before and self._remove_free((before, lock))):
            insort(self._free, (number, lock))

    def _remove_free(self, place: tuple[int, int]) -> bool:
        index = bisect_left(self._free, place)
        if index == len(self._free) or self._free[index] != place:
            return False
        del self._free[index]
        return True
