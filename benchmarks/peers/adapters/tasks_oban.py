"""The worker class of oban, which it finds by its path."""

from __future__ import annotations

from typing import Any

from oban import worker

from benchmarks.peers.adapters.handling import handle


@worker(queue="default")
class OnMessage:
    async def process(self, job: Any) -> None:
        handle(job.args)
