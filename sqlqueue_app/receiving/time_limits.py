"""Soft and hard time limits of handlers.

A soft limit raises an exception in the thread of the handler. While the thread waits for a database, its statement is cancelled
instead, and the exception is raised when the driver returns: an exception in the middle of a driver could leave the connection
with half an answer. A hard limit is a deadline in the memory that the process shares with its supervisor, which ends the process.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, Final

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from sqlqueue_app.messages.errors import SoftTimeLimitExceeded
from sqlqueue_app.receiving.background import BackgroundJob
from sqlqueue_app.receiving.handlers import Handler
from sqlqueue_app.receiving.in_flight import InFlightRegistry
from sqlqueue_app.tables.connections import cancel_statement

# A limit is noticed at most this much later, or after a tenth of the limit if that is shorter.
MAX_PROBE_SECONDS: Final = 1.0
MIN_PROBE_SECONDS: Final = 0.05


class _Call:
    """One running call of a handler with a soft limit.

    Its thread writes `statement` and `is_done`, the watcher `is_interrupting` and `is_interrupted`. Both first announce what they
    do and then look at what the other does, so that neither needs a lock, which the exception could leave locked.
    """

    __slots__ = ("deadline", "is_done", "is_interrupted", "is_interrupting", "is_raised", "statement", "thread")

    def __init__(self, deadline: float) -> None:
        self.thread = threading.get_ident()
        self.deadline = deadline
        self.statement: tuple[BaseDatabaseWrapper, Any] | None = None
        """The connection and the cursor of a running statement."""
        self.is_done = False
        self.is_interrupting = False
        self.is_interrupted = False
        self.is_raised = False
        """Whether the handler has got the exception, or is about to get it: it gets only one."""

    def interrupt(self) -> None:
        """Raise the exception in the thread, or cancel its statement. Called by the watcher."""
        self.is_interrupting = True
        try:
            if self.is_done or self.is_interrupted:
                return
            self.is_interrupted = True
            if self.statement is not None:
                cancel_statement(*self.statement)
            else:
                self.is_raised = True
                _raise_in(self.thread, SoftTimeLimitExceeded)
        finally:
            self.is_interrupting = False

    def wait_for_watcher(self) -> None:
        """Wait until the watcher has finished its current step. The watcher never waits for this thread."""
        while self.is_interrupting:
            # An event of its own: the exception could leave the lock of a shared one locked.
            threading.Event().wait(0.001)

    def around_statement(self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: dict[str, Any]) -> Any:
        """Execute a statement that the watcher may cancel; a wrapper as Django's `execute_wrapper` takes it."""
        self.statement = context["connection"], context["cursor"]
        try:
            # It may have looked before it could see the statement: then the exception arrives here, outside the driver.
            self.wait_for_watcher()
            result = execute(sql, params, many, context)
        except Exception as error:
            self._leave_statement()
            if self._raises_now():
                raise SoftTimeLimitExceeded from error
            raise
        self._leave_statement()
        if self._raises_now():
            raise SoftTimeLimitExceeded
        return result

    def _leave_statement(self) -> None:
        self.statement = None
        # A cancellation that is on its way must not meet the next statement.
        self.wait_for_watcher()

    def _raises_now(self) -> bool:
        if self.is_raised or not self.is_interrupted:
            return False
        self.is_raised = True
        return True

    def end(self) -> None:
        """End the call: nothing is raised in the thread afterwards."""
        self.is_done = True
        self.wait_for_watcher()
        _raise_in(self.thread, None)


class TimeLimits:
    """Enforces the time limits of one endpoint's handlers. Shared by all its threads."""

    def __init__(
        self, endpoint: str = "", handlers: Iterable[Handler] = (), *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._endpoint = endpoint
        self._soft = [each.soft_time_limit for each in handlers if each.soft_time_limit is not None and not each.is_coroutine]
        self._clock = clock
        self._calls: dict[int, _Call] = {}

    def jobs(self) -> list[BackgroundJob]:
        """The job that watches soft limits; none without any. A coroutine has a timeout of its event loop instead."""
        if not self._soft:
            return []
        every = max(MIN_PROBE_SECONDS, min(MAX_PROBE_SECONDS, min(self._soft) / 10))
        return [BackgroundJob(f"time limits of {self._endpoint}", every, self.probe, uses_database=False)]

    def probe(self) -> None:
        """Interrupt each call that has exceeded its soft limit."""
        now = self._clock()
        for call in list(self._calls.values()):
            if now >= call.deadline and not call.is_interrupted:
                # The database may be unreachable; the call is interrupted when the driver gives up.
                with suppress(Exception):
                    call.interrupt()

    def call(self, handler: Handler, message: Any, context: Any, in_flight: InFlightRegistry | None) -> Any:
        """Call a handler with limits, in the receiving thread. Raises SoftTimeLimitExceeded if it does not catch that itself."""
        run, soft, hard = handler.call or handler.function, handler.soft_time_limit, handler.hard_time_limit
        if hard is not None and in_flight is not None:
            in_flight.set_deadline(hard)
        try:
            if soft is None or handler.is_coroutine:
                return run(message, context)
            return self._call_watched(partial(run, message, context), soft)
        except SoftTimeLimitExceeded as error:
            explain(error, f"handler {handler.path}", soft)
            raise
        finally:
            if hard is not None and in_flight is not None:
                in_flight.set_deadline(None)

    def _call_watched(self, run: Callable[[], Any], seconds: float) -> Any:
        call = _Call(self._clock() + seconds)
        with ExitStack() as wrapped:
            for connection in connections.all(initialized_only=True):
                wrapped.enter_context(connection.execute_wrapper(call.around_statement))
            self._calls[call.thread] = _watched.call = call
            try:
                return run()
            finally:
                try:
                    call.end()
                except SoftTimeLimitExceeded:
                    # It was raised in `end` itself, before the watcher could see `is_done`. A call gets only one.
                    call.end()
                    raise
                finally:
                    del self._calls[call.thread], _watched.call


# The call of the thread that is watched.
_watched = threading.local()


def explain(error: BaseException, what: str, soft: float | None) -> None:
    """Give a SoftTimeLimitExceeded a text: it is raised without one."""
    if isinstance(error, SoftTimeLimitExceeded) and not error.args and soft is not None:
        error.args = (f"{what} has exceeded its soft time limit of {soft:g} s",)


def end_watching() -> None:
    """End the watch of this thread's call, if there is one: the caller enforces its soft limit, as for a coroutine."""
    if (call := getattr(_watched, "call", None)) is not None:
        call.end()


def _raise_in(thread: int, exception: type[BaseException] | None) -> None:
    """Raise an exception in a thread when it next runs Python code; None takes one back that it has not got yet."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(exception) if exception else None)
