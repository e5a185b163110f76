"""Background jobs side by side: those that wait for the database keep no other from its time."""

from __future__ import annotations

import threading

from sqlqueue_app.scheduler import BackgroundJob, BackgroundJobs


def test_a_job_that_needs_no_database_waits_for_none_that_does() -> None:
    go_on, looked = threading.Event(), threading.Semaphore(0)

    def wait() -> None:
        assert go_on.wait(60)

    waiting = [BackgroundJob(f"writer {number}", 0.05, wait) for number in range(10)]
    jobs = BackgroundJobs([*waiting, BackgroundJob("watcher", 0.05, lambda: looked.release(), uses_database=False)])
    jobs.start()
    try:
        for _ in range(3):
            assert looked.acquire(timeout=60)
    finally:
        go_on.set()
        jobs.stop()
