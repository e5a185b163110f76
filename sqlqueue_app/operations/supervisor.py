"""A supervisor of worker processes: starts them, starts one again that dies, counts who dies of what, stops all in order.

The children are the same command in processes of their own, each in a session of its own, so that Ctrl-C in a terminal reaches
the supervisor alone. Each reads a pipe that only the supervisor holds open: it is told to stop through it, and when the supervisor
is gone, however it went, its children end at once, and their messages are in their queues again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sqlqueue_app.operations.death_counts import DeathCounts
from sqlqueue_app.operations.supervised import STOP, environment_of_child
from sqlqueue_app.policies.back_off import BackOff
from sqlqueue_app.receiving.in_work import way_of_ending
from sqlqueue_app.receiving.in_work_memory import InWorkMemory
from sqlqueue_app.receiving.stopping import StopSignal

logger = logging.getLogger("sqlqueue.worker")

# Settings and tables are the same at the next start: these ends are final (1: the database refused, 2: a wrong setting).
FINAL_EXIT_CODES = (1, 2)
RESTART_FIRST_SECONDS = 1.0
RESTART_CAP_SECONDS = 30.0


def can_supervise() -> bool:
    """Whether this operating system hands descriptors to children, as a supervisor does."""
    return os.name == "posix"


def own_command_line() -> list[str]:
    """The command line of this process, to be run again."""
    return [sys.executable, *sys.orig_argv[1:]]


@dataclass(slots=True)
class _Child:
    number: int
    back_off: BackOff
    process: subprocess.Popen[bytes] | None = None
    pipe: int | None = None
    exit_code: int | None = None


class Supervisor:
    """Runs `processes` children of one command line. Started once; the stop signal may be set from anywhere.

    A child that dies is started again after `restart_seconds`, then after twice as long, up to RESTART_CAP_SECONDS; after the first
    again if it has lived for so long.
    """

    def __init__(
        self,
        command: list[str],
        processes: int,
        stop: StopSignal,
        *,
        environment: Mapping[str, str] | None = None,
        restart_seconds: float = RESTART_FIRST_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._command = command
        self._stop = stop
        self._environment = dict(os.environ if environment is None else environment)
        self._clock = clock
        self._children = [_Child(number, BackOff(restart_seconds, RESTART_CAP_SECONDS)) for number in range(processes)]
        self._lock = threading.Lock()

    def run(self) -> int:
        """Run until the stop signal is set and every child has ended, or until all have ended by themselves; the exit code.

        The code is that of the first child that ended for good with another one than 0, else 0.
        """
        memory = InWorkMemory.create(len(self._children))
        deaths = DeathCounts(memory)
        threads = [
            threading.Thread(target=self._keep, args=(child, memory, deaths), name=f"supervise-{child.number + 1}")
            for child in self._children
        ]
        stopper = threading.Thread(target=self._forward_stop, name="supervise-stop")
        stopper.start()
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            self._stop.set()
            stopper.join()
            memory.close()
        codes = [child.exit_code for child in self._children if child.exit_code]
        return codes[0] if codes else 0

    def kill(self) -> None:
        """End every child at once: the second signal."""
        for child in self._children:
            if child.process is not None and child.process.poll() is None:
                child.process.kill()

    def _keep(self, child: _Child, memory: InWorkMemory, deaths: DeathCounts) -> None:
        """Start the child, and again whenever it dies, until it ends for good or the stop comes."""
        while not self._stop.is_set():
            try:
                process = self._start(child, memory)
            except OSError as error:
                wait = child.back_off.next_wait()
                text = "worker process %s cannot be started, trying again in %g s: %s"
                logger.error(text, child.number + 1, wait, error, extra={"event": "process_not_started"})
                self._stop.wait(wait)
                continue
            if process is not None and self._ends_for_good(child, process, deaths):
                return

    def _start(self, child: _Child, memory: InWorkMemory) -> subprocess.Popen[bytes] | None:
        """The child, started; None if the stop came first. OSError if the operating system refuses."""
        with self._lock:
            if self._stop.is_set():
                return None
            read_end, child.pipe = os.pipe()
            try:
                child.process = subprocess.Popen(  # noqa: S603 - this very command line
                    self._command,
                    env=self._environment | environment_of_child(read_end, memory.descriptor, child.number),
                    pass_fds=(read_end, memory.descriptor),
                    start_new_session=True,
                )
            except OSError:
                self._close_pipe(child)
                raise
            finally:
                os.close(read_end)
            return child.process

    def _ends_for_good(self, child: _Child, process: subprocess.Popen[bytes], deaths: DeathCounts) -> bool:
        """Wait for the end of the child. False if it is to be started again, after a pause that has passed by then."""
        began = self._clock()
        code = process.wait()
        with self._lock:
            self._close_pipe(child)
        if self._stop.is_set():
            child.exit_code = max(code, 0)
            return True
        # A process that ends in order handles nothing any more, so that a handler's own exit is told from one by its rows.
        held = deaths.died(child.number, code)
        if code in (0, *FINAL_EXIT_CODES) and not held:
            child.exit_code = code
            if code:
                self._stop.set()
            return True
        if self._clock() - began >= RESTART_CAP_SECONDS:
            child.back_off.reset()
        wait = child.back_off.next_wait()
        logger.error(
            "worker process %s (%s) died by %s, starting it again in %g s; %s",
            child.number + 1,
            process.pid,
            way_of_ending(code),
            wait,
            "it handled " + ", ".join(f"{row_id} (death {count} of it)" for row_id, count in held.items())
            if held
            else "it handled nothing",
            extra={"event": "process_died"},
        )
        self._stop.wait(wait)
        return False

    def _close_pipe(self, child: _Child) -> None:
        if child.pipe is not None:
            os.close(child.pipe)
            child.pipe = None

    def _forward_stop(self) -> None:
        self._stop.wait()
        with self._lock:
            for child in self._children:
                if child.pipe is not None:
                    # It may have died just now.
                    with contextlib.suppress(OSError):
                        os.write(child.pipe, STOP)
