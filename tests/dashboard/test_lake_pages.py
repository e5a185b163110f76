"""The pages of archived messages and of pipeline runs, with a lake, without one and without the engine."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from sqlqueue_app.browsing.analytics import freshness, known_lake
from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard import search as search_pages
from sqlqueue_app.lake.data_files import MARKER_FORMAT, MARKER_NAME, LakeEngineMissing, LakeMarker, data_file
from sqlqueue_app.lake.search import Cursor, Results
from sqlqueue_app.models import LakeBatch, LakeFile, PipelineRun
from tests.support.databases import QueueDatabase
from tests.support.filling import HOSTILE, install
from tests.support.lakes import files_of, write
from tests.support.pages import client_of, page_at

SEARCH = "/admin/sqlqueue_app/lakesearch/"
RUNS = "/admin/sqlqueue_app/pipelinerun/"


@pytest.fixture
def lake(queue_database: QueueDatabase, tmp_path: Path) -> Path:
    """A lake with messages of a minute, a day and a year ago, and a failure."""
    pytest.importorskip("duckdb")
    now = datetime.now(UTC)
    headers = json.dumps({"NServiceBus.MessageId": "m 1", "NServiceBus.ConversationId": "c 1", "Note": HOSTILE})
    shared: dict[str, Any] = {"conversation_id": "c 1", "message_type": "Shop.Order", "endpoint": "Sales", "headers": headers}
    write(
        tmp_path,
        [
            {"at": now - timedelta(minutes=1), "message_id": "m 1", "body": b'{"secret": 1}', "body_bytes": 13, **shared},
            {"at": now - timedelta(days=1), "message_id": "m 2", "processing_seconds": 0.5, "critical_seconds": -2.0, **shared},
            {"at": now - timedelta(days=365), "message_id": "m 3", "message_type": HOSTILE},
        ],
        queue=HOSTILE,
    )
    failure = {"at": now - timedelta(minutes=2), "message_id": "m 4", "exception_type": "ValueError", **shared}
    write(tmp_path, [failure], table="failures", queue="error")
    install(queue_database, PIPELINE={"LAKE": str(tmp_path)})
    return tmp_path


def record(lake: Path, *, committed_at: datetime, published: bool = True) -> LakeBatch:
    """Record the files of the lake as a batch of the manifest."""
    batch = LakeBatch.objects.create(
        id=uuid.uuid4(),
        kind="audit",
        lake_id=uuid.uuid4(),
        committed_at=committed_at,
        published_at=committed_at if published else None,
    )
    for each in files_of(lake):
        LakeFile.objects.create(batch=batch, table=each.table, path=each.path, rows=1, bytes=1, day=each.day)
    return batch


def ids(address: str = "") -> list[str]:
    found = client_of("superuser").get(f"{SEARCH}{address or '?'}&format=json")
    assert found.status_code == 200
    return [each["message_id"] for each in json.loads(found.getvalue())]


def test_pages_without_a_lake_show_how_to_start(queue_database: QueueDatabase) -> None:
    install(queue_database)
    for address in (SEARCH, RUNS):
        assert "The archive is not configured." in page_at(address).text()
    assert ids() == []


@pytest.mark.parametrize("address", [SEARCH, "/admin/sqlqueue_app/analytics/"])
def test_pages_before_the_first_batch_show_the_state_of_the_pipeline(
    queue_database: QueueDatabase, tmp_path: Path, address: str
) -> None:
    install(queue_database, PIPELINE={"LAKE": str(tmp_path)})
    assert "The pipeline has not run yet." in page_at(address).text()
    now = datetime.now(UTC)
    run = PipelineRun.objects.create(
        started_at=now, heartbeat_at=now, host="h", pid=1, master="local", lake=str(tmp_path), state="running"
    )
    assert "The first run of the pipeline is in progress since" in page_at(address).text()
    PipelineRun.objects.filter(pk=run.pk).update(state="failed", error="no space left")
    assert "The last run of the pipeline failed: no space left" in page_at(address).text()
    PipelineRun.objects.filter(pk=run.pk).update(state="ended", error="")
    found = page_at(address)
    assert "audit and error queues were empty" in found.text()
    assert RUNS in found.links
    assert "No matching messages" not in found.text()


def test_impossible_dates_are_an_error_at_the_field(lake: Path) -> None:
    for query, text in (
        ("since=2026-11-21&until=2026-11-20", "The last day is before the first day: swap them."),
        ("since=2026-13-01", "Enter a valid date."),
        ("period=9d", "9d is not one of the available choices."),
    ):
        with override_settings(LANGUAGE_CODE="en"):
            found = page_at(f"{SEARCH}?{query}")
        assert text in found.text()
        assert "searched in" not in found.text()
        (wrong,) = [each for tag, each in found.tags if each.get("aria-invalid") == "true"]
        assert any(each.get("id") == f"sq-{wrong['name']}_error" for _tag, each in found.tags)
    assert "No matching messages." in page_at(f"{SEARCH}?since=2026-11-20&until=2026-11-20&text=none").text()
    assert RUNS in page_at(SEARCH).links


def test_search_covers_six_hours_unless_a_filter_extends_it(lake: Path) -> None:
    text = page_at(SEARCH).text()
    assert "2 messages, searched in" in text
    assert "Shop.Order m 1" in text
    assert "failed ValueError" in text
    assert "m 2" not in text
    assert ids() == ["m 1", "m 4"]
    assert ids("?period=all") == ["m 1", "m 4", "m 2", "m 3"]
    assert ids("?conversation=c+1") == ["m 1", "m 4", "m 2"]
    assert ids("?id=m+3") == ["m 3"]
    assert ids("?id=m+3&period=1d") == []
    assert ids("?kind=failures") == ["m 4"]
    assert ids("?text=secret") == ["m 1"]
    assert ids("?type=*Order&endpoint=Sales&period=7d") == ["m 1", "m 4", "m 2"]
    yesterday = (datetime.now(UTC) - timedelta(days=1)).date()
    assert "m 2" in ids(f"?since={yesterday}&until={yesterday}")
    assert "m 3" not in ids(f"?since={yesterday}")


def test_body_of_a_message_needs_the_permission(lake: Path) -> None:
    links = [each for each in page_at(f"{SEARCH}?period=all").links if each.startswith((f"{SEARCH}m", f"{SEARCH}f"))]
    assert len(links) == 4
    found = page_at(links[0], "superuser")
    assert '"secret": 1' in found.text()
    assert HOSTILE in found.text()
    assert any("/conversation/c" in link for link in found.links)
    assert "The body is not shown." in page_at(links[0]).text()
    assert "secret" not in page_at(links[0]).text()
    assert "As text" in page_at(f"{links[0]}?hex", "superuser").text()
    for each in links:
        page_at(each, "superuser")


@pytest.mark.parametrize(
    "path", ["messages/x/2026-11-20/1/", "minutes/x/2026-11-20/1/", "messages/x/day/1/", f"messages/x/2026-11-20/{2**70}/"]
)
def test_unknown_message_returns_404(lake: Path, path: str) -> None:
    assert "There is no such message in the lake" in page_at(SEARCH + path, status=404).text()


def test_results_are_paginated(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_pages, "PAGE_SIZE", 3)
    first = page_at(f"{SEARCH}?period=all")
    (following,) = {each for each in first.links if "after=" in each and "format" not in each}
    assert "4 messages, searched" in first.text()
    second = page_at(f"{SEARCH}{following}")
    assert "m 3" in second.text()
    assert "m 1" not in second.text()
    assert "A file contains at most 5,000 messages." in page_at(f"{SEARCH}?period=all", "superuser").text()
    assert "A file contains" not in page_at(f"{SEARCH}{following}", "superuser").text()


def test_unfinished_search_can_be_continued(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    back = datetime.now(UTC) - timedelta(days=3)
    unfinished = Results(is_partial=True, searched_from=back, next=Cursor(back, 0, ""), files=4, seconds=2.0)
    monkeypatch.setattr(search_pages, "search", lambda *_args, **_more: unfinished)
    found = page_at(f"{SEARCH}?text=rare&period=all")
    assert "no message so far, searched in 2.0 s in 4 files" in found.text()
    assert "The time limit was reached. Results are complete from" in found.text()
    assert len([each for each in found.links if "after=" in each and "format" not in each]) == 1
    assert client_of("superuser").get(f"{SEARCH}?format=csv")["X-Sqlqueue-Partial"] == "true"


def test_manifest_determines_the_searched_files(lake: Path) -> None:
    now = datetime.now(UTC)
    record(lake, committed_at=now - timedelta(days=1), published=False)
    assert ids("?period=all") == []
    batch = record(lake, committed_at=now)
    assert ids("?period=all") == ["m 1", "m 4", "m 2", "m 3"]
    assert "Data up to" in page_at(SEARCH).text()
    LakeFile.objects.filter(batch=batch, table="failures").update(retired_at=now)
    assert ids("?period=all") == ["m 1", "m 2", "m 3"]
    gone = data_file(LakeFile.objects.filter(batch=batch, table="messages").latest("day").path)
    assert gone is not None
    (lake / gone.path).unlink()
    found = page_at(f"{SEARCH}?period=all").text()
    assert "Files that could not be read were left out:" in found
    assert "m 3" in found


def test_newer_batches_of_another_lake_are_ignored(lake: Path) -> None:
    now = datetime.now(UTC).replace(microsecond=0)
    batch = record(lake, committed_at=now - timedelta(hours=1))
    (lake / MARKER_NAME).write_text(LakeMarker(MARKER_FORMAT, batch.lake_id, "").text())
    other = LakeBatch.objects.create(id=uuid.uuid4(), kind="audit", lake_id=uuid.uuid4(), committed_at=now, published_at=now)
    path = f"messages/queue=audit/day={now:%Y-%m-%d}/other-0.parquet"
    LakeFile.objects.create(batch=other, table="messages", path=path, rows=1, bytes=1, day=now.date())
    found = known_lake(get_settings())
    assert (found.read_until, {each.path for each in found.files}) == (batch.committed_at, {each.path for each in files_of(lake)})
    assert ids() == ["m 1", "m 4"]


def test_data_reaches_the_start_of_the_last_run_that_ended(lake: Path) -> None:
    """A run that finds nothing new commits no batch; one that has not ended may have left messages in the queues."""
    now = datetime.now(UTC).replace(microsecond=0)
    batch = record(lake, committed_at=now - timedelta(hours=1))
    (lake / MARKER_NAME).write_text(LakeMarker(MARKER_FORMAT, batch.lake_id, "").text())
    shared: dict[str, Any] = {"heartbeat_at": now, "host": "h", "pid": 1, "master": "local"}
    for minutes, state, path in ((4, "failed", lake), (3, "stopped", lake), (2, "running", lake), (1, "ended", "elsewhere")):
        PipelineRun.objects.create(started_at=now - timedelta(minutes=minutes), state=state, lake=str(path), **shared)
    assert known_lake(get_settings()).read_until == batch.committed_at
    last = PipelineRun.objects.create(started_at=now - timedelta(minutes=5), state="ended", lake=str(lake), **shared)
    assert known_lake(get_settings()).read_until == last.started_at
    PipelineRun.objects.filter(lake="elsewhere").delete()
    assert freshness().read_until == last.started_at


@pytest.mark.parametrize("use_tz", [True, False])
def test_times_of_the_search_are_those_of_the_site(lake: Path, settings: Settings, use_tz: bool) -> None:
    settings.USE_TZ, settings.TIME_ZONE = use_tz, "Asia/Tokyo"
    today = (datetime.now(UTC) + timedelta(hours=9) - timedelta(minutes=1)).date()
    assert ids()[0] == ids(f"?since={today}")[0] == ids(f"?until={today}")[0] == "m 1"


def test_lake_of_a_run_is_used_without_a_setting(queue_database: QueueDatabase) -> None:
    install(queue_database)
    assert known_lake(get_settings()).lake == ""
    now = datetime.now(UTC)
    run = PipelineRun.objects.create(started_at=now, heartbeat_at=now, host="h", pid=1, master="local", lake="hdfs://cluster/lake")
    batch = LakeBatch.objects.create(
        id=uuid.uuid4(), run=run, kind="audit", lake_id=uuid.uuid4(), committed_at=now, published_at=now
    )
    path = f"messages/queue=audit/day={now:%Y-%m-%d}/x-0.parquet"
    LakeFile.objects.create(batch=batch, table="messages", path=path, rows=1, bytes=1, day=now.date())
    assert known_lake(get_settings()).lake == "hdfs://cluster/lake"
    assert "cannot be searched from here" in page_at(SEARCH).text()


def test_missing_engine_names_the_extra_to_install(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_args: object, **_more: object) -> None:
        raise LakeEngineMissing("Install it with: pip install 'django-sqlqueue[spark]'")

    (failure,) = (each for each in files_of(lake) if each.table == "failures")
    for name in ("search", "read_message"):
        monkeypatch.setattr(search_pages, name, missing)
    assert "pip install 'django-sqlqueue[spark]'" in page_at(SEARCH).text()
    assert "pip install" in page_at(f"{SEARCH}failures/error/{failure.day}/1/", status=409).text()


@pytest.mark.parametrize(
    "query",
    ["after=x&kind=%27&period=[]", "since=9999-12-31&until=0001-01-01", "since=2026-13-01&text=%00", "text=(%3F&type=%25&id=%ff",
     "after=99999999999999999.1.q&period=all", "conversation=" + "x" * 5_000],
)  # fmt: skip
def test_any_query_string_is_answered(lake: Path, query: str) -> None:
    for kind in ("viewer", "superuser"):
        assert client_of(kind).get(f"{SEARCH}?{query}").status_code == 200
    assert client_of("superuser").get(f"{SEARCH}?{query}&format=csv").status_code == 200


def test_pages_take_few_statements(lake: Path) -> None:
    client = client_of("viewer")
    for address in (SEARCH, RUNS):
        with CaptureQueriesContext(connection) as queries:
            client.get(address)
        assert len(queries) <= 15


def test_runs_are_listed(queue_database: QueueDatabase) -> None:
    install(queue_database)
    now = datetime.now(UTC)
    known: dict[str, Any] = {"host": HOSTILE, "pid": 4_242, "master": "local[*]", "lake": "/lake", "heartbeat_at": now}
    PipelineRun.objects.create(
        started_at=now - timedelta(minutes=5), state="ended", ended_at=now, messages=12_345, bytes=2_048, **known
    )
    PipelineRun.objects.create(started_at=now - timedelta(hours=5), state="failed", error="no space left", ended_at=now, **known)
    PipelineRun.objects.create(
        started_at=now - timedelta(minutes=1), state="running", **{**known, "heartbeat_at": now - timedelta(minutes=9)}
    )
    with override_settings(LANGUAGE_CODE="en"):
        text = page_at(RUNS).text()
    assert "ended 5 min 0 s 12,345 0 0 0 2.0 KiB" in text
    assert "failed no space left" in text
    assert "no heartbeat" in text
    assert HOSTILE in text
    found = json.loads(client_of("superuser").get(f"{RUNS}?format=json").getvalue())
    assert [each["state"] for each in found] == ["running", "ended", "failed"]
