"""Run a real worker in a separate process: `python -m benchmarks.worker_process THREADS [MESSAGES]`.

It ends when its queue is empty, or after a given number of messages.
"""

from __future__ import annotations

import json
import sys
import time

import django

from benchmarks import handlers
from benchmarks.measures import rate


def run(threads: int, enough: int | None) -> dict[str, object]:
    """Receive with `threads` threads; returns the rate and the processor time per message."""
    django.setup()
    # Models can be imported only now.
    from sqlqueue_app.conf import get_settings  # noqa: PLC0415
    from sqlqueue_app.receiving.stopping import StopSignal  # noqa: PLC0415
    from sqlqueue_app.worker.run import RunOptions, run_worker  # noqa: PLC0415

    stop = StopSignal()
    if enough is not None:
        handlers.ENOUGH.append((enough, stop.set))
    used_before = time.process_time()
    received = run_worker(get_settings(), RunOptions(max_concurrency=threads, until_empty=enough is None), stop)
    used = time.process_time() - used_before
    return {
        "messages": len(handlers.TIMES),
        "received": received,
        "rate": rate(handlers.TIMES),
        "processor_microseconds": used / max(1, received) * 1e6,
    }


def main() -> None:
    print(json.dumps(run(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None)))


if __name__ == "__main__":
    main()
