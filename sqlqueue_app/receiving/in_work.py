"""Which row each thread is handling, told to the supervisor, so that a message that kills its process is not received for ever.

The process cannot count its own deaths, so that its supervisor does (design 6.13): it knows from shared memory which rows were
being handled. A row that was held at `MAX_DEATHS` of them goes to the error queue. Rows that were held at fewer are *suspects*: a
process handles its suspects one at a time, so that at the next death only one of them is counted, and a message that merely ran
beside the bad one is not taken for it.
"""

from __future__ import annotations

import signal
import threading
from collections import deque
from typing import Protocol
from uuid import UUID

from sqlqueue_app.messages.errors import ProcessDied
from sqlqueue_app.receiving.in_work_memory import Deaths, InWorkMemory

# Design 6.13.
MAX_DEATHS = 3
# A suspect waits for another one for no longer: its turn saves innocent messages, and may not become a deadlock with locks of the
# database that the other one's handler waits for.
SUSPECT_WAIT_SECONDS = 10.0
SECONDS_BETWEEN_LOOKS = 0.005


class InWork(Protocol):
    """What processing tells about the rows that it is at. Called by every receive thread, for itself."""

    def begins(self, row_id: UUID) -> ProcessDied | None:
        """The calling thread handles this row from now on, and no other; the rows before it, if any, wait for the same commit.

        An error if the row is not to be handled, since too many processes have died at it: it is to be moved to the error queue.
        """

    def ends(self) -> None:
        """The calling thread has survived the rows that it began, and their transaction is over; does nothing if there are none."""


class Unwatched:
    """Without a supervisor nobody counts."""

    def begins(self, row_id: UUID) -> ProcessDied | None:
        """Always None."""

    def ends(self) -> None:
        """Nothing."""


UNWATCHED = Unwatched()


class _Thread(threading.local):
    """What a thread is at."""

    slot: int = -1
    has_turn: bool = False

    def __init__(self) -> None:
        self.suspects: list[UUID] = []


class WatchedWork:
    """Writes the row of each thread into the slots of this process, and asks for the deaths of rows that may have some."""

    def __init__(self, memory: InWorkMemory, process: int, *, suspect_wait_seconds: float = SUSPECT_WAIT_SECONDS) -> None:
        self._memory = memory
        self._process = process
        self._free = deque(memory.slots(process))
        self._thread = _Thread()
        self._turn = threading.Lock()
        self._suspect_wait_seconds = suspect_wait_seconds

    def begins(self, row_id: UUID) -> ProcessDied | None:
        """See `InWork`. Waits for its turn if a process has died at this row before."""
        thread = self._thread
        if thread.has_turn:
            self._end_turn(thread)
        if self._memory.has_suspects() and self._memory.deaths(row_id) is not None:
            # Its deaths are forgotten when the transaction is over, and not before: a later row of it may kill the process.
            thread.suspects.append(row_id)
            self._let_go(thread)
            self._wait_for_the_count(row_id)
            deaths = self._memory.deaths(row_id)
            if deaths is not None and deaths.times >= MAX_DEATHS:
                return _process_died(deaths)
            thread.has_turn = self._turn.acquire(timeout=self._suspect_wait_seconds)
        slot = thread.slot
        if slot < 0:
            if not self._free:
                # More threads than slots: this one is not watched.
                return None
            slot = thread.slot = self._free.pop()
        self._memory.hold(slot, row_id.bytes)
        return None

    def ends(self) -> None:
        """See `InWork`."""
        thread = self._thread
        self._let_go(thread)
        if thread.suspects:
            for row_id in thread.suspects:
                self._memory.forget(row_id)
            thread.suspects.clear()
            if thread.has_turn:
                self._end_turn(thread)

    def abandon(self) -> None:
        """The process ends now on purpose: nothing that it holds is to blame."""
        self._memory.clear(self._process)

    def _wait_for_the_count(self, row_id: UUID) -> None:
        """Wait while another process says that it handles the row, which we have received.

        It has just died, and the supervisor has not counted that yet: who went on would make it one death too many. Or its
        transaction is over, and it is about to say so. There is no event for either: the memory is all that processes share.
        """
        pause = threading.Event()
        for _ in range(int(self._suspect_wait_seconds / SECONDS_BETWEEN_LOOKS)):
            if not self._memory.is_held_by_another(row_id.bytes, self._process):
                return
            pause.wait(SECONDS_BETWEEN_LOOKS)

    def _let_go(self, thread: _Thread) -> None:
        if (slot := thread.slot) >= 0:
            self._memory.let_go(slot)
            thread.slot = -1
            self._free.append(slot)

    def _end_turn(self, thread: _Thread) -> None:
        thread.has_turn = False
        self._turn.release()


def way_of_ending(exit_code: int) -> str:
    """An exit code in words, as subprocess gives it: negative for a signal."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"


def _process_died(deaths: Deaths) -> ProcessDied:
    return ProcessDied(
        f"the process died {deaths.times} times while it handled this message, the last time by {way_of_ending(deaths.exit_code)}"
    )
