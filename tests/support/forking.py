"""Processes that a test kills, forked from one with Django loaded: a fork costs milliseconds, a new process a second."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import traceback
from contextlib import suppress
from typing import Any

from django.utils.module_loading import import_string

from sqlqueue_app.conf import get_settings
from sqlqueue_app.receiving.stopping import StopSignal
from sqlqueue_app.worker.run import RunOptions, run_worker
from tests.support.bench import Bench
from tests.support.processes import is_gone
from tests.support.waiting import poll_until

RECEIVE = f"{__name__}.receive"
# A test that waits for a line that never comes fails after the second time, when no process can print it anymore.
SECONDS_TO_END, SECONDS_TO_FORK = 150, 300
_PROGRAM = "import django; django.setup(); from tests.support.forking import fork_for_each_line; fork_for_each_line()"
_FORKED, _ENDED = "forked", "ended"


class ForkedProcesses:
    """Processes that call a function until they end or are killed, and print with `print_line`."""

    def __init__(self, bench: Bench, **environment: str) -> None:
        command = [sys.executable, "-W", "error", "-c", _PROGRAM]
        variables = bench.database.child_environment(**environment)
        self._process = subprocess.Popen(command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.alive: list[int] = []
        self.printed: list[str] = []
        """The lines that the processes have printed, as far as they were read."""
        self._counted = 0

    def __enter__(self) -> ForkedProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_all()
        self._process.kill()
        self._process.communicate(timeout=60)

    def begin(self, function: str, *arguments: Any) -> int:
        """Have a process call the function, named by its dotted path. Returns the id of the process."""
        pid = self._ask(_FORKED, function, *arguments)
        self.alive.append(pid)
        return pid

    def run(self, function: str, *arguments: Any) -> int:
        """Have a process call the function, and wait for its end. Returns its `exit_code`."""
        return self.exit_code(self.begin(function, *arguments))

    def exit_code(self, pid: int) -> int:
        """Wait for the end of the process. Returns its exit code: minus the signal that has killed it."""
        code = self._ask(_ENDED, None, pid)
        self.alive.remove(pid)
        return code

    def _ask(self, answer: str, *line: Any) -> int:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(line) + "\n")
        self._process.stdin.flush()
        while True:
            words = self._line().split()
            if words[0] == answer:
                return int(words[1])
            self.printed.append(" ".join(words))

    def read(self) -> None:
        """Wait for the next line that a process prints, including lines that were read while another process was forked."""
        if self._counted == len(self.printed):
            self.printed.append(self._line())
        self._counted += 1

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the process that forks has ended"
        return line.strip()

    def kill(self, pid: int) -> None:
        """Kill the process, and wait until it has ended."""
        self.alive.remove(pid)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        poll_until(lambda: is_gone(pid), what="the killed process has ended")

    def kill_all(self) -> None:
        while self.alive:
            self.kill(self.alive[0])


def print_line(*words: object) -> None:
    """Print a line of a forked process, at once and in one piece."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def receive(options: dict[str, Any]) -> None:
    """Run a worker with these options, until it is killed or, with `until_empty`, finds nothing."""
    run_worker(get_settings(), RunOptions(**options), StopSignal())


def fork_for_each_line() -> None:
    """Fork a process for each line and print its id; for a line without a function, wait for the end of a process."""
    signal.alarm(SECONDS_TO_FORK)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        if name is None:
            print_line(_ENDED, os.waitstatus_to_exitcode(os.waitpid(arguments[0], 0)[1]))
            continue
        function = import_string(name)
        if pid := os.fork():
            print_line(_FORKED, pid)
            continue
        signal.alarm(SECONDS_TO_END)
        try:
            function(*arguments)
        except BaseException:  # noqa: BLE001 - this process must not read the next line
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
