"""Programs that run side by side: started, their lines collected, ended in order. What `make demo` stands on."""

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
# `runserver` prints it when it listens; "Starting" in front of it on Django 5, "Starting WSGI" from 6.1 on.
SITE_IS_UP: Final = "development server at http://"


@dataclass(frozen=True, slots=True)
class Line:
    """A program has printed a line."""

    program: str
    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A program is gone; `code` is negative for a signal."""

    program: str
    code: int


@dataclass(frozen=True, slots=True)
class Told:
    """A signal told us to stop."""

    signal: int


Event = Line | Ended | Told


class Programs:
    """The programs that this process has started. Used by one thread; each program has a thread that reads its output.

    Every program is in a session of its own: Ctrl-C reaches this process alone, which then ends the others in order.
    """

    def __init__(self) -> None:
        self._running: dict[str, subprocess.Popen[str]] = {}
        self._readers: dict[str, threading.Thread] = {}
        # SimpleQueue, because signal handlers may put into it
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def start(self, name: str, *command: str) -> None:
        """Start a program; its stderr comes with its stdout."""
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

    def told(self, number: int) -> None:
        """Hand in a signal; safe in a signal handler."""
        self._events.put(Told(number))

    def next_event(self, seconds: float | None = None) -> Event | None:
        """What happened next; None if nothing did for so long."""
        try:
            return self._events.get(timeout=seconds)
        except queue.Empty:
            return None

    def rest(self) -> list[Line]:
        """The lines that were printed and not asked for yet; for after the stop."""
        lines = []
        while event := self.next_event(0):
            if isinstance(event, Line):
                lines.append(event)
        return lines

    def stop(self) -> list[str]:
        """End all programs, the last one started first: SIGTERM, wait, SIGKILL as the last resort; the names of those killed."""
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
    """An exit code in words."""
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def free_port() -> int:
    """The first port that nobody listens on."""
    for port in PORTS:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((HOST, port))
            return port
    raise SystemExit(f"no port from {PORTS[0]} to {PORTS[-1]} is free: name one with --port")
