"""The in-flight registry: the row that each thread is handling, so that a message that kills its process is not retried forever.

A process cannot count its own crashes, so its supervisor does: it reads from shared memory which rows were in progress. A row
held at `MAX_CRASHES` crashes goes to the error queue. Rows held at fewer are *poison suspects*: a process handles its suspects
one at a time, so that the next crash counts for only one of them, and an innocent message that ran at the same time is not
blamed.
"""

from __future__ import annotations

import mmap
import os
import signal
import struct
import tempfile
import threading
import time
import zlib
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple, NoReturn
from uuid import UUID

from sqlqueue_app.messages.errors import ProcessDied

MAX_CRASHES = 3
# In place of an exit code: the supervisor ended the process because of the row. No process has this code.
HARD_TIME_LIMIT = 0x7FFF
# The maximum wait of a suspect for another. The wait protects innocent messages, and must not deadlock with database locks that
# the other's handler waits for.
SUSPECT_WAIT_SECONDS = 10.0
SUSPECT_CHECK_SECONDS = 0.005


class _Thread(threading.local):
    """The rows that one thread holds."""

    slot: int = -1
    has_turn: bool = False

    def __init__(self) -> None:
        self.suspects: list[UUID] = []


class InFlightRegistry:
    """The rows that this process is handling: one slot in shared memory for each receive thread, which calls it itself."""

    def __init__(self, memory: InFlightMemory, process: int, *, suspect_wait_seconds: float = SUSPECT_WAIT_SECONDS) -> None:
        self._memory = memory
        self._process = process
        self._free = deque(memory.slots(process))
        self._thread = _Thread()
        self._turn = threading.Lock()
        self._suspect_wait_seconds = suspect_wait_seconds

    def begin(self, row_id: UUID) -> ProcessDied | None:
        """Record that the calling thread handles this row now; earlier rows await the same commit.

        Returns an error if too many processes have crashed at the row: the caller must move it to the error queue instead.
        Waits for its turn if a process has crashed at the row before.
        """
        thread = self._thread
        if thread.has_turn:
            self._end_turn(thread)
        if self._memory.has_suspects() and self._memory.crashes(row_id) is not None:
            # Clear its count only after the transaction: a later row of the batch may crash the process.
            thread.suspects.append(row_id)
            self._release(thread)
            self._wait_for_crash_count(row_id)
            crashes = self._memory.crashes(row_id)
            if crashes is not None and crashes.times >= MAX_CRASHES:
                how = describe_exit(crashes.exit_code)
                return ProcessDied(f"the process died {crashes.times} times while it handled this message, the last time by {how}")
            thread.has_turn = self._turn.acquire(timeout=self._suspect_wait_seconds)
        slot = thread.slot
        if slot < 0:
            if not self._free:
                # More threads than slots: do not watch this one.
                return None
            slot = thread.slot = self._free.pop()
        self._memory.hold(slot, row_id.bytes)
        return None

    def set_deadline(self, seconds: float | None) -> None:
        """Ask the supervisor to end this process if the calling thread still handles its row after this time; None: no longer."""
        if (slot := self._thread.slot) >= 0:
            self._memory.set_deadline(slot, 0.0 if seconds is None else time.monotonic() + seconds)

    def end(self) -> None:
        """Record that the calling thread survived its rows and their transaction has ended; a no-op without rows."""
        thread = self._thread
        self._release(thread)
        if thread.suspects:
            for row_id in thread.suspects:
                self._memory.forget(row_id)
            thread.suspects.clear()
            if thread.has_turn:
                self._end_turn(thread)

    def abandon(self) -> None:
        """Release everything, because the process ends on purpose: no row is to blame."""
        self._memory.clear(self._process)

    def _wait_for_crash_count(self, row_id: UUID) -> None:
        """Wait while another process holds the row: its crash is not counted yet, or it is about to release the row."""
        pause = threading.Event()
        for _ in range(int(self._suspect_wait_seconds / SUSPECT_CHECK_SECONDS)):
            if not self._memory.is_held_by_another(row_id.bytes, self._process):
                return
            pause.wait(SUSPECT_CHECK_SECONDS)

    def _release(self, thread: _Thread) -> None:
        if (slot := thread.slot) >= 0:
            self._memory.release(slot)
            thread.slot = -1
            self._free.append(slot)

    def _end_turn(self, thread: _Thread) -> None:
        thread.has_turn = False
        self._turn.release()


def end_child() -> NoReturn:
    """End the child process of a handler that has forked."""
    # The child of a handler that forked: it has one thread, and a connection in the middle of the parent's transaction.
    try:
        os.write(2, b"a handler forked and its child came back: the child ends here; end it in the handler, by os._exit()\n")
    finally:
        # Even if the reader of stderr is gone.
        os._exit(1)


def describe_exit(exit_code: int) -> str:
    """Describe an exit code of subprocess, which is negative for a signal."""
    if exit_code == HARD_TIME_LIMIT:
        return "its hard time limit"
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"


# Watched receive threads per process; an endpoint of version 2.0 with all its satellites has 41 at level 10.
SLOTS = 1024
# The number of rows whose failures NServiceBus remembers (docs/internals/endpoints.md#failure-memory).
MAX_SUSPECTS = 10_000

_ID_BYTES = 16
_HELD = b"\1"
_SLOT = struct.Struct("<16sB7xd")
_DEADLINE = struct.Struct("<d")
_DEADLINE_AT = _SLOT.size - _DEADLINE.size
_PAGE = 4096
_HEADER = struct.Struct("<II")
_CRASHES = struct.Struct("<hBx")
_CRASHES_AT = _HEADER.size
_IDS_AT = _CRASHES_AT + MAX_SUSPECTS * _CRASHES.size
_SLOTS_AT = -(-(_IDS_AT + MAX_SUSPECTS * _ID_BYTES) // _PAGE) * _PAGE
_PROCESS_BYTES = SLOTS * _SLOT.size


class CrashCount(NamedTuple):
    """The number of processes that crashed while handling a row, and the last exit code (negative: the signal)."""

    times: int
    exit_code: int


class InFlightMemory:
    """The mapped memory that a supervisor shares with its worker processes; it survives any crash of a process.

    Other processes open it by `descriptor`; processes are numbered from 0. Layout:

        8 bytes                   number of suspects and the checksum of their ids: changes with every new list
        MAX_SUSPECTS × 4 bytes    crash count of each suspect, 0 for a free place, and the exit code of the last one
        MAX_SUSPECTS × 16 bytes   row id of each suspect
        from a new page on        for each process SLOTS × 32 bytes: the id of a row, 1 while a thread handles it, and from byte
                                  24 on its deadline by the monotonic clock of the machine, 0 for none

    Methods on slots are for the process that owns them, `held` and `publish` for the supervisor. No method locks or waits: a read
    during a write fails the checksum or names a row that does not exist, and both are harmless.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._mapped = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
        self._seen = bytes(_HEADER.size)
        self._places: dict[bytes, int] = {}

    @classmethod
    def create(cls, processes: int) -> InFlightMemory:
        """Create empty memory for a number of processes; pages that are never written cost nothing."""
        descriptor = _anonymous_file()
        os.ftruncate(descriptor, _SLOTS_AT + processes * _PROCESS_BYTES)
        return cls(descriptor)

    def close(self) -> None:
        """Unmap the memory, which disappears when the last process has closed it."""
        self._mapped.close()
        os.close(self.descriptor)

    # slots

    def slots(self, process: int) -> range:
        """The slots of a process."""
        start = _SLOTS_AT + process * _PROCESS_BYTES
        return range(start, start + _PROCESS_BYTES, _SLOT.size)

    def hold(self, slot: int, row_id: bytes) -> None:
        """Mark the slot as handling the row."""
        self._mapped[slot : slot + _ID_BYTES + 1] = row_id + _HELD

    def release(self, slot: int) -> None:
        """Mark the slot as free."""
        self._mapped[slot + _ID_BYTES] = 0

    def set_deadline(self, slot: int, deadline: float) -> None:
        """Set the deadline of the row in the slot; 0 for none."""
        _DEADLINE.pack_into(self._mapped, slot + _DEADLINE_AT, deadline)

    def clear(self, process: int) -> None:
        """Release all slots of a process."""
        start = self.slots(process).start
        self._mapped[start : start + _PROCESS_BYTES] = bytes(_PROCESS_BYTES)

    def held(self, process: int) -> list[bytes]:
        """The ids of the rows that a process is handling, or held when it crashed."""
        return [row_id for row_id, is_held, _deadline in self._read_slots(process) if is_held]

    def overdue(self, process: int, now: float) -> list[bytes]:
        """The ids of the rows that a process handles past their deadline."""
        return [row_id for row_id, is_held, deadline in self._read_slots(process) if is_held and 0.0 < deadline <= now]

    def _read_slots(self, process: int) -> Iterator[tuple[bytes, int, float]]:
        start = self.slots(process).start
        return _SLOT.iter_unpack(self._mapped[start : start + _PROCESS_BYTES])

    def is_held_by_another(self, row_id: bytes, process: int) -> bool:
        """Whether another process holds the row. Scans all slots, so use it only for suspects."""
        own = self.slots(process)
        slot = self._mapped.find(row_id, _SLOTS_AT)
        while slot >= 0:
            if self._mapped[slot + _ID_BYTES] == _HELD[0] and slot not in own:
                return True
            slot = self._mapped.find(row_id, slot + _ID_BYTES)
        return False

    # suspects

    def has_suspects(self) -> bool:
        """Whether a crashed process held any row; almost free while the answer does not change."""
        if self._mapped[: _HEADER.size] != self._seen:
            self._read_suspects()
        return bool(self._places)

    def crashes(self, row_id: UUID) -> CrashCount | None:
        """The crash count of the row in the list last read by `has_suspects`; None if no process crashed at it."""
        place = self._places.get(row_id.bytes)
        if place is None:
            return None
        found = self.crashes_at(place)
        return found if found.times else None

    def forget(self, row_id: UUID) -> None:
        """Reset the crash count of a row that a process has survived, for every process."""
        place = self._places.get(row_id.bytes)
        if place is not None:
            _CRASHES.pack_into(self._mapped, _CRASHES_AT + place * _CRASHES.size, 0, 0)

    def crashes_at(self, place: int) -> CrashCount:
        """The crash count at a place of the list."""
        exit_code, times = _CRASHES.unpack_from(self._mapped, _CRASHES_AT + place * _CRASHES.size)
        return CrashCount(times, exit_code)

    def write_suspect(self, place: int, row_id: bytes, crashes: CrashCount) -> None:
        """Write a row to a place of the list; `publish` makes it visible."""
        start = _IDS_AT + place * _ID_BYTES
        self._mapped[start : start + _ID_BYTES] = row_id
        _CRASHES.pack_into(self._mapped, _CRASHES_AT + place * _CRASHES.size, crashes.exit_code, min(crashes.times, 255))

    def publish(self, used: int) -> None:
        """Make the first `used` places of the list visible to every process."""
        self._mapped[: _HEADER.size] = _HEADER.pack(used, zlib.crc32(self._ids(used)))

    def _read_suspects(self) -> None:
        header = self._mapped[: _HEADER.size]
        used, checksum = _HEADER.unpack(header)
        ids = self._ids(used)
        if zlib.crc32(ids) != checksum:
            # Read during a write: keep the previous list until the next call.
            return
        self._places = {ids[place * _ID_BYTES : (place + 1) * _ID_BYTES]: place for place in range(used)}
        self._seen = header

    def _ids(self, used: int) -> bytes:
        return self._mapped[_IDS_AT : _IDS_AT + used * _ID_BYTES]


def _anonymous_file() -> int:
    """The descriptor of an unnamed file, which disappears with its last descriptor."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("sqlqueue-in-flight")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
