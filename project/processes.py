"""Run programs side by side: start them, collect their output, stop them in order. The basis of `make demo`."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import subprocess
import threading
from dataclasses import dataclass
from typing import Final

STOP_SECONDS: Final = 20.0
HOST: Final = "127.0.0.1"
PORTS: Final = range(8000, 8100)
# `runserver` prints it once it listens, after "Starting" on Django 5 and "Starting WSGI" from 6.1 on.
SITE_IS_UP: Final = "development server at http://"


@dataclass(frozen=True, slots=True)
class Line:
    """A line that a program printed."""

    program: str
    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a program; `code` is negative for a signal."""

    program: str
    code: int


@dataclass(frozen=True, slots=True)
class Signalled:
    """A signal to stop."""

    signal: int


Event = Line | Ended | Signalled


class Programs:
    """The programs that this process has started. Used by one thread; each program has a thread that reads its output.

    Each program runs in its own session: Ctrl-C reaches only this process, which then stops the others in order.
    """

    def __init__(self) -> None:
        self._running: dict[str, subprocess.Popen[str]] = {}
        self._readers: dict[str, threading.Thread] = {}
        # SimpleQueue, because its put() is safe in signal handlers
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def start(self, name: str, *command: str) -> None:
        """Start a program; its stderr is merged into its stdout."""
        process = subprocess.Popen(  # noqa: S603 - our own commands
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
        self._running[name] = process
        self._readers[name] = threading.Thread(target=self._read, args=(name, process), name=f"output of {name}", daemon=True)
        self._readers[name].start()

    def record_signal(self, number: int) -> None:
        """Record a signal; safe in a signal handler."""
        self._events.put(Signalled(number))

    def next_event(self, seconds: float | None = None) -> Event | None:
        """The next event; None if there was none within this time."""
        try:
            return self._events.get(timeout=seconds)
        except queue.Empty:
            return None

    def rest(self) -> list[Line]:
        """The printed lines not yet returned by `next_event`; for use after the stop."""
        lines = []
        while event := self.next_event(0):
            if isinstance(event, Line):
                lines.append(event)
        return lines

    def stop(self) -> list[str]:
        """Stop all programs in reverse order: SIGTERM, wait, SIGKILL as a last resort. Returns the names of those killed."""
        killed = []
        for name, process in reversed(self._running.items()):
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                killed.append(name)
            self._readers[name].join(STOP_SECONDS)
        self._running.clear()
        return killed

    def _read(self, name: str, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None  # noqa: S101 - it was started with a pipe
        with process.stdout as output:
            for line in output:
                self._events.put(Line(name, line.rstrip("\n")))
        self._events.put(Ended(name, process.wait()))


def name_of_exit(code: int) -> str:
    """A description of an exit code."""
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def free_port() -> int:
    """The first port without a listener."""
    for port in PORTS:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((HOST, port))
            return port
    raise SystemExit(f"no port from {PORTS[0]} to {PORTS[-1]} is free: run python -m project.demo --port N")
