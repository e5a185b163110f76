"""Rates and resident memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

# Rates exclude the start of threads and connections: this part of the messages is not counted.
_STARTING = 0.05


def rate(*times_of_processes: Sequence[float]) -> float:
    """Messages per second of all processes together, without the first twentieth of the messages; 0 if too few are left.

    The times need not be in order; all are seconds of one clock. Processes begin together and empty one queue, so all are at work
    until the last message.
    """
    times = sorted(time for each in times_of_processes for time in each)
    counted = times[int(len(times) * _STARTING) :]
    if not counted or counted[0] == counted[-1]:
        return 0.0
    return (len(counted) - 1) / (counted[-1] - counted[0])


def resident_megabytes(pid: int | str = "self") -> dict[str, float]:
    """The present and peak resident memory of a process in MB of 1,000,000 bytes; empty without /proc."""
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        return {}
    found = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
    return {name: int(found[key].split()[0]) * 1024 / 1e6 for name, key in (("now", "VmRSS"), ("peak", "VmHWM")) if key in found}
