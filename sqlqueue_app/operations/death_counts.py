"""How many processes died at each row, as their supervisor counts it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from uuid import UUID

from sqlqueue_app.receiving.in_work_memory import SUSPECTS, Deaths, InWorkMemory


class DeathCounts:
    """Counts in the shared memory, where every process sees them. Thread-safe.

    Remembers SUSPECTS rows; beyond them the row whose last death is the longest ago is forgotten. Rows that a process has
    survived give their places back.
    """

    def __init__(self, memory: InWorkMemory, *, size: int = SUSPECTS) -> None:
        self._memory = memory
        self._size = size
        self._lock = threading.Lock()
        self._places: OrderedDict[bytes, int] = OrderedDict()
        self._free: list[int] = []
        self._used = 0

    def died(self, process: int, exit_code: int) -> dict[UUID, int]:
        """A process has ended by itself: count the rows that it held, and free its slots; the deaths of each of those rows."""
        with self._lock:
            self._forget_survived()
            counted = {UUID(bytes=row_id): self._count(row_id, exit_code) for row_id in set(self._memory.held(process))}
            if counted:
                self._memory.publish(self._used)
            self._memory.clear(process)
        return counted

    def _forget_survived(self) -> None:
        for row_id, place in list(self._places.items()):
            if not self._memory.deaths_at(place).times:
                del self._places[row_id]
                self._free.append(place)

    def _count(self, row_id: bytes, exit_code: int) -> int:
        place = self._places.get(row_id)
        before = 0
        if place is None:
            place = self._places[row_id] = self._free_place()
        else:
            before = self._memory.deaths_at(place).times
            self._places.move_to_end(row_id)
        self._memory.write_suspect(place, row_id, Deaths(before + 1, exit_code))
        return before + 1

    def _free_place(self) -> int:
        if self._free:
            return self._free.pop()
        if self._used < self._size:
            self._used += 1
            return self._used - 1
        return self._places.popitem(last=False)[1]
