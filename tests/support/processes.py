"""Inspect and end processes, including those that are not children of the test."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any


def is_gone(pid: int) -> bool:
    """Whether a process has ended. A zombie counts as ended: nothing here reads the exit code of an orphan."""
    try:
        os.kill(pid, 0)
        # Z: a zombie (this file exists only on Linux)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except ProcessLookupError:
        return True
    except FileNotFoundError:
        return Path("/proc/self").exists()


def children_of(pid: int) -> list[int]:
    """The live child processes of a process; empty without /proc."""
    return [
        int(child) for task in Path(f"/proc/{pid}/task").glob("*/children") for child in task.read_text(encoding="ascii").split()
    ]


def end(process: subprocess.Popen[Any], deadline: float = 60.0) -> None:
    """Terminate the process. If it has not ended after `deadline` seconds, kill it and raise subprocess.TimeoutExpired."""
    process.terminate()
    try:
        process.wait(deadline)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
