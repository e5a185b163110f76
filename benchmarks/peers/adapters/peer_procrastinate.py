"""procrastinate with sync and with async tasks; its worker is its own command."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import procrastinate

from benchmarks.peers.adapters import serving
from benchmarks.peers.adapters.handling import DATABASE, handle

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=os.environ[DATABASE]))


@app.task(name="handle")
def sync_task(**body: Any) -> None:
    handle(body)


@app.task(name="handle_async")
async def async_task(**body: Any) -> None:
    handle(body)


# As documented, but every minute instead of every tenth: a worker without a heartbeat for 30 s is dead.
@app.periodic(cron="* * * * *")
@app.task(queueing_lock="retry_stalled_jobs", pass_context=True)
async def retry_stalled_jobs(_context: Any, timestamp: int) -> None:  # noqa: ARG001 - it is called with this name
    for job in await app.job_manager.get_stalled_jobs():
        await app.job_manager.retry_job(job)


class Procrastinate(serving.Sender):
    """Its synchronous functions, as a Django project would call them."""

    def __init__(self) -> None:
        app.replace_connector(procrastinate.SyncPsycopgConnector(conninfo=os.environ[DATABASE])).__enter__()
        app.open()
        self._task = app.tasks[os.environ["BENCH_TASK"]]

    def send(self, body: serving.Body) -> None:
        """One statement."""
        self._task.defer(**body)

    def send_many(self, bodies: Sequence[serving.Body]) -> None:
        """One statement too."""
        self._task.batch_defer(*bodies)


def install() -> None:
    """Create its tables."""
    with app.with_connector(procrastinate.SyncPsycopgConnector(conninfo=os.environ[DATABASE])).open() as opened:
        opened.schema_manager.apply_schema()


if __name__ == "__main__":
    serving.main(install, Procrastinate)
