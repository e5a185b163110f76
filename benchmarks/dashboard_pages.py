"""Measure the pages of the site. Import only after Django is set up."""

from __future__ import annotations

import json
import statistics
import sys
import time
import uuid
from datetime import UTC, datetime
from typing import Any

from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from benchmarks.dashboard_filling import LONG, fill_failures, fill_queues, fill_samples, make_queues, register_worker
from sqlqueue_app.conf import get_settings
from sqlqueue_app.failures.index import catch_up
from sqlqueue_app.models import FailedMessage, FailureGroup, FailureStatus

ADMIN = "/admin/sqlqueue_app/"
# Full scans of queue tables since the statistics were reset.
_SCANS = """
SELECT coalesce(sum(seq_scan), 0) FROM pg_stat_user_tables
WHERE relid IN (SELECT attrelid FROM pg_attribute WHERE attname = 'headers')
"""


def main(tables: int, messages: int, failures: int, groups: int, rounds: int) -> None:
    """Fill, index, measure; the last line of the output is JSON."""
    tables = make_queues(tables)
    register_worker()
    fill_queues(messages)
    fill_samples()
    fill_failures(failures, groups)
    found = index(failures)
    pages = [page(path, rounds) for path in paths()]
    print(json.dumps({**found, "tables": tables, "pages": pages}))


def index(failures: int) -> dict[str, float]:
    """Index the error queue as a worker does; returns rows per second and the cost of a scan without news."""
    began = time.perf_counter()
    while catch_up(get_settings(), limit=500, now=datetime.now(UTC)).is_behind:
        pass
    took = time.perf_counter() - began
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")
    scans = []
    for _ in range(50):
        began = time.perf_counter()
        catch_up(get_settings(), limit=500, now=datetime.now(UTC))
        scans.append((time.perf_counter() - began) * 1_000)
    return {"rate": failures / took, "scan_ms": statistics.median(scans)}


_PATHS = (
    "dashboard/",
    "dashboard/?period=1d",
    "queue/",
    f"queue/{LONG}/",
    f"queue/{LONG}/?at=tail",
    f"queue/{LONG}/?position=100000",
    f"queue/{LONG}/?period=1d",
    f"queue/{LONG}/1000/",
    "queue/Shop1/purge/",
    "endpoint/",
    f"endpoint/{LONG}/",
    "instance/",
    "delayedmessage/",
    "search/?q=no+more+77",
    "conversation/",
    "subscription/",
    "schedule/",
    "taskresult/",
    "checkresult/",
    "distributedtransaction/",
    "event/",
    "notificationrule/",
    "operation/",
    "operatoraction/",
    "redirect/",
    "pipelinerun/",
    "analytics/",
    "failedmessage/",
    "failedmessage/?by=type",
    "failedmessage/?by=endpoint",
    "failedmessage/messages/",
    "failedmessage/messages/?size=200",
    "failedmessage/messages/?q=endpoint:Shop3",
    "failedmessage/messages/?q=endpoint:Shop3+failed:-6h..now",
    "failedmessage/messages/?q=nothing-has-this",
    "failedmessage/messages/?q=%22no+more+77%22",
    "failedmessage/pending/",
    "failedmessage/archived/",
    "failedmessage/resolved/",
    "failedmessage/unreadable/",
)


def paths() -> list[str]:
    """The pages with their usual and their expensive queries."""
    largest = FailureGroup.objects.get(title="shop.errors.Error1: shop.handlers.h1()")
    message = FailedMessage.objects.order_by("failed_at")[50]
    some = FailedMessage.objects.order_by("failed_at").values_list("pk")[:2_000]
    FailedMessage.objects.filter(pk__in=some).update(
        status=FailureStatus.RETRY_ISSUED, retried_to="Bench", retry_row_id=uuid.uuid4()
    )
    return [
        *_PATHS,
        f"search/?q={message.message_id}",
        f"conversation/{message.conversation_id or uuid.uuid4()}/",
        f"failedmessage/group/{largest.pk}/",
        f"failedmessage/{message.pk}/",
    ]


def page(path: str, rounds: int) -> dict[str, Any]:
    """The duration of a page and its statements."""
    user, _ = User.objects.get_or_create(username="operator", defaults={"is_staff": True, "is_superuser": True})
    client = Client()
    client.force_login(user)
    took = []
    for _round in range(rounds + 2):
        began = time.perf_counter()
        answer = client.get(ADMIN + path)
        took.append((time.perf_counter() - began) * 1_000)
        if answer.status_code != 200:
            raise RuntimeError(f"{path}: HTTP {answer.status_code}")
    before = _scans()
    with CaptureQueriesContext(connection) as queries:
        client.get(ADMIN + path)
    scans = _scans() - before
    slowest = max(queries.captured_queries, key=lambda each: float(each["time"]))
    print(f"{path}: {slowest['time']} s: {slowest['sql'][:2_000]}", file=sys.stderr)
    warm = sorted(took[2:])
    return {
        "path": path,
        "median": statistics.median(warm),
        "p95": warm[min(int(len(warm) * 0.95), len(warm) - 1)],
        "statements": sum(each["sql"] not in ("BEGIN", "COMMIT") for each in queries.captured_queries),
        "scans": scans,
        "slowest": float(slowest["time"]) * 1_000,
    }


def _scans() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute(_SCANS)
        return int(cursor.fetchone()[0])
