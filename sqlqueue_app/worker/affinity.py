"""CPU affinity: a process with many quick messages is faster on one processor than on several (Linux).

Threads of one interpreter run one at a time. Every switch between processors moves their shared data from one cache to another:
eight threads did 1.6 to 2.0 times as much on one processor as on two (docs/explanation/performance.md).
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from sqlqueue_app.messages.errors import ConfigurationError
from sqlqueue_app.receiving.background import BackgroundJob

logger = logging.getLogger("sqlqueue.worker")

AUTO: Final = "auto"
NONE: Final = "none"
Affinity = tuple[int, ...] | Literal["auto", "none"]
_EXPECTED: Final = f"expected {AUTO!r}, {NONE!r}, or numbers such as 0,2-4"
_CLAIM: Final = "sqlqueue-processor"

CHECK_SECONDS: Final = 1.0
# A burst of a few thousand messages is over in a second: after the start, and after messages, binding does not wait for the end of
# a check.
PROBE_SECONDS: Final = 0.25
EXPECT_SECONDS: Final = 3.0
# One processor pays off only with many switches: this many messages in a check, each with this little processor time. A message
# took 169 microseconds on two processors and 78 on one; one that computes outside the interpreter's lock takes longer, and loses.
MIN_MESSAGES: Final = 100
QUICK_SECONDS: Final = 0.0004
# The part of the processor that others may use.
MAX_OTHERS: Final = 0.6
# After a release.
PAUSE_SECONDS: Final = 60.0


def parse_affinity(text: str) -> Affinity:
    """Parse `auto`, `none`, or numbers in the format of taskset, `0,2-4`. ValueError, with the expectation, for anything else."""
    if text == AUTO:
        return AUTO
    if text == NONE:
        return NONE
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        ends = [first, last] if dash else [first, first]
        if not all(end.isascii() and end.isdigit() and len(end) < 6 for end in ends) or int(ends[0]) > int(ends[1]):
            raise ValueError(f"{text!r} names no processors: {_EXPECTED}")
        found += range(int(ends[0]), int(ends[1]) + 1)
    return tuple(dict.fromkeys(found))


def is_supported() -> bool:
    """Whether this system can bind a process to a processor, and has more than one for it."""
    return sys.platform == "linux" and len(os.sched_getaffinity(0)) > 1


def check_processors(processors: Sequence[int]) -> None:
    """Raise ConfigurationError if a process cannot be bound to these processors."""
    if sys.platform != "linux":
        raise ConfigurationError("--cpu-affinity needs Linux: leave it out on this system")
    allowed = os.sched_getaffinity(0)
    if refused := [number for number in processors if number not in allowed]:
        raise ConfigurationError(
            f"--cpu-affinity names the processors {', '.join(map(str, refused))}, which this process may not use: "
            f"expected some of {', '.join(map(str, sorted(allowed)))}, {AUTO!r} or {NONE!r}"
        )


@contextlib.contextmanager
def staying_on(processors: Sequence[int], process: int) -> Iterator[int]:
    """Bind the calling thread, and threads that it starts, to one of the processors, and yield its number.

    `process` counts from 0 and takes them in turn. Running threads are not affected, and programs started inside inherit the
    binding. Raises ConfigurationError as `check_processors`, and if the system refuses.
    """
    check_processors(processors)
    before = os.sched_getaffinity(0)
    number = processors[process % len(processors)]
    try:
        os.sched_setaffinity(0, {number})
    except OSError as error:
        raise ConfigurationError(f"this process cannot be kept on processor {number} ({error}): omit --cpu-affinity") from error
    try:
        logger.info("this process stays on processor %s", number, extra={"event": "cpu_affinity"})
        yield number
    finally:
        os.sched_setaffinity(0, before)


class AdaptiveAffinity:
    """Keeps this process on one processor while that makes it faster: while it handles many messages, each in little time.

    Releases it when messages take longer, which includes handlers that compute outside the interpreter's lock; when other
    processes need the processor; and before a program is started, because programs inherit the binding. Takes a processor that no
    other worker on the machine has claimed, else shares one, selected by the number of the process. Thread-safe.
    """

    def __init__(
        self,
        process: int,
        *,
        claim: str = _CLAIM,
        clock: Callable[[], float] = time.monotonic,
        own_seconds: Callable[[], float] = time.process_time,
        busy_seconds: Callable[[int], float] | None = None,
    ) -> None:
        self._process = process
        self._claim = claim
        self._clock = clock
        self._own_seconds = own_seconds
        self._busy_seconds = busy_seconds or busy_seconds_of
        self._allowed = os.sched_getaffinity(0)
        self._lock = threading.Lock()
        self._processor: int | None = None
        self._claims = contextlib.ExitStack()
        self._last: tuple[float, float, int, float] | None = None
        self._paused_until = 0.0
        self._expects_until = 0.0
        self._may_bind_soon = False

    @property
    def processor(self) -> int | None:
        """The processor of this process; None while it may use all."""
        return self._processor

    def job(self, handled: Callable[[], int]) -> BackgroundJob:
        """The job that checks; `handled` returns the number of messages that this process has handled."""
        return BackgroundJob(
            "cpu affinity", CHECK_SECONDS, lambda: self.check(handled()), uses_database=False, sooner=self._next_probe_seconds
        )

    def _next_probe_seconds(self) -> float | None:
        return PROBE_SECONDS if self._may_bind_soon else None

    def check(self, handled: int) -> None:
        """Bind or release the process, by the processor time of its messages in the last CHECK_SECONDS at most."""
        with self._lock:
            processor, last = self._processor, self._last
            busy = 0.0 if processor is None else self._busy_seconds(processor)
            now, own = self._clock(), self._own_seconds()
            # Timers are not exact: the last probe of a check ends it.
            if processor is not None or last is None or now - last[0] > CHECK_SECONDS - PROBE_SECONDS:
                self._last = now, own, handled, busy
            if last is None or handled > last[2]:
                self._expects_until = now + EXPECT_SECONDS
            self._may_bind_soon = processor is None and self._paused_until <= now < self._expects_until
            if last is None or now <= last[0]:
                return
            seconds, spent, messages, of_all = now - last[0], own - last[1], handled - last[2], busy - last[3]
            if processor is None:
                if messages >= MIN_MESSAGES and spent <= messages * QUICK_SECONDS and now >= self._paused_until:
                    self._bind()
            elif messages >= MIN_MESSAGES and spent > messages * QUICK_SECONDS:
                self._release("its messages take longer now")
            elif last[3] and of_all - spent > MAX_OTHERS * seconds:
                self._release(f"others use processor {processor}")

    def release(self, why: str) -> None:
        """Let the process use every processor, for PAUSE_SECONDS at least. Does nothing if it may already."""
        with self._lock:
            if self._processor is not None:
                self._release(why)

    def _bind(self) -> None:
        choice = sorted(self._allowed)
        number = next(
            (each for each in choice if _is_claimed(self._claims, f"{self._claim}-{each}")), choice[self._process % len(choice)]
        )
        try:
            if not _may_bind():
                raise PermissionError("the system refuses it")
            _set_for_all_threads({number})
        except OSError as error:
            self._claims.close()
            self._paused_until = float("inf")
            text = "this process cannot be kept on one processor, which would make it faster: %s"
            logger.info(text, error, extra={"event": "cpu_affinity_refused"})
            return
        self._processor = number
        # The time of the processor is unknown until the next check.
        self._last = None
        _bound.add(self)
        _watch_programs()
        logger.info("this process stays on processor %s", number, extra={"event": "cpu_affinity"})

    def _release(self, why: str) -> None:
        _bound.discard(self)
        self._processor = None
        self._paused_until = self._clock() + PAUSE_SECONDS
        self._claims.close()
        _set_for_all_threads(self._allowed)
        logger.info("this process may use every processor again: %s", why, extra={"event": "cpu_affinity_released"})


def _set_for_all_threads(processors: set[int]) -> None:
    """Bind all threads of this process; later ones inherit it from the thread that starts them."""
    done: set[str] = set()
    while new := set(os.listdir("/proc/self/task")) - done:
        for thread in new:
            # It may have ended.
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread), processors)
        done |= new


def _may_bind() -> bool:
    """Whether the system lets a process bind itself. A filter of system calls may kill the process that tries, so a child does."""
    if "Seccomp:\t2" not in Path("/proc/self/status").read_text(encoding="utf-8"):
        return True
    program = "import os; os.sched_setaffinity(0, os.sched_getaffinity(0))"
    return subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, check=False).returncode == 0  # noqa: S603


def busy_seconds_of(processor: int) -> float:
    """The seconds that this processor has been busy, with any work, since the machine started; 0 if the system hides it."""
    try:
        lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0.0
    for line in lines:
        name, *ticks = line.split()
        if name == f"cpu{processor}":
            user, nice, system, _idle, _waiting, hard, soft, stolen = map(int, ticks[:8])
            return (user + nice + system + hard + soft + stolen) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _is_claimed(claims: contextlib.ExitStack, name: str) -> bool:
    """Claim a name, as a socket in the abstract namespace, until the stack closes; False if another process has it."""
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0{name}")
    except OSError:
        claim.close()
        return False
    claims.enter_context(contextlib.closing(claim))
    return True


_PROGRAMS: Final = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "pty.spawn"})
_bound: set[AdaptiveAffinity] = set()
_is_watching = threading.Event()


def _watch_programs() -> None:
    """Release before a program is started; a hook stays for the life of the process."""
    if not _is_watching.is_set():
        _is_watching.set()
        sys.addaudithook(_before_program)


def _before_program(event: str, _args: tuple[Any, ...]) -> None:
    if event in _PROGRAMS:
        for each in list(_bound):
            each.release("a program is started")
