"""The memory that a supervisor shares with its worker processes: which rows they are at, and which rows were held by dead ones.

It outlives a process that dies in any way, for it belongs to the operating system and not to the process. Layout:

    8 bytes               how many suspects there may be, and the checksum of their ids: changes with every new list
    SUSPECTS × 4 bytes    deaths of each suspect, 0 for a free place, and the exit code of the last one
    SUSPECTS × 16 bytes   the row id of each suspect
    from a new page on    for each process SLOTS × 32 bytes: the id of a row and 1 while a thread handles it

The supervisor writes the suspects, processes write their slots and set the deaths of a suspect to 0. Nobody waits for anybody:
what is read while it is written fails the checksum or names a row that does not exist, and both are harmless.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
import zlib
from typing import NamedTuple
from uuid import UUID

# Receive threads of one process that can be watched; 41 is what an endpoint of version 2.0 with all its satellites has at level 10.
SLOTS = 1024
# As many rows as NServiceBus remembers failures of (transport reference 5.3).
SUSPECTS = 10_000

_ID_BYTES = 16
_SLOT_BYTES = 32
_HELD = b"\1"
_PAGE = 4096
_HEADER = struct.Struct("<II")
_DEATHS = struct.Struct("<hBx")
_DEATHS_AT = _HEADER.size
_IDS_AT = _DEATHS_AT + SUSPECTS * _DEATHS.size
_SLOTS_AT = -(-(_IDS_AT + SUSPECTS * _ID_BYTES) // _PAGE) * _PAGE
_PROCESS_BYTES = SLOTS * _SLOT_BYTES


class Deaths(NamedTuple):
    """How many processes died while they handled a row, and the exit code of the last one (negative: the signal)."""

    times: int
    exit_code: int


class InWorkMemory:
    """The memory, mapped. `descriptor` is what another process opens it by; processes are numbered from 0.

    Methods on slots are for the process that owns them, `held` and `publish` for the supervisor. No method takes a lock or waits.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._mapped = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
        self._seen = bytes(_HEADER.size)
        self._places: dict[bytes, int] = {}

    @classmethod
    def create(cls, processes: int) -> InWorkMemory:
        """New memory for so many processes, all of it free; pages that nobody writes cost nothing."""
        descriptor = _anonymous_file()
        os.ftruncate(descriptor, _SLOTS_AT + processes * _PROCESS_BYTES)
        return cls(descriptor)

    def close(self) -> None:
        """Let go of it; it is gone when the last process has."""
        self._mapped.close()
        os.close(self.descriptor)

    # slots

    def slots(self, process: int) -> range:
        """The slots of a process."""
        start = _SLOTS_AT + process * _PROCESS_BYTES
        return range(start, start + _PROCESS_BYTES, _SLOT_BYTES)

    def hold(self, slot: int, row_id: bytes) -> None:
        """Say that the row is being handled."""
        self._mapped[slot : slot + _ID_BYTES + 1] = row_id + _HELD

    def let_go(self, slot: int) -> None:
        """Say that no row is."""
        self._mapped[slot + _ID_BYTES] = 0

    def clear(self, process: int) -> None:
        """Let go of all slots of a process."""
        start = self.slots(process).start
        self._mapped[start : start + _PROCESS_BYTES] = bytes(_PROCESS_BYTES)

    def held(self, process: int) -> list[bytes]:
        """The ids of the rows that a process is handling, or was when it died."""
        return [self._mapped[slot : slot + _ID_BYTES] for slot in self.slots(process) if self._mapped[slot + _ID_BYTES] == _HELD[0]]

    def is_held_by_another(self, row_id: bytes, process: int) -> bool:
        """Whether another process says that it handles the row. Looks through all slots: for rows that are suspects anyway."""
        own = self.slots(process)
        slot = self._mapped.find(row_id, _SLOTS_AT)
        while slot >= 0:
            if self._mapped[slot + _ID_BYTES] == _HELD[0] and slot not in own:
                return True
            slot = self._mapped.find(row_id, slot + _ID_BYTES)
        return False

    # suspects

    def has_suspects(self) -> bool:
        """Whether any row was held by a process that died; costs next to nothing while the answer stays the same."""
        if self._mapped[: _HEADER.size] != self._seen:
            self._read_suspects()
        return bool(self._places)

    def deaths(self, row_id: UUID) -> Deaths | None:
        """How often a process died at this row, as `has_suspects` saw the list; None if none did."""
        place = self._places.get(row_id.bytes)
        if place is None:
            return None
        found = self.deaths_at(place)
        return found if found.times else None

    def forget(self, row_id: UUID) -> None:
        """A process has survived the row: its deaths are 0 from now on, for every process."""
        place = self._places.get(row_id.bytes)
        if place is not None:
            _DEATHS.pack_into(self._mapped, _DEATHS_AT + place * _DEATHS.size, 0, 0)

    def deaths_at(self, place: int) -> Deaths:
        """The deaths that are written at a place of the list."""
        exit_code, times = _DEATHS.unpack_from(self._mapped, _DEATHS_AT + place * _DEATHS.size)
        return Deaths(times, exit_code)

    def write_suspect(self, place: int, row_id: bytes, deaths: Deaths) -> None:
        """Write a row to a place of the list; `publish` makes it seen."""
        start = _IDS_AT + place * _ID_BYTES
        self._mapped[start : start + _ID_BYTES] = row_id
        _DEATHS.pack_into(self._mapped, _DEATHS_AT + place * _DEATHS.size, deaths.exit_code, min(deaths.times, 255))

    def publish(self, used: int) -> None:
        """Let every process see the first `used` places of the list."""
        self._mapped[: _HEADER.size] = _HEADER.pack(used, zlib.crc32(self._ids(used)))

    def _read_suspects(self) -> None:
        header = self._mapped[: _HEADER.size]
        used, checksum = _HEADER.unpack(header)
        ids = self._ids(used)
        if zlib.crc32(ids) != checksum:
            # Read in the middle of a change: the list that was seen before serves until the next look.
            return
        self._places = {ids[place * _ID_BYTES : (place + 1) * _ID_BYTES]: place for place in range(used)}
        self._seen = header

    def _ids(self, used: int) -> bytes:
        return self._mapped[_IDS_AT : _IDS_AT + used * _ID_BYTES]


def _anonymous_file() -> int:
    """The descriptor of a file without a name; it is gone with its last descriptor."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("sqlqueue-in-work")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
