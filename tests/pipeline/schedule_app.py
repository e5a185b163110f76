"""A worker process that starts a run of the pipeline and keeps running: `python -m tests.pipeline.schedule_app FILE`.

The run waits for the end of its standard input and then writes FILE.
"""

from __future__ import annotations

import sys
import threading
from datetime import UTC, datetime, timedelta

import django

RUN = "import sys; sys.stdin.read(); open(sys.argv[1], 'w').write('stopped')"


def main(file: str) -> None:
    django.setup()
    from sqlqueue_app.worker.run import PipelineSchedule

    times = iter([datetime(2026, 5, 1, 12, 0, 30, tzinfo=UTC) + timedelta(minutes=5 * number) for number in range(2)])
    schedule = PipelineSchedule("*/5 * * * *", command=[sys.executable, "-c", RUN, file], now=lambda: next(times), zone=UTC)
    assert schedule.poll()
    sys.stdout.write("started\n")
    sys.stdout.flush()
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
