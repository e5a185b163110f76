"""A complete run, as by the command."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import call_command
from django.db import connections

from sqlqueue_app.conf import get_settings
from sqlqueue_app.failures.queries import read_all_failures
from sqlqueue_app.messages.errors import SqlQueueError
from sqlqueue_app.models import CopyOutcome, FailureStatus, LakeCopy, LakeFile, PipelineRun
from sqlqueue_app.pipeline import run as run_module
from sqlqueue_app.pipeline.run import PipelineProgress, options_of, queues_of, run_pipeline
from sqlqueue_app.pipeline.storage import PipelineBusy, PipelineError
from sqlqueue_app.receiving.stopping import StopSignal
from sqlqueue_app.status.queues import QueueKind
from sqlqueue_app.tables.queue import QueueTable
from sqlqueue_app.tables.row_selection import remove_rows
from tests.support.databases import QueueDatabase
from tests.support.error_rows import failed
from tests.support.filling import install, message, row, table
from tests.support.spark import CONF, MASTER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ENDPOINTS: dict[str, Any] = {
    "Sales": {"AUDIT_QUEUE": "audit"},
    "Billing": {"AUDIT_QUEUE": "audit.billing", "ERROR_QUEUE": "error.billing"},
}


@pytest.fixture
def database(queue_database: QueueDatabase, spark: SparkSession, tmp_path: Path) -> QueueDatabase:
    del spark
    endpoints = json.loads(json.dumps(ENDPOINTS))
    if queue_database.vendor == "postgresql":
        endpoints["Billing"] = {"AUDIT_QUEUE": '"audit.billing"', "ERROR_QUEUE": '"error.billing"'}
    pipeline = {"LAKE": str(tmp_path / "lake"), "MASTER": MASTER, "SPARK": CONF, "BATCH_SIZE": 4, "EVERY": 0.1}
    install(queue_database, ENDPOINTS=endpoints, PIPELINE=pipeline)
    return queue_database


def run(stop: StopSignal | None = None, **options: Any) -> PipelineProgress:
    settings = get_settings()
    return run_pipeline(settings, options_of(settings, **options), stop or StopSignal())


def test_command_takes_and_copies_and_prints_the_result(database: QueueDatabase, capsys: pytest.CaptureFixture[str]) -> None:
    table(database, "audit").send([message({"n": number}) for number in range(9)] + [row("unreadable")])
    table(database, "audit.billing").send([message()])
    table(database, "error").send([failed("m-1")])
    table(database, "error.billing").send([failed("m-2"), failed("m-3")])
    out = io.StringIO()

    call_command("run_sqlqueue_pipeline", "--format", "json", stdout=out)

    output = json.loads(out.getvalue())
    (ran,) = PipelineRun.objects.using(database.alias).all()
    assert output == {
        "batches": 6, "messages": 10, "failures": 3, "unreadable": 1, "bytes": ran.bytes, "finished": 0, "fates": 0,
        "compacted": 0, "retired": 0, "state": "ended", "problems": [],
    }  # fmt: skip
    assert (ran.state, ran.batches, ran.messages, ran.failures, ran.unreadable, ran.master) == ("ended", 6, 10, 3, 1, MASTER)
    assert ran.options["batch_size"] == 4
    assert table(database, "audit").depth().waiting == 0
    assert table(database, "error.billing").depth().waiting == 2
    out = io.StringIO()
    call_command("run_sqlqueue_pipeline", stdout=out)
    assert out.getvalue() == "0 messages taken, 0 failures copied, in 0 batches\n"
    assert capsys.readouterr().err == ""


def test_run_records_the_outcome_of_a_failure(database: QueueDatabase) -> None:
    errors = table(database, "error")
    errors.send([failed("m-1"), failed("m-2")])
    assert run().failures == 2
    first = errors.row_versions(1)[0]
    remove_rows(errors, [first])
    read_all_failures(get_settings())
    alias = database.alias
    copy = LakeCopy.objects.using(alias).get(row_version=first)
    from sqlqueue_app.models import FailedMessage

    FailedMessage.objects.using(alias).filter(pk=copy.unique_message_id).update(status=FailureStatus.RESOLVED, row_version=None)

    assert run().fates == 1

    fates = dict(LakeCopy.objects.using(alias).values_list("message_id", "fate"))
    assert fates == {"m-1": CopyOutcome.RESOLVED, "m-2": CopyOutcome.WAITING}
    assert LakeFile.objects.using(alias).filter(table="fates").count() == 1


def test_continuous_run_stops_between_two_batches(database: QueueDatabase) -> None:
    table(database, "audit").send([message() for _ in range(12)])
    stop = StopSignal()
    settings = get_settings()
    options = options_of(settings, continuous=True)

    done = run_pipeline(settings, options, stop, progress=lambda _: stop.set())

    assert (done.state, done.messages) == ("stopped", 4)
    assert table(database, "audit").depth().waiting == 8
    (ran,) = PipelineRun.objects.using(database.alias).all()
    assert (ran.state, ran.messages) == ("stopped", 4)


def test_lost_connection_is_the_recorded_reason(database: QueueDatabase) -> None:
    table(database, "audit").send([message()])
    settings, alias = get_settings(), database.alias

    with pytest.raises(SqlQueueError) as raised:
        run_pipeline(settings, options_of(settings), StopSignal(), step=lambda _: connections[alias].connection.close())

    (ran,) = PipelineRun.objects.using(alias).all()
    assert (ran.state, ran.error) == ("failed", str(raised.value))
    assert ran.ended_at is not None


def test_run_records_a_local_lake_by_its_absolute_path(
    sqlite_database: QueueDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The site that shows the run may have another working directory."""
    install(sqlite_database, ENDPOINTS={"Sales": {}})
    monkeypatch.chdir(tmp_path)

    lakes = {
        given: options_of(get_settings(), lake=given).lake for given in ("lake", f"file://{tmp_path}/lake", "s3a://bucket/lake")
    }

    assert lakes == {
        "lake": f"{tmp_path}/lake",
        f"file://{tmp_path}/lake": f"{tmp_path}/lake",
        "s3a://bucket/lake": "s3a://bucket/lake",
    }


def test_queue_that_is_named_twice_is_read_once(sqlite_database: QueueDatabase, tmp_path: Path) -> None:
    install(sqlite_database, ENDPOINTS={"Sales": {}}, PIPELINE={"LAKE": str(tmp_path), "AUDIT_QUEUES": ["audit", "Audit", "audit"]})

    assert [each.name for each in queues_of(get_settings(), QueueKind.AUDIT)] == ["audit"]


def test_missing_queue_is_reported_and_the_others_are_processed(database: QueueDatabase) -> None:
    with database.connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE {table(database, 'audit').qualified}")
    table(database, "audit.billing").send([message()])

    done = run()

    assert done.messages == 1
    remedy = "run sqlqueue_install or migrate, or correct the settings that name it"
    assert done.problems == [f"{table(database, 'audit').qualified} does not exist: {remedy}"]


def test_failed_run_records_its_error(database: QueueDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    table(database, "audit").send([message()])
    lost: list[str] = []

    def take_one(audit: QueueTable) -> None:
        audit.send([message()])
        remove_rows(audit, audit.row_versions(1))

    settings = get_settings()
    monkeypatch.setattr(run_module, "_MAX_LOST_BATCHES", 2)
    with pytest.raises(PipelineError, match="2 batches in a row were lost to a receiver of"):
        run_pipeline(
            settings,
            options_of(settings),
            StopSignal(),
            step=lambda name: take_one(table(database, "audit")) if name == "synced" else lost.append(name),
        )
    (ran,) = PipelineRun.objects.using(database.alias).all()
    assert ran.state == "failed"
    assert "were lost to a receiver of" in ran.error
    assert table(database, "audit").depth().waiting == 1


def test_second_run_is_refused_while_one_is_running(database: QueueDatabase) -> None:
    settings = get_settings()
    table(database, "audit").send([message()])
    output: list[str] = []

    def another(name: str) -> None:
        if name == "chosen":
            PipelineRun.objects.using(database.alias).update(host="mill")
            with pytest.raises(PipelineBusy) as caught:
                run()
            output.append(str(caught.value))

    run_pipeline(settings, options_of(settings), StopSignal(), step=another)

    assert len(output) == 1
    assert output[0].startswith("a pipeline is already running: process ")
