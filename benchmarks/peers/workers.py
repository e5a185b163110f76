"""Processes of a peer: its worker with all child processes, and its sender."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.databases import ROOT
from benchmarks.measures import resident_megabytes


class Worker:
    """One worker: the processes of its commands and their children. Their output is kept in `log` for errors."""

    def __init__(self, python: Path, commands: Sequence[Sequence[str]], environment: Mapping[str, str], log: Path) -> None:
        self.log = log
        with log.open("ab") as output:
            self._started = [
                subprocess.Popen(
                    [python, *command], env=environment, cwd=ROOT, stdout=output, stderr=output, start_new_session=True
                )
                for command in commands
            ]

    def processes(self) -> list[int]:
        """The ids of all live processes: the started ones and their descendants."""
        alive = [each.pid for each in self._started if each.poll() is None]
        return descendants(alive)

    def megabytes(self) -> float:
        """The resident memory of all processes; shared memory is counted for each."""
        return sum(resident_megabytes(pid).get("now", 0.0) for pid in self.processes())

    def is_alive(self) -> bool:
        """Whether all started processes are running."""
        return all(each.poll() is None for each in self._started)

    def kill(self) -> None:
        """Kill all processes with `kill -9`, nearly at once."""
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                # it ended with its parent
                pass
        for each in self._started:
            each.wait()

    def log_tail(self) -> str:
        """The end of its log."""
        return self.log.read_text("utf-8", errors="replace")[-2000:]


def descendants(processes: Sequence[int]) -> list[int]:
    """These processes and all their descendants."""
    parents: dict[int, int] = {}
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            try:
                # the name of a program may contain anything, including brackets
                parents[int(directory.name)] = int(
                    (directory / "stat").read_text("utf-8", errors="replace").rpartition(")")[2].split()[1]
                )
            except OSError:
                # it ended meanwhile
                continue
    found = list(processes)
    for each in found:
        found.extend(child for child, parent in parents.items() if parent == each and child not in found)
    return found


class Sender:
    """The process that sends for a peer, by its adapter."""

    def __init__(self, python: Path, adapter: str, environment: Mapping[str, str], log: Path) -> None:
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [python, "-m", adapter, "serve"],
                env=environment, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
            )  # fmt: skip

    def send(self, first: int, count: int, **more: Any) -> dict[str, float]:
        """Send, and return the answer of `benchmarks.peers.adapters.serving`. Raises RuntimeError if the process has ended."""
        return self._order(first=first, count=count, **more)

    def clear(self) -> None:
        """Discard the messages sent to a broker."""
        self._order(clear=True)

    def _order(self, **order: Any) -> dict[str, float]:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the sending process has ended: {self._log.read_text('utf-8', errors='replace')[-2000:]}")
        answer: dict[str, float] = json.loads(line)
        return answer

    def close(self) -> None:
        """Stop it."""
        with self._process:
            self._process.kill()
