"""Up to which RowVersion a table is settled: no row with that number or a lower one can appear any more.

Numbers are drawn when a row is inserted and rows are seen when they are committed, so a row may appear below others that were read
long ago. Whoever follows the table by its highest number loses such rows. Here a number counts only when all transactions have
ended that could have drawn a lower one: those that held a lock for writing on the table after the number was seen, as CREATE INDEX
CONCURRENTLY finds them. Nobody is blocked and nothing is waited for: each look goes on from what the one before it found.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

_MOST_CANDIDATES = 100


class Writer(NamedTuple):
    """A transaction that may insert."""

    name: str
    is_prepared: bool


class Looks(Protocol):
    """What is asked of the database, each time anew."""

    def newest(self) -> int | None:
        """The highest RowVersion that can be seen."""
        ...

    def writers(self) -> frozenset[Writer]:
        """The transactions that hold a lock for writing on the table."""
        ...


@dataclass(slots=True)
class _Candidate:
    row_version: int
    waits_for: frozenset[Writer]


@dataclass(slots=True)
class Watermark:
    """The settled number of one table, as it grows. Of one process and thread; a new one starts with no number at all."""

    settled: int | None = None
    _candidates: list[_Candidate] = field(default_factory=list)

    def look(self, looks: Looks) -> int | None:
        """The settled number now."""
        newest = looks.newest()
        # After the number: who drew a lower one holds his lock now, or has ended.
        writers = looks.writers()
        for candidate in self._candidates:
            candidate.waits_for = _still_waited_for(candidate.waits_for, writers)
        highest = self._candidates[-1].row_version if self._candidates else self.settled
        if newest is not None and (highest is None or newest > highest) and len(self._candidates) < _MOST_CANDIDATES:
            self._candidates.append(_Candidate(newest, writers))
        for index, candidate in reversed(list(enumerate(self._candidates))):
            if not candidate.waits_for:
                self.settled = candidate.row_version
                del self._candidates[: index + 1]
                break
        return self.settled

    @property
    def is_waiting(self) -> bool:
        """Whether rows were seen that are not settled yet."""
        return bool(self._candidates)


def _still_waited_for(before: frozenset[Writer], now: frozenset[Writer]) -> frozenset[Writer]:
    left = before & now
    if any(not writer.is_prepared for writer in before - left):
        # One has ended, or was prepared, under another name: so all that are prepared now are waited for.
        left |= {writer for writer in now if writer.is_prepared}
    return left
