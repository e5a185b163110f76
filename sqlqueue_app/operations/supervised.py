"""A worker process that a supervisor has started: how it finds its supervisor, obeys it, and ends with it."""

from __future__ import annotations

import os
import signal
import threading

from sqlqueue_app.receiving.in_work import WatchedWork
from sqlqueue_app.receiving.in_work_memory import InWorkMemory
from sqlqueue_app.receiving.stopping import StopSignal

# Who has it was started by a supervisor. Its parts: the descriptors of the pipe and of the shared memory, the process's number.
SUPERVISOR_VARIABLE = "SQLQUEUE_SUPERVISOR"
# The supervisor writes it into the pipe. It is no signal, so that a signal to all processes of a service, as systemd sends one,
# remains the first one here.
STOP = b"s"


def environment_of_child(pipe: int, memory: int, process: int) -> dict[str, str]:
    """What a supervisor tells a process that it starts."""
    return {SUPERVISOR_VARIABLE: f"{pipe},{memory},{process}"}


class SupervisedProcess:
    """This process, as the child of a supervisor."""

    def __init__(self, pipe: int, memory: int, process: int) -> None:
        self._pipe = pipe
        self.number = process
        """Which of its supervisor's processes it is, from 0."""
        for descriptor in (pipe, memory):
            # Programs that a handler starts are no children of the supervisor.
            os.set_inheritable(descriptor, False)
        self.in_work = WatchedWork(InWorkMemory(memory), process)

    @classmethod
    def found(cls) -> SupervisedProcess | None:
        """This process's supervision, None if nobody supervises it. To be asked once: it is taken out of the environment."""
        told = os.environ.pop(SUPERVISOR_VARIABLE, None)
        if told is None:
            return None
        pipe, memory, process = map(int, told.split(","))
        return cls(pipe, memory, process)

    def obey(self, stop: StopSignal) -> None:
        """Set the stop signal when the supervisor says so; end at once when it is gone. Starts a daemon thread for it."""

        def watch() -> None:
            while os.read(self._pipe, 1) == STOP:
                stop.set()
            os._exit(128 + signal.SIGKILL)

        threading.Thread(target=watch, name="supervisor-watch", daemon=True).start()
