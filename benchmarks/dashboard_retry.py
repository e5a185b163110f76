"""Retry every failed message: time to the first progress, speed, and whether each message moves once.

A worker is killed during the retry. `python -m benchmarks.dashboard_retry` requests the retry and prints the progress on return.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.databases import PostgreSQL, run_child
from tests.support.processes import end
from tests.support.waiting import poll_until

# The number of endpoints that the failed messages came from and return to.
RETRIED = 20
_PATIENCE_SECONDS = 600.0
# The worker is killed after this share of the work.
_KILLED_AT = 0.3
_PROGRESS = "SELECT done, skipped, failed, state FROM sqlqueue_app_operation WHERE id = %s"
_MOVED = """
SELECT count(*), count(DISTINCT CAST(headers AS json) ->> 'ServiceControl.Retry.UniqueMessageId')
FROM "{queue}" WHERE headers LIKE '%%ServiceControl.Retry.UniqueMessageId%%'
"""


def measure_retry(database: PostgreSQL, environment: dict[str, str], queues: list[str]) -> dict[str, Any]:
    """Retry everything to `queues`. Raises RuntimeError if a message is lost or moved twice."""
    # The workers below have nothing else to do.
    database.fill(0)
    one_endpoint = {**environment, "SQLQUEUE_BENCH_ENDPOINTS": "0"}
    with database.connect() as connection:
        before = _moved(connection, queues)
        began = time.monotonic()
        operation = run_child("benchmarks.dashboard_retry", environment)

        def progress() -> tuple[int, int, int, str]:
            row = connection.execute(_PROGRESS, [operation["id"]]).fetchone()
            return row or (0, 0, 0, "")

        with _worker(one_endpoint) as first:
            poll_until(lambda: progress()[0] >= operation["total"] * _KILLED_AT, _PATIENCE_SECONDS)
            os.killpg(first.pid, signal.SIGKILL)
        killed_at = progress()[0]
        with _worker(one_endpoint):
            poll_until(lambda: progress()[3] not in ("waiting", "running"), _PATIENCE_SECONDS)
        took = time.monotonic() - began
        done, skipped, failed, state = progress()
        moved = [now - then for now, then in zip(_moved(connection, queues), before, strict=True)]
    if state != "completed" or moved != [done, done] or done + skipped + failed != operation["total"]:
        raise RuntimeError(f"{operation['total']} messages requested, {done} done ({state}), rows and messages moved: {moved}")
    return {**operation, "done": done, "skipped": skipped, "failed": failed, "killed_at": killed_at, "seconds": took}


def _moved(connection: Any, queues: list[str]) -> list[int]:
    """The numbers of rows and of distinct retried messages in the queues."""
    found = [connection.execute(_MOVED.format(queue=queue)).fetchone() for queue in queues]
    return [sum(rows) for rows in zip(*found, strict=True)]


@contextmanager
def _worker(environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "django", "run_sqlqueue_worker"]
    # A separate process group, to be killed with all its processes.
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, start_new_session=True) as worker:
        try:
            yield worker
        finally:
            end(worker, 60.0)


def main() -> None:
    """Request the retry of all messages, as the page does."""
    import django  # noqa: PLC0415 - only here, where it is a process of its own

    django.setup()
    from sqlqueue_app.conf import get_settings  # noqa: PLC0415
    from sqlqueue_app.failures.operations import request_operation  # noqa: PLC0415
    from sqlqueue_app.failures.selection import FailureSelection  # noqa: PLC0415
    from sqlqueue_app.models import FailureStatus  # noqa: PLC0415
    from sqlqueue_app.status.events import Actor  # noqa: PLC0415

    everything = FailureSelection(statuses=(FailureStatus.UNRESOLVED,))
    began = time.perf_counter()
    operation = request_operation(get_settings(), "retry", everything, actor=Actor("bench"))
    took = time.perf_counter() - began
    print(json.dumps({"id": str(operation.pk), "total": operation.total, "first": operation.done, "first_seconds": took}))


if __name__ == "__main__":
    main()
