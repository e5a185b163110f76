"""The notes of handlers: one file for each turn, written by benchmarks.peers.adapters.handling."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.workers import Worker

_POLL_SECONDS = 0.02
_PATIENCE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Note:
    """`h`: a handler was called; `k`: it waits to be killed. `seconds` are those of `time.monotonic()`."""

    what: str
    number: int
    worker: str
    seconds: float


class Notes:
    """Reads a file that others append to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()
        # handlers may run as any user
        path.chmod(0o666)
        self._size = self._lines = 0

    def all(self) -> list[Note]:
        """All notes so far, in the order of their writing."""
        found = []
        for line in self.path.read_text("ascii").splitlines():
            what, number, worker, seconds = line.split()
            found.append(Note(what, int(number), worker, float(seconds)))
        return found

    def count(self) -> int:
        """The number of notes; reads only new ones, to leave the processors to the measured processes."""
        with self.path.open("rb") as file:
            file.seek(self._size)
            new = file.read()
        self._size += len(new)
        self._lines += new.count(b"\n")
        return self._lines

    def wait_for(self, count: int, worker: Worker, seconds: float = _PATIENCE_SECONDS) -> None:
        """Wait for `count` notes, polling every 20 ms. Raises RuntimeError if the worker or the time ends first."""
        end = time.monotonic() + seconds
        while self.count() < count:
            if time.monotonic() > end or not worker.is_alive():
                raise RuntimeError(f"{self._lines} of {count} messages were handled: {worker.log_tail()}")
            threading.Event().wait(_POLL_SECONDS)
