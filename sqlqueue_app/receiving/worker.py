"""A worker: the receivers of one or more endpoints with their background jobs, started and stopped as one.

The order of a stop: no new polls, every message that is being handled is finished, background jobs end, connections close.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from sqlqueue_app.messages.errors import ConfigurationError
from sqlqueue_app.policies.ramp_up import SLOW_TASK_TICK_SECONDS
from sqlqueue_app.receiving.receiver import Receiver
from sqlqueue_app.receiving.stopping import StopSignal
from sqlqueue_app.scheduler import BackgroundJob, BackgroundJobs

logger = logging.getLogger("sqlqueue.worker")


class Worker:
    """Runs receivers until the stop signal is set, then drains. Started once, in one thread; `stop` may be set from anywhere."""

    def __init__(self, receivers: Sequence[Receiver], jobs: Sequence[BackgroundJob], stop: StopSignal) -> None:
        self.receivers = list(receivers)
        self._jobs = list(jobs)
        self._stop = stop

    def change_concurrency(self, queue: str, maximum: int) -> None:
        """Have at most `maximum` threads receive from the queue of this literal name, at once and without a restart.

        Safe from any thread, before and while the worker runs; see `Receiver.change_concurrency`. ConfigurationError for a queue
        that the worker does not receive from, or a number below 1.
        """
        for receiver in self.receivers:
            if receiver.queue == queue:
                receiver.change_concurrency(maximum)
                return
        known = ", ".join(repr(receiver.queue) for receiver in self.receivers)
        raise ConfigurationError(f"this worker does not receive from {queue!r}; its queues are {known}")

    def run(self, *, on_started: Callable[[], None] = lambda: None) -> None:
        """Start everything, wait for the stop signal, drain; returns when every thread has ended."""
        ticks = [
            BackgroundJob(f"slow messages of {each.queue}", SLOW_TASK_TICK_SECONDS, each.tick, uses_database=False)
            for each in self.receivers
        ]
        background = BackgroundJobs([*ticks, *self._jobs], died=self._stop.fail)
        try:
            for receiver in self.receivers:
                receiver.start()
            background.start()
            on_started()
            self._stop.wait()
            logger.info("stopping: finishing the messages that are being handled", extra={"event": "worker_draining"})
        finally:
            self._stop.set()
            for receiver in self.receivers:
                receiver.join()
            background.stop()
