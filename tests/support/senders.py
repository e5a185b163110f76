"""Threads that send in the background of a test; their errors fail the test."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from django.db import connections

from tests.support.waiting import join_all


class SendingThreads:
    """Threads that send until they are done, until `stop()`, or until the context ends with an error.

    A subclass implements `_send`, which checks `_stop`. An exception in a thread fails the test at the end of the context.
    """

    def __init__(self, seeds: Iterable[int | str], *, deadline: float) -> None:
        """One thread per seed. `deadline`: seconds that they may take after the end of the context."""
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
        """Stop sending."""
        self._stop.set()

    def _send(self, chance: random.Random) -> None:
        """The work of one thread."""
        raise NotImplementedError

    def _run(self, seed: int | str) -> None:
        try:
            self._send(random.Random(seed))
        except BaseException as error:  # noqa: BLE001 - reported in the thread of the test
            self._errors.append(error)
        finally:
            connections.close_all()
