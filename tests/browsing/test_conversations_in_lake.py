"""A conversation joins messages of the queues and the lake, each once."""

from __future__ import annotations

import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from sqlqueue_app.browsing.conversations import ConversationResult, read_conversation
from sqlqueue_app.conf import get_settings
from sqlqueue_app.messages.headers import read_headers
from sqlqueue_app.models import LakeBatch, LakeCopy, LakeFile
from sqlqueue_app.tables.rows import NewRow
from tests.support.conversations import BEGIN, audited, failed_one, sent
from tests.support.databases import QueueDatabase
from tests.support.failing import fail
from tests.support.filling import install, table
from tests.support.lakes import write
from tests.support.pages import Markup, client_of

pytest.importorskip("duckdb")
ENDPOINTS: dict[str, Any] = {"Sales": {"CALLBACKS": False, "AUDIT_QUEUE": "audit"}, "Billing": {"CALLBACKS": False}}


@pytest.fixture
def shop(queue_database: QueueDatabase, tmp_path: Path) -> QueueDatabase:
    install(queue_database, ENDPOINTS=ENDPOINTS, PIPELINE={"LAKE": str(tmp_path)})
    return queue_database


def taken(row: NewRow, number: int = 1_000, **more: Any) -> dict[str, Any]:
    """The row as the pipeline writes it."""
    headers = read_headers(row.headers)
    return {
        "at": BEGIN + timedelta(seconds=number), "row_version": number, "headers": row.headers, "native_id": str(row.id),
        "message_id": headers["NServiceBus.MessageId"], "conversation_id": headers["NServiceBus.ConversationId"],
        "endpoint": headers.get("NServiceBus.ProcessingEndpoint"), **more,
    }  # fmt: skip


def read() -> ConversationResult:
    return read_conversation(get_settings(), "c-1")


def found() -> set[tuple[str, str, str]]:
    return {(each.message_id, each.outcome.value, each.lake) for each in read().messages}


def test_conversation_joins_messages_of_queues_and_the_lake(shop: QueueDatabase, tmp_path: Path) -> None:
    write(tmp_path, [taken(audited("order"), 1), taken(audited("other", NServiceBus_ConversationId="c-2"), 2)])
    write(tmp_path, [taken(failed_one("ship", "order"), 3)], table="failures", queue="error")
    table(shop, "Billing").send([sent("remind", "order", by="Sales")])
    assert found() == {("order", "handled", "messages"), ("ship", "failed", "failures"), ("remind", "waiting", "")}
    assert read().problems == ()
    assert read().extent.lake is not None
    text = Markup(client_of("viewer").get("/admin/sqlqueue_app/conversation/c-1/").content.decode()).text()
    assert "lake, from audit" in text
    assert "The archive was searched: 2 files." in text


def test_message_in_both_places_is_shown_once(shop: QueueDatabase, tmp_path: Path) -> None:
    table(shop, "audit").send([audited("order")])
    fail(shop, [failed_one("bill", "order")])
    write(tmp_path, [taken(audited("order"), 1)])
    write(tmp_path, [taken(failed_one("bill", "order"), 1), taken(failed_one("bill", "order"), 7)], table="failures", queue="error")
    assert found() == {("order", "handled", ""), ("bill", "failed", "")}


def test_event_that_waits_for_another_subscriber_is_shown_too(shop: QueueDatabase, tmp_path: Path) -> None:
    billing = table(shop, "Billing")
    billing.send([sent("placed", by="Sales")])
    write(tmp_path, [taken(audited("placed"), billing.row_versions(1)[0])])
    assert found() == {("placed", "handled", "messages"), ("placed", "waiting", "")}


def test_failure_handled_later_is_shown_as_handled(shop: QueueDatabase, tmp_path: Path) -> None:
    unique = uuid.uuid4()
    again = audited("bill", "order", ServiceControl_Retry_UniqueMessageId=str(unique))
    copy = taken(failed_one("bill", "order"), 3, unique_message_id=str(unique))
    write(tmp_path, [copy], table="failures", queue="error")
    assert found() == {("bill", "failed", "failures")}
    write(tmp_path, [taken(again, 9)])
    assert found() == {("bill", "handled", "messages")}


def test_copy_shows_the_outcome_of_its_message(shop: QueueDatabase, tmp_path: Path) -> None:
    unique = uuid.uuid4()
    copy = taken(failed_one("bill", "order"), 3, unique_message_id=str(unique))
    write(tmp_path, [copy], table="failures", queue="error")
    shared: dict[str, Any] = {"committed_at": BEGIN, "published_at": BEGIN}
    batch = LakeBatch.objects.create(id=uuid.uuid4(), kind="failures", lake_id=uuid.uuid4(), **shared)
    LakeCopy.objects.create(
        lake_id=batch.lake_id,
        queue="error",
        row_version=3,
        unique_message_id=str(unique),
        copied_at=BEGIN,
        batch=batch,
        fate="archived",
    )
    for path in tmp_path.rglob("*.parquet"):
        where = path.relative_to(tmp_path).as_posix()
        LakeFile.objects.create(batch=batch, table="failures", path=where, rows=1, bytes=1, day=BEGIN.date())
    assert found() == {("bill", "archived", "failures")}


def test_unreadable_lake_is_reported(shop: QueueDatabase, tmp_path: Path) -> None:
    folder = tmp_path / "messages" / "queue=audit" / "day=2026-05-01"
    folder.mkdir(parents=True)
    (folder / "x-0.parquet").write_bytes(b"nothing")
    table(shop, "Billing").send([sent("remind")])
    extent = read().extent.lake
    assert extent is not None
    assert "x-0.parquet" in extent.problem
    assert found() == {("remind", "waiting", "")}
