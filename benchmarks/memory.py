"""The memory of `run_sqlqueue_worker` while it receives many messages, measured from outside."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from benchmarks import handlers
from benchmarks.databases import Database
from benchmarks.measures import resident_megabytes
from benchmarks.series import Section, Series
from tests.support.processes import children_of, end
from tests.support.waiting import poll_until

SAMPLES = 20
_SECONDS_FOR_A_SAMPLE = 600


@dataclass(frozen=True, slots=True)
class Growth:
    """The development of memory: the mean of the second quarter of the samples, after the warm-up, and that of the last quarter."""

    warm: float
    late: float

    @property
    def megabytes(self) -> float:
        """The growth in the last quarter; one or two megabytes are noise."""
        return self.late - self.warm


def growth(samples: list[float]) -> Growth:
    """The growth over at least four samples."""
    quarter = len(samples) // 4
    return Growth(mean(samples[quarter : 2 * quarter]), mean(samples[-quarter:]))


def measure(database: Database, *, messages: int, log_line: Callable[[str], None], samples: int = SAMPLES) -> Section:
    """Let a worker receive the messages in chunks, and sample its memory after each chunk."""
    portion = max(1, messages // samples)
    resident = Series("memory.samples", f"run_sqlqueue_worker, resident after each {portion:,} messages", "MB")
    peak = Series("memory.peak", "run_sqlqueue_worker, resident at its highest", "MB")
    highest = 0.0
    database.fill(portion)
    with _worker(database) as find:
        for sample in range(samples):
            if sample:
                database.fill(portion)
            poll_until(lambda: find() and database.is_empty(), _SECONDS_FOR_A_SAMPLE, what="the worker empties the queue")
            found = resident_megabytes(find())
            resident.values.append(found["now"])
            highest = max(highest, found["peak"])
            log_line(f"resident after {(sample + 1) * portion:,} messages: {found['now']:.1f} MB")
    last = Series("memory.last", "run_sqlqueue_worker, resident at the end", "MB", [resident.values[-1]])
    peak.values.append(highest)
    grown = Series("memory.growth", "… more in the last quarter than in the second", "MB", [growth(resident.values).megabytes])
    facts: dict[str, object] = {"messages": portion * samples, "samples": resident.values, "threads": 8}
    return Section("memory", f"after {portion * samples:,} messages", database.name, [last, peak, grown], facts)


@contextmanager
def _worker(database: Database) -> Iterator[Callable[[], int]]:
    """A worker as users start it; yields a function that finds the receiving process."""
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "log"
        with (
            log.open("wb") as output,
            subprocess.Popen(
                [sys.executable, "-m", "django", "run_sqlqueue_worker"],
                env=database.environment() | {handlers.QUIET: "1"},
                stderr=output,
            ) as worker,
        ):

            def find() -> int:
                if worker.poll() is not None:
                    raise RuntimeError(f"the worker ended with {worker.returncode}: {log.read_text()[-2000:]}")
                # Under a supervisor the child does the work.
                return (children_of(worker.pid) or [worker.pid])[0]

            try:
                yield find
            finally:
                end(worker)
