"""Rates and resident memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

# The start of threads and connections is no part of a rate: so many of the messages are not counted.
_STARTING = 0.05


def rate(*times_of_processes: Sequence[float]) -> float:
    """Messages per second while all of the processes were at work, the first twentieth of each left out; 0 if that says nothing.

    The times of one process need not be in order; all are seconds of one clock.
    """
    running = [sorted(times)[int(len(times) * _STARTING) :] for times in times_of_processes if times]
    if not running:
        return 0.0
    begin, end = max(times[0] for times in running), min(times[-1] for times in running)
    counted = sum(begin < time <= end for times in running for time in times)
    return counted / (end - begin) if end > begin else 0.0


def resident_megabytes(pid: int | str = "self") -> dict[str, float]:
    """What a process occupies now and at its highest, in MB of 1,000,000 bytes; empty where there is no /proc."""
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        return {}
    found = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
    return {name: int(found[key].split()[0]) * 1024 / 1e6 for name, key in (("now", "VmRSS"), ("peak", "VmHWM")) if key in found}
