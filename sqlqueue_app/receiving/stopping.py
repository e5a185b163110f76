"""The stop of a process and of its parts: a signal that ends every wait at once. Imports nothing of Django."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class StopSignal:
    """Set once, by a signal or at the end of the work, and ends every wait at once.

    Safe from any thread, but not from a handler of operating-system signals: use `stop_on_signals` there.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._subscribers: list[Callable[[], None]] = []
        self._failed = False

    def set(self) -> None:
        """Stop receiving; messages in progress are finished."""
        with self._lock:
            self._event.set()
            subscribers = list(self._subscribers)
        for call in subscribers:
            call()

    def fail(self) -> None:
        """Stop as `set`, and set `has_failed` because of an internal error. After a `set`, only set `has_failed`."""
        self._failed = self._failed or not self.is_set()
        self.set()

    @contextmanager
    def failing_with(self, logger: logging.Logger, text: str, *values: object) -> Iterator[None]:
        """Guard a thread that must not die unnoticed: log an exception raised inside with this text and its values (event
        `thread_died`), call `fail`, and raise it again.
        """
        try:
            yield
        except BaseException:
            logger.critical(text, *values, extra={"event": "thread_died"}, exc_info=True)
            self.fail()
            raise

    @property
    def has_failed(self) -> bool:
        """Whether `fail` was called."""
        return self._failed

    def subscribe(self, call: Callable[[], None]) -> None:
        """Call `call` at each `set`, in the setting thread, or at once if already set: it must be quick and never raise.

        For waits on anything other than this signal that the stop must end too.
        """
        with self._lock:
            self._subscribers.append(call)
            is_set = self._event.is_set()
        if is_set:
            call()

    def is_set(self) -> bool:
        """Whether to stop."""
        return self._event.is_set()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait at most `seconds`, without limit if None. Returns True as soon as the stop is set."""
        return self._event.wait(seconds)


class PartOfStop(StopSignal):
    """The stop of a part that may end before the whole: `set` stops the whole, `retire` only this part."""

    def __init__(self, whole: StopSignal) -> None:
        super().__init__()
        self._whole = whole
        whole.subscribe(self.retire)

    def set(self) -> None:
        """Stop everything, unless this part has ended before."""
        if not self.is_set():
            self._whole.set()

    def fail(self) -> None:
        """Stop everything by `fail`, unless this part has ended before."""
        if not self.is_set():
            self._whole.fail()

    def retire(self) -> None:
        """Stop this part."""
        super().set()
