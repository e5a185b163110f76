"""pgqueuer on asyncpg; its worker is `pgq run` with the factory below."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries

from benchmarks.peers.adapters import serving
from benchmarks.peers.adapters.handling import DATABASE, handle


@asynccontextmanager
async def factory() -> AsyncIterator[PgQueuer]:
    """What `pgq run` runs."""
    connection = await asyncpg.connect(os.environ[DATABASE])
    queuer = PgQueuer(AsyncpgDriver(connection))

    @queuer.entrypoint("handle")
    async def on_message(job: Any) -> None:
        handle(json.loads(job.payload))

    yield queuer
    await connection.close()


class Pgqueuer(serving.Sender):
    """`Queries.enqueue()`, which takes one or many."""

    def __init__(self) -> None:
        self._loop = serving.Loop()
        self._queries = Queries(AsyncpgDriver(self._loop.run(asyncpg.connect(os.environ[DATABASE]))))

    def send(self, body: serving.Body) -> None:
        """One statement."""
        self._loop.run(self._queries.enqueue("handle", json.dumps(body).encode()))

    def send_many(self, bodies: Sequence[serving.Body]) -> None:
        """One statement too."""
        payloads: list[bytes | None] = [json.dumps(body).encode() for body in bodies]
        self._loop.run(self._queries.enqueue(["handle"] * len(bodies), payloads, [0] * len(bodies)))


def install() -> None:
    """Create its tables in their default, durable form."""
    loop = serving.Loop()
    loop.run(Queries(AsyncpgDriver(loop.run(asyncpg.connect(os.environ[DATABASE])))).install())


if __name__ == "__main__":
    serving.main(install, Pgqueuer)
