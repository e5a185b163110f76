"""Looking at processes, also those that are no children of the test, and ending them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any


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


def children_of(pid: int) -> list[int]:
    """The processes that a process has started and that are alive; none where there is no /proc."""
    return [
        int(child) for task in Path(f"/proc/{pid}/task").glob("*/children") for child in task.read_text(encoding="ascii").split()
    ]


def end(process: subprocess.Popen[Any], deadline: float = 60.0) -> None:
    """Ask the process to end, and kill it where it has not after `deadline` seconds (subprocess.TimeoutExpired then)."""
    process.terminate()
    try:
        process.wait(deadline)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
