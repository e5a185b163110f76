"""How often a message failed, where the database cannot remember it: its transaction was lost with the failure."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar
from uuid import UUID

# Transport reference 5.3: as many entries as NServiceBus keeps per receiver.
REMEMBERED_FAILURES = 10_000

_Cause = TypeVar("_Cause")


class FailureMemory(Generic[_Cause]):
    """Failed attempts and the last cause by row id, the oldest forgotten first. Not thread-safe: callers hold one lock."""

    def __init__(self, size: int = REMEMBERED_FAILURES) -> None:
        self._size = size
        self._failures: OrderedDict[UUID, tuple[int, _Cause]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._failures)

    def failed(self, row_id: UUID, attempts: int, cause: _Cause) -> None:
        """Remember that so many attempts of the row have failed, the last one for this cause."""
        self._failures[row_id] = (attempts, cause)
        self._failures.move_to_end(row_id)
        if len(self._failures) > self._size:
            self._failures.popitem(last=False)

    def recall(self, row_id: UUID) -> tuple[int, _Cause] | None:
        """Failed attempts of the row and the last cause, or None."""
        return self._failures.get(row_id)

    def forget(self, row_id: UUID) -> None:
        """The row is done."""
        self._failures.pop(row_id, None)
