"""Looking at processes that are no children of the test."""

from __future__ import annotations

import os
from pathlib import Path


def is_gone(pid: int) -> bool:
    """Whether a process has ended; also if nobody has asked for its exit code yet, as nobody does for an orphan here."""
    try:
        os.kill(pid, 0)
        # Z: a zombie (there is no such file but on Linux)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except ProcessLookupError:
        return True
    except FileNotFoundError:
        return Path("/proc/self").exists()
