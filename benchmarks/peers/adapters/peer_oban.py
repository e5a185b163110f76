"""oban for Python; its worker is `oban start`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from oban import Oban
from oban.schema import install as install_schema

from benchmarks.peers.adapters import serving
from benchmarks.peers.adapters.handling import DATABASE
from benchmarks.peers.adapters.tasks_oban import OnMessage

_WORKER: Any = OnMessage
"""The decorator adds the methods that create jobs to the class."""


class Sending(serving.Sender):
    """`enqueue()` and `enqueue_many()` of an instance that runs no queue."""

    def __init__(self) -> None:
        self._loop = serving.Loop()
        self._oban = Oban(pool=self._loop.run(Oban.create_pool(os.environ[DATABASE])))

    def send(self, body: serving.Body) -> None:
        """One statement."""
        self._loop.run(self._oban.enqueue(_WORKER.new(body)))

    def send_many(self, bodies: Sequence[serving.Body]) -> None:
        """One statement too."""
        self._loop.run(self._oban.enqueue_many([_WORKER.new(body) for body in bodies]))


def install() -> None:
    """Create its tables."""
    loop = serving.Loop()
    pool = loop.run(Oban.create_pool(os.environ[DATABASE]))
    loop.run(install_schema(pool))
    loop.run(pool.close())


if __name__ == "__main__":
    serving.main(install, Sending)
