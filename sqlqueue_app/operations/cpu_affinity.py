"""A worker process that stays on one processor.

Threads of one interpreter run one at a time. Where the system moves them about, what they share travels from the cache of one
processor to that of another with every change between them, which costs a message more than its own work does: eight threads did
1.6 to 2.0 times as much on one processor as on two (docs/explanation/performance.md).
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from sqlqueue_app.messages.errors import ConfigurationError

logger = logging.getLogger("sqlqueue.worker")

AUTO: Final = "auto"
_NAME: Final = "sqlqueue-processor"


@dataclass(frozen=True, slots=True)
class CpuAffinity:
    """Which processors the processes of a worker stay on: one each. None at all: each finds one that no other worker stays on."""

    processors: Sequence[int] = ()

    @classmethod
    def parse(cls, text: str) -> CpuAffinity:
        """Of `auto`, or of numbers as taskset takes them, `0,2-4`. ValueError, with what was expected, for anything else."""
        if text == AUTO:
            return cls()
        found: list[int] = []
        for part in text.split(","):
            first, dash, last = part.strip().partition("-")
            ends = [first, last] if dash else [first, first]
            if not all(end.isascii() and end.isdigit() and len(end) < 6 for end in ends) or int(ends[0]) > int(ends[1]):
                raise ValueError(f"{text!r} names no processors: expected {AUTO!r}, or numbers such as 0,2-4")
            found += range(int(ends[0]), int(ends[1]) + 1)
        return cls(tuple(dict.fromkeys(found)))

    def check(self) -> None:
        """ConfigurationError where a process cannot be bound to a processor, or not to one of these."""
        if sys.platform != "linux":
            raise ConfigurationError("--cpu-affinity needs Linux: leave it out on this system")
        allowed = os.sched_getaffinity(0)
        if refused := [number for number in self.processors if number not in allowed]:
            raise ConfigurationError(
                f"--cpu-affinity names the processors {', '.join(map(str, refused))}, which this process may not use: "
                f"expected some of {', '.join(map(str, sorted(allowed)))}, or {AUTO!r}"
            )

    @contextlib.contextmanager
    def held(self, process: int, *, name: str = _NAME) -> Iterator[int]:
        """Keep the calling thread, and the threads that it starts, on one processor; its number. `process` counts from 0.

        Threads that run already stay as they are, and programs that are started inside inherit it. `name` is what workers tell each
        other by which processor is taken. ConfigurationError as `check`, and where the system refuses.
        """
        self.check()
        before = os.sched_getaffinity(0)
        with contextlib.ExitStack() as stack:
            choice = self.processors or sorted(before)
            number = choice[process % len(choice)]
            if not self.processors:
                number = next((each for each in choice if _is_claimed(stack, f"{name}-{each}")), number)
            try:
                os.sched_setaffinity(0, {number})
            except OSError as error:
                text = f"the system does not keep this process on processor {number} ({error}): leave --cpu-affinity out"
                raise ConfigurationError(text) from error
            stack.callback(os.sched_setaffinity, 0, before)
            logger.info("this process stays on processor %s", number, extra={"event": "cpu_affinity"})
            yield number


def _is_claimed(stack: contextlib.ExitStack, name: str) -> bool:
    """Claim a name for as long as the stack lives; False if another process has it.

    The name is that of a socket in the abstract namespace, which is free again when its process has ended, however it did.
    """
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0{name}")
    except OSError:
        claim.close()
        return False
    stack.enter_context(contextlib.closing(claim))
    return True
