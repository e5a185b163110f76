"""The checkout, and the location of the test databases: in memory if there is space."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# On Linux, this file system is never written to a disk. The tests create and drop thousands of databases: on a disk, each takes
# 100 ms on PostgreSQL (300 files; ext4 keeps inodes that were just freed, and searches past them) and 25 ms on SQLite (which
# waits for the disk), in memory 15 ms and 1 ms.
MEMORY = Path("/dev/shm")
# A session needs some 100 MB, and up to ten times that while a test writes a lot; containers often have only 64 MB here.
ROOM = 4 << 30


def directory_for_databases(prefix: str) -> Path:
    """Create a directory for files that need not survive a restart of the machine.

    Its path is short, because that of a socket is limited to 107 bytes. The caller removes it.
    """
    return Path(tempfile.mkdtemp(prefix=prefix, dir=MEMORY if _has_room(MEMORY) else None))


def _has_room(directory: Path) -> bool:
    try:
        state = os.statvfs(directory)
    except OSError:
        return False
    return os.access(directory, os.W_OK) and state.f_bavail * state.f_frsize >= ROOM
