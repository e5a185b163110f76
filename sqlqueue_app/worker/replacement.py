"""The replacement of worker processes: after a number of messages, or when one holds too much memory."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sqlqueue_app.messages.errors import counted
from sqlqueue_app.receiving.background import BackgroundJob
from sqlqueue_app.receiving.stopping import StopSignal

logger = logging.getLogger("sqlqueue.worker")

CHECK_SECONDS: Final = 1.0


def resident_bytes() -> int:
    """The memory that this process occupies; if the system does not report it, the maximum so far."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        import resource  # noqa: PLC0415 - Windows, where no supervisor runs, has none

        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return used if sys.platform == "darwin" else used * 1024


@dataclass(slots=True)
class ProcessLimits:
    """Stops a process that has reached one of its limits; its supervisor starts another. None: no limit."""

    stop: StopSignal
    messages: int | None = None
    memory: int | None = None
    """In bytes."""
    memory_used: Callable[[], int] = resident_bytes
    is_reached: bool = False

    def jobs(self, received: Callable[[], int]) -> list[BackgroundJob]:
        """The job that checks every second; none without limits. `received` is the number of received messages."""
        if self.messages is None and self.memory is None:
            return []
        return [BackgroundJob("limits of the process", CHECK_SECONDS, lambda: self.check(received()), uses_database=False)]

    def check(self, received: int) -> None:
        """Stop the process if it has received enough messages, or occupies too much memory after at least one."""
        if not received or self.stop.is_set():
            return
        if self.messages is not None and received >= self.messages:
            why = f"{counted(received, 'message')} received, the limit is {self.messages:,}"
        elif self.memory is not None and (used := self.memory_used()) >= self.memory:
            after = counted(received, "message")
            why = f"{used >> 20:,} MiB of memory in use after {after}, the limit is {self.memory >> 20:,} MiB"
        else:
            return
        logger.info("%s: finishing messages in progress, then another process follows", why, extra={"event": "process_limit"})
        self.is_reached = True
        self.stop.set()
