"""Processes without heartbeats: on SQLite a writing handler blocks heartbeats, so the process itself is checked."""

from __future__ import annotations

import io
import json
import os
import signal
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from django.core.management import call_command

from sqlqueue_app.conf import get_settings
from sqlqueue_app.models import Instance
from sqlqueue_app.receiving.instances import is_dead, register_instance
from tests.support.bench import Bench
from tests.support.clocks import DatabaseClock
from tests.support.pages import client_of
from tests.support.worker_processes import in_handler, prepare, worker_process

# The identity of a process is read from /proc; without it, only heartbeats decide.
needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc")
LIST = "/admin/sqlqueue_app/instance/"


def printed(*arguments: str) -> tuple[int, str]:
    """The exit code of a command, and what it prints."""
    out = io.StringIO()
    try:
        call_command(*arguments, stdout=out)
    except SystemExit as ended:
        return int(str(ended.code)), out.getvalue()
    return 0, out.getvalue()


def states() -> list[str]:
    return [each["state"] for each in json.loads(printed("sqlqueue_status", "--format", "json")[1])["instances"]]


@needs_proc
def test_process_with_blocked_heartbeats_is_checked_itself(sqlite_bench: Bench, tmp_path: Path) -> None:
    prepare(sqlite_bench)
    sqlite_bench.put_message("Worker.Hang", {"number": 1, "released": str(tmp_path / "never")})
    # Signing in writes, so it must happen before the handler holds the lock.
    browser = client_of("superuser")
    clock = DatabaseClock(sqlite_bench.database)
    with worker_process(sqlite_bench) as process, clock.running():
        in_handler(process)

        clock.jump(timedelta(seconds=70))
        assert states() == ["alive"]
        assert printed("sqlqueue_health") == (0, "OK: 2 queues are well\n")
        page = browser.get(LIST).content.decode()
        assert "Alive" in page
        assert "Dead" not in page

        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert states() == ["dead"], "the process is suspended"
        process.send_signal(signal.SIGCONT)
        os.waitid(os.P_PID, process.pid, os.WCONTINUED | os.WNOWAIT)
        assert states() == ["alive"]

        clock.jump(timedelta(seconds=600))
        assert states() == [], "INSTANCE_EXPIRY is over"
        clock.jump(timedelta(seconds=-600))

        process.kill()
        # Its parent has not read its exit code yet, so the pid is still in use.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        for _ in range(2):
            assert states() == ["dead"]
            code, text = printed("sqlqueue_health")
            assert code == 2, "the message waits, and no live process receives"
            assert f"the process {process.pid} of Sales" in text
            assert "is dead: no heartbeat for" in text
            assert "Dead" in browser.get(LIST).content.decode()
            process.wait(60)


def registered(bench: Bench) -> Instance:
    """The row of this process."""
    made = register_instance(get_settings().endpoint("Sales"), alias=bench.database.alias, concurrency=1)
    return Instance.objects.using(made.alias).get(pk=made.row_id)


def dead_after(row: Instance, seconds: float) -> bool:
    now: datetime = row.heartbeat_at + timedelta(seconds=seconds)
    return is_dead(row, now)


def test_silent_process_is_checked_only_on_sqlite(bench: Bench) -> None:
    row = registered(bench)
    checked = bench.database.vendor == "sqlite" and Path("/proc/self/stat").exists()
    assert (row.process_identity is not None) is Path("/proc/self/stat").exists()
    assert [dead_after(row, seconds) for seconds in (40, 41, 600, 601)] == [False, not checked, not checked, True]


@needs_proc
@pytest.mark.parametrize("part", ["boot", "pid namespace", "start"])
def test_same_pid_elsewhere_is_another_process(sqlite_bench: Bench, part: str) -> None:
    """The pid is from another boot or from a container with the same host name, or a new process has it now."""
    row = registered(sqlite_bench)
    parts = dict(zip(("boot", "pid namespace", "start"), str(row.process_identity).split(), strict=True))
    row.process_identity = " ".join({**parts, part: parts[part].replace(parts[part][-2], "x")}.values())
    assert dead_after(row, 41)


def test_worker_of_an_earlier_version_is_judged_by_its_heartbeat(sqlite_bench: Bench) -> None:
    row = registered(sqlite_bench)
    row.process_identity = None
    assert dead_after(row, 41)
