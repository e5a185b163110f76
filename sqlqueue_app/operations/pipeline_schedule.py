"""The pipeline at the times of a crontab line: one worker of the cluster starts it, as a process of its own."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, tzinfo
from typing import Final

from django.conf import settings as django_settings
from django.utils import timezone

from sqlqueue_app.conf import Settings
from sqlqueue_app.conf.crontab import cron_times
from sqlqueue_app.instances import managed_alias
from sqlqueue_app.operations.claims import claim
from sqlqueue_app.receiving.stopping import StopSignal
from sqlqueue_app.scheduler import BackgroundJob

logger = logging.getLogger("sqlqueue.background")

LOOK_SECONDS: Final = 10.0
_CLAIM: Final = "pipeline starts"


def pipeline_jobs(settings: Settings, stop: StopSignal) -> list[BackgroundJob]:
    """The job that starts the pipeline where the settings say when; none else."""
    if settings.pipeline is None or settings.pipeline.cron is None:
        return []
    schedule = PipelineSchedule(settings.pipeline.cron)
    stop.subscribe(schedule.end)
    return [BackgroundJob("pipeline", LOOK_SECONDS, schedule.run)]


class PipelineSchedule:
    """Starts `run_sqlqueue_pipeline --once` at each tick, unless another worker has, or the last one runs still.

    A tick at which no worker ran is not made up for: the next run takes what there is. Between ticks the database is asked nothing.
    """

    def __init__(
        self,
        cron: str,
        *,
        command: Sequence[str] | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        zone: tzinfo | None = None,
    ) -> None:
        self._times = cron_times(cron)
        self._command = command or [sys.executable, "-m", "django", "run_sqlqueue_pipeline", "--once"]
        self._now = now
        self._zone = zone or timezone.get_default_timezone()
        self._done = now()
        self._child: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        """`look`, as a background job."""
        self.look()

    def look(self) -> bool:
        """Start a run if it is time; whether one was started."""
        now = self._now()
        self._notice_end()
        tick = self._times.latest(self._done, now, self._zone)
        if tick is None:
            return False
        won = claim(managed_alias(), _CLAIM, tick)
        self._done = tick
        if not won:
            return False
        if self._child is not None:
            logger.warning("the pipeline of the time before runs still: none is started", extra={"event": "pipeline_late"})
            return False
        quiet = subprocess.DEVNULL
        self._child = subprocess.Popen(self._command, env=_environment(), stdin=quiet, stdout=quiet)  # noqa: S603 -- our own command
        logger.info("the pipeline is started, process %s", self._child.pid, extra={"event": "pipeline_started"})
        return True

    def end(self) -> None:
        """Tell a run that is under way to finish its batch."""
        child = self._child
        if child is not None and child.poll() is None:
            child.terminate()

    def _notice_end(self) -> None:
        code = None if self._child is None else self._child.poll()
        if code is None:
            return
        self._child = None
        if code:
            text = "the pipeline ended with exit code %s; what it said stands above"
            logger.error(text, code, extra={"event": "pipeline_failed"})


def _environment() -> dict[str, str]:
    """Where the child finds the settings and the code of this process."""
    path = os.pathsep.join(dict.fromkeys(entry or os.getcwd() for entry in sys.path))
    module = getattr(django_settings, "SETTINGS_MODULE", None)
    return {**os.environ, **({"DJANGO_SETTINGS_MODULE": module} if module else {}), "PYTHONPATH": path}
