"""Threads that send while a test does something else, and are told of at its end."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from django.db import connections

from tests.support.waiting import join_all


class SendingThreads:
    """Threads that send until they have sent all, or `stop()`; or the end of the context, if that has an error.

    A subclass says what they do in `_send`, which looks at `_stop`. What a thread raises fails the test at the end of the context.
    """

    def __init__(self, seeds: Iterable[int | str], *, deadline: float) -> None:
        """A thread for each seed; `deadline`: within so many seconds after the end of the context they have sent all."""
        self._deadline = deadline
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=[seed]) for seed in seeds]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None:
            self.stop()
        join_all(self._threads, self._deadline)
        assert self._errors == []

    def stop(self) -> None:
        """Send no more."""
        self._stop.set()

    def _send(self, chance: random.Random) -> None:
        """What one thread does."""
        raise NotImplementedError

    def _run(self, seed: int | str) -> None:
        try:
            self._send(random.Random(seed))
        except BaseException as error:  # noqa: BLE001 - told to the thread of the test
            self._errors.append(error)
        finally:
            connections.close_all()
