"""The error queue is copied, each row once, and never emptied; the outcome of each copy is tracked."""

from __future__ import annotations

import uuid
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet
import pytest
from django.db import transaction

from sqlqueue_app.conf import get_settings
from sqlqueue_app.failures.queries import read_all_failures
from sqlqueue_app.messages.failure_groups import unique_message_id
from sqlqueue_app.messages.headers import read_headers
from sqlqueue_app.models import CopyOutcome, FailedMessage, FailureStatus, LakeBatch, LakeCopy, LakeFile, PipelineRun
from sqlqueue_app.pipeline.copying import ErrorQueueCopier, OutcomeTracker, outcome_of
from sqlqueue_app.pipeline.tools import Tools
from sqlqueue_app.tables.queue import QueueTable
from sqlqueue_app.tables.row_selection import remove_rows
from tests.pipeline.workshop import tools_of
from tests.support.databases import QueueDatabase
from tests.support.error_rows import FAILED_AT, acknowledgement, failed
from tests.support.filling import install, row, table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def errors(queue_database: QueueDatabase) -> QueueTable:
    install(queue_database, ENDPOINTS={"Sales": {}})
    return table(queue_database, "error")


@pytest.fixture
def tools(queue_database: QueueDatabase, errors: QueueTable, spark: SparkSession, tmp_path: Path) -> Tools:
    del errors
    return tools_of(queue_database, spark, tmp_path / "lake")


@pytest.fixture
def queue(tools: Tools, errors: QueueTable) -> ErrorQueueCopier:
    return ErrorQueueCopier(tools, errors, "error")


def copies(database: QueueDatabase) -> list[LakeCopy]:
    return list(LakeCopy.objects.using(database.alias).order_by("row_version"))


def in_the_lake(database: QueueDatabase, folder: Path, name: str) -> list[int]:
    files = LakeFile.objects.using(database.alias).filter(table=name, retired_at=None)
    return sorted(
        number
        for each in files
        for number in pyarrow.parquet.read_table(folder / each.path, partitioning=None).column("row_version").to_pylist()
    )


def test_each_row_is_copied_once_and_stays(
    queue_database: QueueDatabase, errors: QueueTable, queue: ErrorQueueCopier, tmp_path: Path
) -> None:
    errors.send([failed("m-1"), failed("m-2"), row("no json"), failed("m-3")])
    first = queue.copy(3)
    second = queue.copy(3)
    assert queue.copy(3) is None
    errors.send([failed("m-4")])
    third = queue.copy(3)

    numbers = errors.row_versions(10)
    assert len(numbers) == 5
    assert [each.rows for each in (first, second, third) if each is not None] == [3, 1, 1]
    assert in_the_lake(queue_database, tmp_path / "lake", "failures") == [each for each in numbers if each != numbers[2]]
    assert in_the_lake(queue_database, tmp_path / "lake", "unreadable") == [numbers[2]]
    assert [each.row_version for each in copies(queue_database)] == numbers
    assert [each.message_id for each in copies(queue_database) if each.row_version != numbers[2]] == ["m-1", "m-2", "m-3", "m-4"]
    (run,) = PipelineRun.objects.using(queue_database.alias).all()
    assert (run.batches, run.failures, run.unreadable) == (3, 4, 1)


def test_long_message_id_is_cut(queue_database: QueueDatabase, errors: QueueTable, queue: ErrorQueueCopier) -> None:
    errors.send([failed("\U0001f600" * 300)])

    queue.copy(3)

    assert [each.message_id for each in copies(queue_database)] == ["\U0001f600" * 127]


def test_acknowledgements_are_not_copied(queue_database: QueueDatabase, errors: QueueTable, queue: ErrorQueueCopier) -> None:
    errors.send([acknowledgement(uuid.uuid4()), failed("m-1"), acknowledgement(uuid.uuid4())])

    copied = queue.copy(10)

    assert copied is not None
    assert copied.rows == 1
    assert queue.copy(10) is None
    assert [each.message_id for each in copies(queue_database)] == ["m-1"]


def test_ids_in_bytes_are_copied_once(sqlite_database: QueueDatabase, spark: SparkSession, tmp_path: Path) -> None:
    install(sqlite_database, ENDPOINTS={"Sales": {}})
    errors = table(sqlite_database, "error")
    with sqlite_database.connection.cursor() as cursor:
        cursor.execute("INSERT INTO error (Id, Recoverable, Headers) VALUES (x'ff00', 1, '{}'), (x'fe00', 1, '{}')")
    queue = ErrorQueueCopier(tools_of(sqlite_database, spark, tmp_path / "lake"), errors, "error")

    copied = queue.copy(10)

    assert copied is not None
    assert copied.rows == 2
    assert queue.copy(10) is None


def test_row_that_returns_is_not_copied_again(
    queue_database: QueueDatabase, errors: QueueTable, queue: ErrorQueueCopier, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors.send([failed("m-1"), failed("m-2")])
    queue.copy(10)
    # as on SQL Server while another transaction holds the rows
    with monkeypatch.context() as patched:
        patched.setattr("sqlqueue_app.pipeline.copying.row_ids", lambda _table: iter(()))
        assert queue.copy(10) is None
    OutcomeTracker(tools).update()
    assert {each.fate for each in copies(queue_database)} == {CopyOutcome.GONE}
    errors.send([failed("m-3")])
    read_all_failures(get_settings())

    copied = queue.copy(10)
    OutcomeTracker(tools).update()

    assert copied is not None
    assert copied.rows == 1
    assert [each.message_id for each in copies(queue_database)] == ["m-1", "m-2", "m-3"]
    assert {(each.left_at, each.fate) for each in copies(queue_database)} == {(None, CopyOutcome.WAITING)}


def test_rows_between_copied_ones_are_copied(
    queue_database: QueueDatabase, errors: QueueTable, queue: ErrorQueueCopier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sqlqueue_app.spark.lake_files._MAX_IN_LIST", 1)
    errors.send([failed(f"m-{number}") for number in range(5)])
    numbers = errors.row_versions(10)
    # committed late: the rows around it are already in the lake
    alias = queue_database.alias
    queue.copy(10)
    LakeCopy.objects.using(alias).filter(row_version__in=[numbers[1], numbers[3]]).delete()

    copied = queue.copy(10)

    assert copied is not None
    assert (copied.rows, copied.lowest, copied.highest) == (2, numbers[1], numbers[3])


def test_two_pipelines_copy_a_row_once(
    queue_database: QueueDatabase, errors: QueueTable, queue: ErrorQueueCopier, tools: Tools
) -> None:
    errors.send([failed("m-1"), failed("m-2")])
    number = errors.row_versions(1)[0]
    alias = queue_database.alias

    def meanwhile(name: str) -> None:
        if name == "synced" and not LakeCopy.objects.using(alias).exists():
            batch = LakeBatch.objects.using(alias).create(
                id=uuid.uuid4(), kind="failures", lake_id=tools.manifest.lake_id, committed_at=FAILED_AT, published_at=FAILED_AT
            )
            (native,) = [str(each.id) for each in errors.peek(1)]
            LakeCopy.objects.using(alias).create(
                lake_id=tools.manifest.lake_id,
                queue="error",
                row_version=number,
                native_id=native,
                copied_at=FAILED_AT,
                batch=batch,
            )

    object.__setattr__(tools, "step", meanwhile)
    with pytest.raises(Exception, match=r"(?i)unique|duplicate"):
        queue.copy(10)

    assert LakeBatch.objects.using(alias).count() == 1
    assert tools.storage.names("_inflight") == []
    copied = queue.copy(10)
    assert copied is not None
    assert copied.rows == 1


# --- outcomes -----------------------------------------------------------------------------------------------------------------


def copy_of(**values: object) -> LakeCopy:
    return LakeCopy(**{"queue": "error", "row_version": 7, "fate": CopyOutcome.WAITING, **values})


def failure_of(status: FailureStatus, row_version: int | None = None) -> FailedMessage:
    return FailedMessage(queue="error", status=status, row_version=row_version)


LEFT: dict[str, object] = {"left_at": FAILED_AT}
CASES: list[tuple[dict[str, object], FailedMessage | None, CopyOutcome]] = [
    ({}, None, CopyOutcome.WAITING),
    ({}, failure_of(FailureStatus.UNRESOLVED, 7), CopyOutcome.WAITING),
    ({}, failure_of(FailureStatus.ARCHIVED, 7), CopyOutcome.ARCHIVED),
    ({"fate": CopyOutcome.ARCHIVED}, failure_of(FailureStatus.UNRESOLVED, 7), CopyOutcome.WAITING),
    (LEFT, None, CopyOutcome.GONE),
    ({**LEFT, "fate": CopyOutcome.RETRIED}, None, CopyOutcome.RETRIED),
    (LEFT, failure_of(FailureStatus.RETRY_ISSUED), CopyOutcome.RETRIED),
    (LEFT, failure_of(FailureStatus.RESOLVED), CopyOutcome.RESOLVED),
    ({**LEFT, "fate": CopyOutcome.RETRIED}, failure_of(FailureStatus.RESOLVED), CopyOutcome.RESOLVED),
    (LEFT, failure_of(FailureStatus.DELETED), CopyOutcome.DELETED),
    (LEFT, failure_of(FailureStatus.GONE), CopyOutcome.GONE),
    # the index has not been updated yet
    (LEFT, failure_of(FailureStatus.UNRESOLVED, 7), CopyOutcome.WAITING),
    ({**LEFT, "fate": CopyOutcome.ARCHIVED}, failure_of(FailureStatus.ARCHIVED, 7), CopyOutcome.ARCHIVED),
    # retried and failed again
    (LEFT, failure_of(FailureStatus.UNRESOLVED, 9), CopyOutcome.RETRIED),
]


@pytest.mark.parametrize(("copy", "failure", "fate"), CASES)
def test_outcome_follows_the_failure(copy: dict[str, object], failure: FailedMessage | None, fate: CopyOutcome) -> None:
    assert outcome_of(copy_of(**copy), failure) == fate


def test_outcomes_are_recorded_once_and_written_to_the_lake(
    queue_database: QueueDatabase, errors: QueueTable, queue: ErrorQueueCopier, tools: Tools, tmp_path: Path
) -> None:
    alias = queue_database.alias
    sent = [failed(f"m-{number}") for number in range(3)]
    errors.send(sent)
    queue.copy(10)
    fates = OutcomeTracker(tools)
    assert fates.update() == 0
    numbers = errors.row_versions(10)
    later = FAILED_AT + timedelta(hours=1)
    ids = [unique_message_id(read_headers(each.headers), native_id=each.id) for each in sent]
    for unique, status in zip(ids, [FailureStatus.RETRY_ISSUED, FailureStatus.ARCHIVED], strict=False):
        FailedMessage.objects.using(alias).create(
            pk=unique, status=status, status_at=later, queue="error", message_id="m", first_failed_at=FAILED_AT, failed_at=FAILED_AT
        )
    for each, unique in zip(copies(queue_database), ids, strict=True):
        LakeCopy.objects.using(alias).filter(pk=each.pk).update(unique_message_id=str(unique))
    with transaction.atomic(using=alias):
        remove_rows(errors, [numbers[0], numbers[2]])
    queue.copy(10)

    assert OutcomeTracker(tools).update() == 3
    assert [each.fate for each in copies(queue_database)] == ["retried", "archived", "gone"]
    FailedMessage.objects.using(alias).filter(pk=ids[0]).update(status=FailureStatus.RESOLVED, status_at=later)
    assert OutcomeTracker(tools).update() == 1
    assert OutcomeTracker(tools).update() == 0

    files = LakeFile.objects.using(alias).filter(table="fates").order_by("pk")
    rows = [
        each for file in files for each in pyarrow.parquet.read_table(tmp_path / "lake" / file.path, partitioning=None).to_pylist()
    ]
    assert [(each["row_version"], each["fate"]) for each in rows if each["row_version"] == numbers[0]] == [
        (numbers[0], "retried"),
        (numbers[0], "resolved"),
    ]
    assert {each["fate_at"] for each in rows if each["row_version"] == numbers[0]} == {later}
