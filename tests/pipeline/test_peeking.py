"""A queue with another consumer: each row is copied to the lake once, none is deleted, despite interruptions and late commits."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from django.db import connections

from sqlqueue_app.messages.errors import ConfigurationError, QueueNotFound
from sqlqueue_app.models import LakeBatch, LakePosition, MessageFigures, PipelineRun
from sqlqueue_app.pipeline.manifest import Step, no_step
from sqlqueue_app.pipeline.storage import BatchLost
from sqlqueue_app.pipeline.taking import AuditQueueCopier
from sqlqueue_app.receiving.stopping import StopSignal
from sqlqueue_app.tables.row_selection import remove_rows
from tests.pipeline.lakes import Interrupted, in_the_lake, interrupt_at
from tests.pipeline.senders import slow_sender
from tests.pipeline.workshop import tools_of
from tests.support.databases import QueueDatabase
from tests.support.filling import install, message, row, table
from tests.support.sqlserver import needs
from tests.support.waiting import join_all

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The other steps are tested with batches that are taken.
STEPS = ["synced", "moved on", "committed", "published"]


class Shop:
    """An audit queue and pipelines that peek at it."""

    def __init__(self, database: QueueDatabase, spark: SparkSession, lake: Path) -> None:
        install(database, ENDPOINTS={"Sales": {"AUDIT_QUEUE": "audit"}})
        self.audit = table(database, "audit")
        self.database = database
        self.lake = lake
        self._spark = spark

    def queue(self, step: Step = no_step, settle_seconds: float = 0) -> AuditQueueCopier:
        """The queue in a new pipeline process after its recovery."""
        tools = tools_of(self.database, self._spark, self.lake, step=step)
        tools.manifest.recover()
        return AuditQueueCopier(tools, self.audit, "audit", StopSignal(), settle_seconds)

    def numbers(self) -> list[int]:
        """The row versions in the queue."""
        return self.audit.row_versions(1000)

    def copied(self) -> list[int]:
        """The row versions in the lake."""
        return in_the_lake(self.database, self.lake)

    def position(self) -> int:
        """The position up to which rows are copied."""
        return LakePosition.objects.using(self.database.alias).get().row_version


@pytest.fixture
def shop(queue_database: QueueDatabase, spark: SparkSession, tmp_path: Path) -> Shop:
    return Shop(queue_database, spark, tmp_path)


@pytest.fixture
def busy_shop(shop: Shop) -> Shop:
    """A shop on a database with concurrent writers, where rows may be committed out of order."""
    if shop.database.vendor == "sqlite":
        pytest.skip("SQLite has one writer at a time")
    return shop


@pytest.fixture
def postgresql_shop(postgresql_database: QueueDatabase, spark: SparkSession, tmp_path: Path) -> Shop:
    return Shop(postgresql_database, spark, tmp_path)


def test_rows_are_copied_and_stay(shop: Shop) -> None:
    shop.audit.send([*(message({"n": number}) for number in range(6)), row("not json"), message()])
    numbers = shop.numbers()
    queue = shop.queue()

    first, last = queue.take(5), queue.take(5)

    assert first is not None
    assert last is not None
    assert (first.rows, first.unreadable, first.was_full) == (5, 0, True)
    assert (last.rows, last.unreadable, last.was_full) == (3, 1, False)
    assert queue.take(5) is None
    assert shop.queue().take(5) is None
    assert queue.left is None
    assert shop.numbers() == shop.copied() == numbers
    assert shop.position() == numbers[-1]
    alias = shop.database.alias
    batches = LakeBatch.objects.using(alias).order_by("lowest")
    assert [(each.kind, each.queue, each.lowest, each.highest) for each in batches] == [
        ("peek", "audit", numbers[0], numbers[4]),
        ("peek", "audit", numbers[5], numbers[7]),
    ]
    ran = PipelineRun.objects.using(alias).earliest("pk")
    assert (ran.batches, ran.messages, ran.unreadable) == (2, 7, 1)
    assert sum(MessageFigures.objects.using(alias).filter(seconds=86_400).values_list("processed", flat=True)) == 7
    shop.audit.send([message()])
    assert shop.queue().take(5) is not None
    assert shop.copied() == shop.numbers()


@pytest.mark.parametrize("interrupted_at", STEPS)
def test_interrupted_batch_is_copied_once(shop: Shop, interrupted_at: str) -> None:
    shop.audit.send([message(), row("not json"), message()])

    with pytest.raises(Interrupted):
        shop.queue(interrupt_at(interrupted_at)).take(10)
    after = shop.queue()
    is_committed = STEPS.index(interrupted_at) >= STEPS.index("committed")
    assert shop.copied() == (shop.numbers() if is_committed else [])
    assert (after.take(10) is None) is is_committed

    assert shop.copied() == shop.numbers()
    assert len(shop.numbers()) == 3


def test_rows_taken_by_another_program_are_tolerated(shop: Shop) -> None:
    shop.audit.send([message() for _ in range(5)])
    numbers = shop.numbers()

    def take_some(name: str) -> None:
        if name == "chosen":
            remove_rows(shop.audit, [numbers[1], numbers[4]])
        elif name == "synced":
            remove_rows(shop.audit, [numbers[2]])

    shop.queue(take_some).take(10)
    shop.audit.send([message()])
    remove_rows(shop.audit, numbers)
    shop.queue().take(10)

    assert shop.copied() == [numbers[0], numbers[2], numbers[3], *shop.numbers()]


def test_only_one_of_two_pipelines_copies_the_rows(shop: Shop) -> None:
    shop.audit.send([message() for _ in range(5)])
    steps: list[str] = []
    other = shop.queue()

    def another(name: str) -> None:
        steps.append(name)
        if name == "synced" and steps.count(name) == 1:
            other.take(3)

    queue = shop.queue(another)
    with pytest.raises(BatchLost, match=r"another pipeline has already copied rows of .*audit.*: this batch is rolled back"):
        queue.take(10)
    queue.take(10)

    assert shop.copied() == shop.numbers()


def test_copying_waits_for_rows_committed_late(busy_shop: Shop) -> None:
    shop = busy_shop
    shop.audit.send([message()])
    queue = shop.queue()
    assert queue.take(10) is not None
    with slow_sender(shop.database, shop.audit):
        shop.audit.send([message()])
        assert queue.take(10) is None
        assert queue.left == (
            f"1 transaction still writing to {shop.audit.qualified} after 0 s may still commit rows below the existing ones: "
            "these are left for the next run"
        )
        assert shop.queue().take(10) is None
        assert len(shop.copied()) == 1
    assert queue.take(10) is not None

    assert queue.left is None
    assert len(shop.copied()) == 3
    assert shop.copied() == shop.numbers()


def test_run_waits_for_open_senders(busy_shop: Shop) -> None:
    shop = busy_shop
    queue = shop.queue(settle_seconds=60)

    def copy() -> None:
        try:
            queue.take(10)
        finally:
            connections.close_all()

    sender = slow_sender(shop.database, shop.audit)
    sender.__enter__()
    shop.audit.send([message()])
    copier = threading.Thread(target=copy)
    copier.start()
    sender.__exit__(None, None, None)
    join_all([copier])

    assert shop.copied() == shop.numbers()
    assert len(shop.numbers()) == 2


def test_copier_does_not_wait_for_senders_if_everything_is_copied(busy_shop: Shop) -> None:
    busy_shop.audit.send([message()])
    assert busy_shop.queue().take(5) is not None
    with slow_sender(busy_shop.database, busy_shop.audit):
        # another run, which does not know yet which rows are settled
        queue = busy_shop.queue()
        assert queue.take(5) is None
        assert queue.left is None


def test_full_batches_are_copied_without_waiting(busy_shop: Shop) -> None:
    shop = busy_shop
    shop.audit.send([message() for _ in range(4)])
    settled = shop.numbers()
    queue = shop.queue(settle_seconds=60)
    assert queue.take(2) is not None
    with slow_sender(shop.database, shop.audit):
        shop.audit.send([message()])
        assert queue.take(2) is not None

        assert shop.copied() == settled


def test_sequence_with_a_cache_is_refused(postgresql_shop: Shop) -> None:
    shop = postgresql_shop
    with shop.database.connection.cursor() as cursor:
        cursor.execute("SELECT pg_get_serial_sequence(%s, 'seq')", [shop.audit.qualified])
        cursor.execute(f"ALTER SEQUENCE {cursor.fetchone()[0]} CACHE 20")

    with pytest.raises(ConfigurationError, match="reserves 20 numbers at once"):
        shop.queue().take(10)


@pytest.mark.parametrize(("before", "after"), [(3, 1), (2, 4)])
def test_recreated_table_is_copied_from_its_first_row(
    shop: Shop, caplog: pytest.LogCaptureFixture, before: int, after: int
) -> None:
    if after < before:
        # only the identity shows that the numbers restarted: there is no row at the position to compare
        needs(shop.database.vendor, "IDENT_CURRENT of a name with its database")
    shop.audit.send([message() for _ in range(before)])
    shop.queue().take(10)
    with shop.database.connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE {shop.audit.qualified}")
    with pytest.raises(QueueNotFound):
        shop.queue().take(10)
    install(shop.database, ENDPOINTS={"Sales": {"AUDIT_QUEUE": "audit"}})
    shop.audit.send([message() for _ in range(after)])
    with pytest.raises(Interrupted):
        shop.queue(interrupt_at("synced")).take(10)
    shop.queue().take(10)

    assert shop.copied() == sorted([*range(1, before + 1), *range(1, after + 1)])
    assert shop.position() == after
    events = [record.getMessage() for record in caplog.records if getattr(record, "event", "") == "pipeline_table_anew"]
    assert events == [
        f"{shop.audit.qualified} was recreated since it was copied up to row {before}: copying restarts at its first row"
    ]


def test_emptied_queue_is_not_treated_as_recreated(shop: Shop) -> None:
    shop.audit.send([message() for _ in range(3)])
    numbers = shop.numbers()
    shop.queue().take(10)
    remove_rows(shop.audit, numbers[1:])
    assert shop.queue().take(10) is None
    remove_rows(shop.audit, numbers)
    assert shop.queue().take(10) is None
    shop.audit.send([message()])
    shop.queue().take(10)

    assert shop.copied() == [*numbers, *shop.numbers()]
