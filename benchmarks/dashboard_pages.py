"""The failed messages of the site that is measured, and how long its pages take. Imported once Django is set up."""

from __future__ import annotations

import json
import statistics
import sys
import time
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from benchmarks.messages import stored_headers
from sqlqueue_app.conf import get_settings
from sqlqueue_app.messages.headers import read_headers, write_headers
from sqlqueue_app.messages.times import format_time
from sqlqueue_app.models import FailedMessage, FailureGroup, FailureStatus
from sqlqueue_app.operations.failure_index import catch_up
from sqlqueue_app.operations.known_queues import address_book_of
from sqlqueue_app.tables.queue import queue_table
from sqlqueue_app.tables.rows import NewRow

ADMIN = "/admin/sqlqueue_app/failedmessage/"


def main(failures: int, groups: int, rounds: int) -> None:
    """Fill, index, measure; the last line of the output is JSON."""
    fill(failures, groups)
    found = index(failures)
    pages = [page(path, rounds) for path in paths()]
    print(json.dumps({**found, "pages": pages}))


def fill(failures: int, groups: int) -> None:
    """Write the rows of the error queue, as an endpoint of ours does: failures of a week, some groups larger than others."""
    call_command("migrate", verbosity=0)
    error = queue_table("default", address_book_of(get_settings()).of_queue("error"))
    now = datetime.now(UTC)
    common = read_headers(stored_headers())

    def row(number: int) -> NewRow:
        # Every second failure is in one of a hundred groups.
        group = number % 100 if number % 2 else number % groups
        at = now - timedelta(seconds=(failures - number) * 7 * 86_400 / failures)
        kind = f"shop.errors.Error{group % 7}"
        told: dict[str, str | None] = {
            **common,
            "NServiceBus.MessageId": str(uuid.uuid4()),
            "NServiceBus.FailedQ": f"Sales{group % 20}",
            "NServiceBus.EnclosedMessageTypes": f"Shop.Message{group % 50}",
            "NServiceBus.ProcessingEndpoint": f"Sales{group % 20}",
            "NServiceBus.ProcessingMachine": "mill",
            "NServiceBus.TimeOfFailure": format_time(at),
            "NServiceBus.ExceptionInfo.ExceptionType": kind,
            "NServiceBus.ExceptionInfo.Message": f"no more {number}",
            "NServiceBus.ExceptionInfo.StackTrace": f"{kind}: no more {number}\n   at shop.handlers.h{group}() in /shop.py:line 7\n"
            * 20,
        }
        return NewRow(str(uuid.uuid4()), write_headers(told), b"{}")

    error.send(row(number) for number in range(failures))


def index(failures: int) -> dict[str, float]:
    """Read the error queue as a worker does; rows a second, and what a look costs that finds nothing."""
    began = time.perf_counter()
    while catch_up(get_settings(), limit=500, now=datetime.now(UTC)).is_behind:
        pass
    took = time.perf_counter() - began
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")
    looks = []
    for _ in range(50):
        began = time.perf_counter()
        catch_up(get_settings(), limit=500, now=datetime.now(UTC))
        looks.append((time.perf_counter() - began) * 1_000)
    return {"rate": failures / took, "look_ms": statistics.median(looks)}


def paths() -> list[str]:
    """The pages with their usual queries, and those that are dear."""
    largest = FailureGroup.objects.get(title="shop.errors.Error1: shop.handlers.h1()")
    message = FailedMessage.objects.order_by("failed_at")[50]
    some = FailedMessage.objects.order_by("failed_at").values_list("pk")[:2_000]
    FailedMessage.objects.filter(pk__in=some).update(
        status=FailureStatus.RETRY_ISSUED, retried_to="Bench", retry_row_id=uuid.uuid4()
    )
    return [
        "",
        "?by=type",
        "?by=endpoint",
        "messages/",
        "messages/?size=200",
        "messages/?q=endpoint:Sales3",
        "messages/?q=endpoint:Sales3+failed:-6h..now",
        "messages/?q=nothing-has-this",
        "messages/?q=%22no+more+77%22",
        "pending/",
        "archived/",
        "resolved/",
        "unreadable/",
        f"group/{largest.pk}/",
        f"{message.pk}/",
    ]


def page(path: str, rounds: int) -> dict[str, Any]:
    """How long a page takes, and its statements."""
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
    with CaptureQueriesContext(connection) as queries:
        client.get(ADMIN + path)
    slowest = max(queries.captured_queries, key=lambda each: float(each["time"]))
    print(f"{path}: {slowest['time']} s: {slowest['sql'][:2_000]}", file=sys.stderr)
    warm = sorted(took[2:])
    return {
        "path": path or "(groups)",
        "median": statistics.median(warm),
        "p95": warm[min(int(len(warm) * 0.95), len(warm) - 1)],
        "statements": len(queries),
        "slowest": float(slowest["time"]) * 1_000,
    }
