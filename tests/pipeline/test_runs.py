"""One pipeline runs at a time, and its row records its outcome."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import pytest

from sqlqueue_app.models import PipelineRun, RunState
from sqlqueue_app.pipeline import manifest
from sqlqueue_app.pipeline.manifest import Heartbeats, begin_run, count_in_run, end_run
from sqlqueue_app.pipeline.storage import PipelineBusy
from sqlqueue_app.tables.connections import database_now
from tests.support.databases import QueueDatabase
from tests.support.waiting import poll_until


def begin(database: QueueDatabase) -> PipelineRun:
    return begin_run(database.alias, master="local[2]", lake="/srv/lake", options={"batch_size": 5})


def other(database: QueueDatabase, **values: Any) -> PipelineRun:
    """A run of another process that has just started."""
    now = database_now(database.alias)
    common = {"started_at": now, "heartbeat_at": now, "host": "mill", "pid": 7, "master": "local", "lake": "/srv/lake"}
    return PipelineRun.objects.using(database.alias).create(**{**common, **values})


def again(database: QueueDatabase, run: PipelineRun) -> PipelineRun:
    return PipelineRun.objects.using(database.alias).get(pk=run.pk)


def test_run_has_a_row_from_start_to_end(queue_database: QueueDatabase) -> None:
    run = begin(queue_database)
    count_in_run(queue_database.alias, run, batches=1, messages=5, bytes=70)
    count_in_run(queue_database.alias, run, batches=1, messages=2)
    end_run(queue_database.alias, run, RunState.ENDED)

    found = again(queue_database, run)
    assert (found.state, found.pid, found.error, found.options) == ("ended", os.getpid(), "", {"batch_size": 5})
    assert (found.batches, found.messages, found.failures, found.bytes) == (2, 7, 0, 70)
    assert found.started_at is not None
    assert found.ended_at is not None
    assert found.started_at <= found.ended_at


def test_long_list_of_masters_is_cut(queue_database: QueueDatabase) -> None:
    masters = "spark://" + ",".join(f"master-{number}.example.com:7077" for number in range(20))

    run = begin_run(queue_database.alias, master=masters, lake="/srv/lake", options={})

    assert again(queue_database, run).master == masters[:255]


def test_second_pipeline_is_refused_with_the_first_named(queue_database: QueueDatabase) -> None:
    other(queue_database)

    with pytest.raises(
        PipelineBusy, match=r"a pipeline is already running: process 7 on mill, since .* UTC, last heartbeat \d+ s ago"
    ):
        begin(queue_database)
    assert PipelineRun.objects.using(queue_database.alias).count() == 1


def test_live_process_on_the_same_machine_blocks_a_second_run(queue_database: QueueDatabase) -> None:
    other(queue_database, host=manifest._host(), pid=os.getppid())

    with pytest.raises(PipelineBusy, match=f"process {os.getppid()} on"):
        begin(queue_database)


@pytest.mark.parametrize("dead", ["silent", "killed", "restarted under the same number"])
def test_killed_run_does_not_block_the_next(queue_database: QueueDatabase, dead: str) -> None:
    cases: dict[str, dict[str, Any]] = {
        "silent": {"heartbeat_at": database_now(queue_database.alias) - timedelta(minutes=3)},
        "killed": {"host": manifest._host(), "pid": 2**22 + 5},
        "restarted under the same number": {"host": manifest._host(), "pid": os.getpid()},
    }
    run = other(queue_database, **cases[dead])

    begin(queue_database)

    found = again(queue_database, run)
    assert (found.state, found.error) == ("failed", "the process was killed, or its machine was lost")


def test_run_sends_heartbeats(queue_database: QueueDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "HEARTBEAT_SECONDS", 0.01)
    run = other(queue_database, heartbeat_at=database_now(queue_database.alias) - timedelta(minutes=1))
    before = run.heartbeat_at
    assert before is not None

    with Heartbeats(queue_database.alias, run):
        poll_until(lambda: again(queue_database, run).heartbeat_at > before, what="a heartbeat")
