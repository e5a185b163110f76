"""`kill -9` during a batch with active senders loses and duplicates nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from sqlqueue_app.models import MessageFigures, PipelineRun
from tests.pipeline.senders import Senders, truth
from tests.pipeline.workshop import ids_in_the_lake, run
from tests.support.databases import QueueDatabase
from tests.support.filling import install, row, table

# Before and after the commit on each database; benchmarks/spark_kills.py covers all steps and random moments.
KILLED_AT = {"postgresql": ["recorded", "published one file"], "sqlite": ["synced", "committed"]}


# About ten Spark processes in sequence need more than the usual four minutes on a busy machine.
@pytest.mark.timeout(600)
def test_messages_survive_kills(queue_database: QueueDatabase, tmp_path: Path) -> None:
    install(queue_database, ENDPOINTS={"Sales": {"AUDIT_QUEUE": "audit"}})
    audit = table(queue_database, "audit")
    audit.send([row({"NServiceBus.MessageId": "first"})])
    kills = KILLED_AT.get(queue_database.vendor, ["committed"])
    with Senders(queue_database, audit, limit=900):
        codes = [run(queue_database, tmp_path, step) for step in kills]
    assert run(queue_database, tmp_path, size=5_000) == 0
    assert audit.depth().waiting == 0

    found = ids_in_the_lake(queue_database, tmp_path)
    assert codes == [-9] * len(kills)
    assert set(found) == truth(queue_database) | {"first"}
    assert set(found.values()) == {1}
    days = MessageFigures.objects.using(queue_database.alias).filter(seconds=86_400)
    assert sum(days.values_list("processed", flat=True)) == len(found)
    states = PipelineRun.objects.using(queue_database.alias).values_list("state", flat=True)
    assert Counter(states)["failed"] == len(kills)


@pytest.mark.skipif(sys.platform != "linux", reason="looks for the processes of a session in /proc")
def test_sigterm_to_all_processes_ends_the_run_in_order(sqlite_database: QueueDatabase, tmp_path: Path) -> None:
    install(sqlite_database, ENDPOINTS={"Sales": {"AUDIT_QUEUE": "audit"}})
    audit = table(sqlite_database, "audit")
    audit.send([row({"NServiceBus.MessageId": f"m-{number}"}) for number in range(5)])
    lake = tmp_path / "lake"
    command = [sys.executable, "-m", "tests.pipeline.kill_app", str(lake), "written", "3", "terminate"]

    ended = subprocess.run(
        command,
        env=sqlite_database.child_environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        start_new_session=True,
    )

    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr
    done = json.loads(ended.stdout.splitlines()[-1])
    assert (done["state"], done["messages"]) == ("stopped", 3)
    # the process itself, its JVM, and the Python started by the JVM
    assert done["terminated"] >= 3
    assert sorted(ids_in_the_lake(sqlite_database, lake)) == ["m-0", "m-1", "m-2"]
    assert audit.depth().waiting == 2
