"""One process runs the pipeline again and again with one Spark session, as workers start it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sqlqueue_app.conf import get_settings
from sqlqueue_app.management.commands.run_sqlqueue_pipeline import _is_requested
from sqlqueue_app.models import PipelineRun
from sqlqueue_app.pipeline.run import PipelineProgress, options_of, run_pipeline
from sqlqueue_app.receiving.stopping import StopSignal
from sqlqueue_app.spark import session as session_module
from sqlqueue_app.spark.session import WarmSession
from sqlqueue_app.worker.stop_signals import RunRequests
from tests.pipeline.workshop import ids_in_the_lake
from tests.support.databases import QueueDatabase
from tests.support.filling import install, row, table
from tests.support.processes import children_of, is_gone
from tests.support.spark import CONF, MASTER
from tests.support.waiting import poll_until, read_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Starts Spark twice.
@pytest.mark.timeout(600)
@pytest.mark.skipif(sys.platform != "linux", reason="looks for Java among the child processes in /proc")
def test_process_keeps_its_java_between_runs(sqlite_database: QueueDatabase, tmp_path: Path) -> None:
    install(
        sqlite_database,
        ENDPOINTS={"Sales": {"AUDIT_QUEUE": "audit"}},
        PIPELINE={"LAKE": str(tmp_path), "MASTER": MASTER, "SPARK": CONF},
    )
    audit = table(sqlite_database, "audit")
    command = [sys.executable, "-m", "django", "run_sqlqueue_pipeline", "--on-request", "--format", "json"]
    audit.send([row({"NServiceBus.MessageId": "m-0"})])
    with subprocess.Popen(
        command, env=sqlite_database.child_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        assert process.stdin is not None

        def result() -> int:
            lines = read_until(process, process.stdout, lambda line: line.startswith("}"), 300, what="a result")
            return int(json.loads("".join(lines))["messages"])

        assert result() == 1
        (java,) = children_of(process.pid)
        audit.send([row({"NServiceBus.MessageId": "m-1"}), row({"NServiceBus.MessageId": "m-2"})])
        process.stdin.write("\n")
        assert result() == 2
        assert list(children_of(process.pid)) == [java]

        os.kill(java, signal.SIGKILL)
        poll_until(lambda: threads_of(java) <= 1 and is_gone(java), what="the end of Java and all its threads")
        audit.send([row({"NServiceBus.MessageId": "m-3"})])
        process.stdin.write("\n")
        assert result() == 1
        (other,) = children_of(process.pid)
        assert other != java

        process.stdin.close()
        assert process.wait(120) == 0
        assert is_gone(other)
    assert sorted(ids_in_the_lake(sqlite_database, tmp_path)) == ["m-0", "m-1", "m-2", "m-3"]
    states = PipelineRun.objects.using(sqlite_database.alias).values_list("state", flat=True)
    assert list(states) == ["ended"] * 3


def threads_of(pid: int) -> int:
    """The number of threads of a process. Its parent can see its end only when the main thread is the last one."""
    return len(list(Path(f"/proc/{pid}/task").glob("*")))


class Sessions:
    """Replaces the start of sessions: records starts and ends, and lends out the session of the tests."""

    def __init__(self, session: object) -> None:
        self.events: list[Any] = []
        self.options: list[str] = []
        self._session = session

    @contextmanager
    def running(self, _: str, conf: dict[str, str]) -> Iterator[object]:
        self.events.append("start")
        self.options.append(conf.get("spark.driver.extraJavaOptions", ""))
        yield self._session
        self.events.append("end")


class Waits(StopSignal):
    """A stop signal whose waits advance a clock and return at once; the last wait sets it."""

    def __init__(self, events: list[Any], count: int) -> None:
        super().__init__()
        self.now = 1_000.0
        self._events = events
        self._left = count

    def wait(self, seconds: float | None = None) -> bool:
        assert seconds is not None
        self._events.append(seconds)
        self.now += seconds
        self._left -= 1
        if not self._left:
            self.set()
        return self.is_set()


@pytest.fixture
def sessions(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Sessions:
    made = Sessions(spark)
    monkeypatch.setattr(session_module, "spark_running", made.running)
    return made


def run(database: QueueDatabase, lake: Path, stop: StopSignal, warm: WarmSession, *, continuous: bool = False) -> PipelineProgress:
    install(database, ENDPOINTS={"Sales": {"AUDIT_QUEUE": "audit"}})
    settings = get_settings()
    options = options_of(settings, lake=str(lake), master=MASTER, continuous=continuous, every_seconds=600.0)
    return run_pipeline(settings, options, stop, warm=warm)


def test_idle_session_of_a_continuous_run_ends(sqlite_database: QueueDatabase, sessions: Sessions, tmp_path: Path) -> None:
    install(sqlite_database, ENDPOINTS={"Sales": {"AUDIT_QUEUE": "audit"}})
    table(sqlite_database, "audit").send([row({"NServiceBus.MessageId": "m-0"})])
    stop = Waits(sessions.events, count=4)
    warm = WarmSession(MASTER, idle_seconds=900, clock=lambda: stop.now)

    assert run(sqlite_database, tmp_path, stop, warm, continuous=True).messages == 1

    assert sessions.events == ["start", 600, 300, "end", 300, 600]


def test_session_ends_only_after_its_idle_time(sessions: Sessions) -> None:
    times = iter([0.0, 9.0, 9.5, 19.0, 19.5])
    warm = WarmSession(MASTER, idle_seconds=10, clock=lambda: next(times))

    assert warm.stop_if_idle() is None
    warm.get()
    assert [warm.stop_if_idle(), warm.stop_if_idle()] == [10, 1]
    warm.get()
    assert [warm.stop_if_idle(), warm.stop_if_idle()] == [10, 0.5]
    assert sessions.events == ["start"]
    assert warm.stop_if_idle() is None
    assert sessions.events == ["start", "end"]
    warm.get()
    warm.stop()
    warm.stop()
    assert sessions.events == ["start", "end"] * 2


def test_run_without_messages_starts_no_spark(queue_database: QueueDatabase, sessions: Sessions, tmp_path: Path) -> None:
    done = run(queue_database, tmp_path, StopSignal(), WarmSession(MASTER))

    assert (done.state, done.batches) == ("ended", 0)
    assert sessions.events == []


@pytest.mark.parametrize(
    ("waiting", "options"),
    [
        ([0], ["-XX:TieredStopAtLevel=1 -Da=b"]),
        ([499_999, 1_499_999], ["-XX:TieredStopAtLevel=1 -Da=b"]),
        ([500_000, 0, 3_000_000], ["-Da=b"]),
        ([0, 1_500_000, 3_000_000], ["-XX:TieredStopAtLevel=1 -Da=b", "-Da=b"]),
    ],
)
def test_java_compiles_thoroughly_only_for_many_messages(sessions: Sessions, waiting: list[int], options: list[str]) -> None:
    warm = WarmSession(MASTER, {"spark.driver.extraJavaOptions": "-Da=b"})

    for count in waiting:
        warm.prepare(lambda wanted, count=count: count >= wanted)  # type: ignore[misc]
        warm.get()

    warm.stop()
    assert sessions.options == options
    assert sessions.events == ["start", "end"] * len(options)


@pytest.mark.parametrize(
    ("lefts", "answers", "waits"), [([900.0, None], [False], [900.0]), ([900.0], [True], [900.0]), ([None], [], [])]
)
def test_process_waits_for_requests_while_its_session_is_warm(
    lefts: list[float | None], answers: list[bool], waits: list[float]
) -> None:
    remaining, replies = iter(lefts), iter(answers)
    waited: list[float] = []

    class Requests(RunRequests):
        def __init__(self) -> None:
            pass

        def wait(self, seconds: float) -> bool:
            waited.append(seconds)
            return next(replies)

    assert _is_requested(Requests(), StopSignal(), lambda: next(remaining)) is (True in answers)
    assert waited == waits
