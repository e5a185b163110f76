"""A supervisor of worker processes: starts them, restarts those that die, and counts their crashes.

Imports nothing of Django, because it runs in a process of its own for as long as its workers do.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NoReturn
from uuid import UUID

from sqlqueue_app.policies.polling import BackOff
from sqlqueue_app.receiving.in_flight import (
    HARD_TIME_LIMIT,
    MAX_SUSPECTS,
    CrashCount,
    InFlightMemory,
    InFlightRegistry,
    describe_exit,
)
from sqlqueue_app.receiving.stopping import StopSignal
from sqlqueue_app.worker.logs import configure_logging
from sqlqueue_app.worker.stop_signals import stop_on_signals

logger = logging.getLogger("sqlqueue.worker")

# A restart would fail again: these codes are final (1: the database refused, 2: a wrong setting).
FINAL_EXIT_CODES = (1, 2)
# The process has reached a limit of its own, or got a signal, and has finished its messages: another follows at once.
REPLACED_EXIT_CODE = 4
RESTART_FIRST_SECONDS = 1.0
RESTART_CAP_SECONDS = 30.0
# A hard time limit is noticed at most this much later.
DEADLINE_CHECK_SECONDS = 1.0


def can_supervise() -> bool:
    """Whether this operating system can pass descriptors to children, as a supervisor does."""
    return os.name == "posix"


def own_command_line() -> list[str]:
    """The command line of this process, for running it again."""
    return [sys.executable, *sys.orig_argv[1:]]


_PATH_VARIABLE: Final = "SQLQUEUE_PATH"
_PROGRAM: Final = (
    f"import os, sys; sys.path[:] = os.environ.pop({_PATH_VARIABLE!r}).split(os.pathsep); "
    "from sqlqueue_app.worker.supervisor import main; main()"
)


def become_supervisor(processes: int, *, log_format: str, log_level: int, loads_settings: bool) -> NoReturn:
    """Replace this process, whose connections must be closed, by a supervisor of its command line. The process id stays.

    Otherwise the imports of Django and the project would stay in memory unused: 54 MB instead of 11. `loads_settings`: the project
    has a LOGGING setting, which is applied again without loading the apps.
    """
    for stream in (sys.stdout, sys.stderr):
        # None if it was closed before the start.
        if stream is not None:
            stream.flush()
    options = [str(processes), log_format, str(log_level), "settings" if loads_settings else "none"]
    environment = os.environ | {_PATH_VARIABLE: os.pathsep.join(sys.path)}
    os.execve(sys.executable, [sys.executable, "-c", _PROGRAM, *options, *sys.orig_argv[1:]], environment)  # noqa: S606 - ourselves


def main() -> None:
    """Run the supervisor of `become_supervisor`, in its process."""
    processes, log_format, log_level, logging_from, *command = sys.argv[1:]
    if logging_from == "settings":
        from django.conf import settings  # noqa: PLC0415 - only where the project configures its logging
        from django.utils.log import configure_logging as configure_by_django  # noqa: PLC0415

        configure_by_django(settings.LOGGING_CONFIG, settings.LOGGING)
        logger.callHandlers = _without_apps(logger.callHandlers)  # type: ignore[assignment,method-assign]
    configure_logging(log_format, level=int(log_level))
    sys.exit(supervise([sys.executable, *command], int(processes)))


def _without_apps(call_handlers: Callable[[logging.LogRecord], None]) -> Callable[[logging.LogRecord], None]:
    """Write a line to stderr if a handler fails: that of a project may need its apps, which are not loaded here."""

    def call(record: logging.LogRecord) -> None:
        try:
            call_handlers(record)
        except Exception as error:  # noqa: BLE001 - whatever a handler of the project raises
            with contextlib.suppress(OSError):
                sys.stderr.write(f"{record.getMessage()} (the LOGGING of the project failed here: {error!r})\n")

    return call


def supervise(command: list[str], processes: int) -> int:
    """Run a supervisor until a signal of the operating system. Returns the exit code."""
    stop = StopSignal()
    supervisor = Supervisor(command, processes, stop)
    with stop_on_signals(stop, abort=supervisor.kill):
        return supervisor.run()


@dataclass(slots=True)
class _Child:
    number: int
    back_off: BackOff
    process: subprocess.Popen[bytes] | None = None
    pipe: int | None = None
    exit_code: int | None = None
    overdue: list[bytes] = field(default_factory=list)
    """The rows whose hard time limit was the reason to end the process."""
    restarts: int = 0
    """The number of `restart()` calls at its start: a greater number means that it runs old code."""


class Supervisor:
    """Runs `processes` children with one command line. Started once; the stop signal may be set from anywhere.

    Each child has its own session, so that Ctrl-C in a terminal reaches only the supervisor, and reads a pipe that only the
    supervisor holds open: it delivers the stop, and when it closes the child ends at once and its messages return to their
    queues. A child that dies is restarted after `restart_seconds`, doubling up to RESTART_CAP_SECONDS; the delay is reset if the
    child has lived that long.

    A child with a message past its hard time limit is killed; only that message counts as having caused the death.

    With `reloads` an error of a child is never final: a child that the code has ended is started again at the next `restart()`.
    """

    def __init__(
        self,
        command: list[str],
        processes: int,
        stop: StopSignal,
        *,
        reloads: bool = False,
        environment: Mapping[str, str] | None = None,
        restart_seconds: float = RESTART_FIRST_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._command = command
        self._stop = stop
        self._environment = dict(os.environ if environment is None else environment)
        self._clock = clock
        self._children = [_Child(number, BackOff(restart_seconds, RESTART_CAP_SECONDS)) for number in range(processes)]
        self._reloads = reloads
        self._restarts = 0
        self._lock = threading.Lock()
        self._restarted = threading.Condition(self._lock)
        self._ended = threading.Event()

    def run(self) -> int:
        """Run until the stop signal is set and every child has ended, or until all have ended themselves. Returns the exit code.

        The code is that of the first child that ended permanently with a code other than 0, else 0.
        """
        memory = InFlightMemory.create(len(self._children))
        crashes = CrashCounter(memory)
        threads = [
            threading.Thread(target=self._keep, args=(child, memory, crashes), name=f"supervise-{child.number + 1}")
            for child in self._children
        ]
        stopper = threading.Thread(target=self._watch, args=(memory,), name="supervise-stop")
        stopper.start()
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            self._stop.set()
            self._ended.set()
            stopper.join()
            memory.close()
        codes = [child.exit_code for child in self._children if child.exit_code]
        return codes[0] if codes else 0

    def kill(self) -> None:
        """End every child at once: the second signal."""
        for child in self._children:
            if child.process is not None and child.process.poll() is None:
                child.process.kill()

    def restart(self, because: object) -> None:
        """Let every child finish its messages and start it again, from any thread; `because` is logged as what has changed."""
        logger.info("%s has changed: finishing messages in progress, then starting again", because, extra={"event": "code_changed"})
        with self._restarted:
            self._restarts += 1
            self._restarted.notify_all()
            self._stop_children()

    def _keep(self, child: _Child, memory: InFlightMemory, crashes: CrashCounter) -> None:
        """Start the child, and restart it whenever it dies, until it ends permanently or the stop comes."""
        while not self._stop.is_set():
            try:
                process = self._start(child, memory)
            except OSError as error:
                wait = child.back_off.next_wait()
                text = "worker process %s cannot be started, trying again in %g s: %s"
                logger.error(text, child.number + 1, wait, error, extra={"event": "process_not_started"})
                self._stop.wait(wait)
                continue
            if process is not None and self._ends_permanently(child, process, crashes):
                return

    def _start(self, child: _Child, memory: InFlightMemory) -> subprocess.Popen[bytes] | None:
        """Start the child; None if the stop came first. OSError if the operating system refuses."""
        with self._lock:
            if self._stop.is_set():
                return None
            child.restarts = self._restarts
            is_first = child.process is None
            read_end, child.pipe = os.pipe()
            try:
                child.process = subprocess.Popen(  # noqa: S603 - our own command line
                    self._command,
                    env=self._environment | environment_of_child(read_end, memory.descriptor, child.number, is_first=is_first),
                    pass_fds=(read_end, memory.descriptor),
                    start_new_session=True,
                )
            except OSError:
                self._close_pipe(child)
                raise
            finally:
                os.close(read_end)
            return child.process

    def _ends_permanently(self, child: _Child, process: subprocess.Popen[bytes], crashes: CrashCounter) -> bool:
        """Wait for the end of the child. Returns False, after the pause, if it must be restarted."""
        began = self._clock()
        code = process.wait()
        with self._lock:
            self._close_pipe(child)
        if self._stop.is_set():
            child.exit_code = 0 if code == REPLACED_EXIT_CODE else max(code, 0)
            return True
        # A process that ends normally holds no rows, which distinguishes it from an exit inside a handler.
        held = crashes.process_died(child.number, code, child.overdue)
        if child.overdue:
            child.overdue = []
            child.back_off.reset()
        if child.restarts != self._restarts or (code == REPLACED_EXIT_CODE and not held):
            child.back_off.reset()
            return False
        if code in FINAL_EXIT_CODES and not held and self._reloads:
            text = "worker process %s ended with exit code %s; it starts again when a file changes"
            logger.error(text, child.number + 1, code, extra={"event": "waiting_for_change"})
            self._pause(child)
            return False
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
            describe_exit(code),
            wait,
            "it was handling " + ", ".join(f"{row_id} (deaths with it: {count})" for row_id, count in held.items())
            if held
            else "it was handling nothing",
            extra={"event": "process_died"},
        )
        self._pause(child, wait)
        return False

    def _pause(self, child: _Child, seconds: float | None = None) -> None:
        """Wait for the stop or the next restart, at most `seconds`."""
        with self._restarted:
            self._restarted.wait_for(lambda: self._stop.is_set() or child.restarts != self._restarts, seconds)

    def _close_pipe(self, child: _Child) -> None:
        if child.pipe is not None:
            os.close(child.pipe)
            child.pipe = None

    def _watch(self, memory: InFlightMemory) -> None:
        """End children at hard time limits until the stop comes, and pass that on."""
        while not self._stop.wait(DEADLINE_CHECK_SECONDS):
            self._end_overdue(memory)
        with self._restarted:
            self._restarted.notify_all()
            self._stop_children()
        # The messages in progress are finished, within their limits.
        while not self._ended.wait(DEADLINE_CHECK_SECONDS):
            self._end_overdue(memory)

    def _end_overdue(self, memory: InFlightMemory) -> None:
        for child in self._children:
            process, overdue = child.process, memory.overdue(child.number, self._clock())
            if not overdue or process is None or process.poll() is not None:
                continue
            child.overdue = overdue
            logger.error(
                "worker process %s (%s) is ended: a message has exceeded its hard time limit; row %s",
                child.number + 1,
                process.pid,
                ", ".join(str(UUID(bytes=row_id)) for row_id in overdue),
                extra={"event": "hard_time_limit"},
            )
            process.kill()

    def _stop_children(self) -> None:
        for child in self._children:
            if child.pipe is not None:
                # It may have died just now.
                with contextlib.suppress(OSError):
                    os.write(child.pipe, STOP)


# Set in a process started by a supervisor: the descriptors of the pipe and of the shared memory, the process's number, and whether
# it is the first one of this number.
SUPERVISOR_VARIABLE = "SQLQUEUE_SUPERVISOR"
# The supervisor writes it into the pipe. It does not count as a signal, so that a signal to all processes of a service, as sent
# by systemd, remains the first one here.
STOP = b"s"


def environment_of_child(pipe: int, memory: int, process: int, *, is_first: bool = True) -> dict[str, str]:
    """The environment of a child of a supervisor."""
    return {SUPERVISOR_VARIABLE: f"{pipe},{memory},{process},{int(is_first)}"}


class SupervisedProcess:
    """This process, as the child of a supervisor."""

    def __init__(self, pipe: int, memory: int, process: int, *, is_first: bool) -> None:
        self._pipe = pipe
        self.number = process
        """The number of this process within its supervisor, from 0."""
        self.is_first = is_first
        """Whether it starts with its supervisor, and replaces no other process."""
        for descriptor in (pipe, memory):
            # Programs started by a handler must not inherit it.
            os.set_inheritable(descriptor, False)
        self.in_flight = InFlightRegistry(InFlightMemory(memory), process)

    @classmethod
    def found(cls) -> SupervisedProcess | None:
        """The supervision of this process; None if there is none. Call it once: it removes the variable from the environment."""
        parts = os.environ.pop(SUPERVISOR_VARIABLE, None)
        if parts is None:
            return None
        pipe, memory, process, is_first = map(int, parts.split(","))
        return cls(pipe, memory, process, is_first=bool(is_first))

    def follow_supervisor(self, stop: StopSignal) -> None:
        """Start a daemon thread that sets the stop signal on request, and ends the process when the supervisor is gone."""

        def watch() -> None:
            while os.read(self._pipe, 1) == STOP:
                stop.set()
            os._exit(128 + signal.SIGKILL)

        threading.Thread(target=watch, name="supervisor-watch", daemon=True).start()


class CrashCounter:
    """Counts crashes in the shared memory, visible to every process. Thread-safe.

    Remembers MAX_SUSPECTS rows; beyond that it drops the row with the oldest crash. Rows that a process has survived free their
    places.
    """

    def __init__(self, memory: InFlightMemory, *, size: int = MAX_SUSPECTS) -> None:
        self._memory = memory
        self._size = size
        self._lock = threading.Lock()
        self._places: OrderedDict[bytes, int] = OrderedDict()
        self._free: list[int] = []
        self._used = 0

    def process_died(self, process: int, exit_code: int, overdue: Sequence[bytes] = ()) -> dict[UUID, int]:
        """Count a crash for the rows that an ended process held, free its slots, and return the crash counts of those rows.

        If it was ended because rows were `overdue`, only those count.
        """
        with self._lock:
            self._forget_survived()
            rows, reason = (overdue, HARD_TIME_LIMIT) if overdue else (self._memory.held(process), exit_code)
            counted = {UUID(bytes=row_id): self._count(row_id, reason) for row_id in set(rows)}
            if counted:
                self._memory.publish(self._used)
            self._memory.clear(process)
        return counted

    def _forget_survived(self) -> None:
        for row_id, place in list(self._places.items()):
            if not self._memory.crashes_at(place).times:
                del self._places[row_id]
                self._free.append(place)

    def _count(self, row_id: bytes, exit_code: int) -> int:
        place = self._places.get(row_id)
        before = 0
        if place is None:
            place = self._places[row_id] = self._free_place()
        else:
            before = self._memory.crashes_at(place).times
            self._places.move_to_end(row_id)
        self._memory.write_suspect(place, row_id, CrashCount(before + 1, exit_code))
        return before + 1

    def _free_place(self) -> int:
        if self._free:
            return self._free.pop()
        if self._used < self._size:
            self._used += 1
            return self._used - 1
        return self._places.popitem(last=False)[1]
