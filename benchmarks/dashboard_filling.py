"""The data of the measured site: many queues, one of them long, failed messages in groups, samples of a day."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

from django.core.management import call_command
from django.db import connection

from benchmarks.dashboard_retry import RETRIED
from benchmarks.messages import stored_body, stored_headers
from sqlqueue_app.conf import get_settings
from sqlqueue_app.installation import planned_tables
from sqlqueue_app.messages.headers import read_headers, write_headers
from sqlqueue_app.messages.times import format_time
from sqlqueue_app.models import Instance
from sqlqueue_app.status.queues import address_book_of
from sqlqueue_app.tables.installation import install_tables
from sqlqueue_app.tables.queue import queue_table
from sqlqueue_app.tables.rows import NewRow

LONG = "Bench"
LONGEST_CONVERSATION = 1_000

# A table with headers is a queue or a delayed table.
_TABLES = """
SELECT table_name FROM information_schema.columns
WHERE column_name = 'headers' AND table_schema = 'public' AND table_name <> 'error'
ORDER BY table_name
"""
_DELAYED = """
INSERT INTO "{name}" (headers, body, due)
SELECT %s, %s, now() + n * interval '1 minute' FROM generate_series(1, %s) n
"""
# One in fifty expires, some of them have.
_WAITING = """
INSERT INTO "{name}" (id, headers, body, expires)
SELECT
    gen_random_uuid(), %s, %s, CASE WHEN n %% 50 = 0 THEN (now() AT TIME ZONE 'UTC') + (n - 500) * interval '1 minute' END
FROM generate_series(1, %s) n
"""
_SAMPLES = """
INSERT INTO sqlqueue_app_queuesample
    (queue, taken_at, seconds, samples, waiting, most_waiting, expired, overdue, exact)
SELECT %s, date_trunc('minute', now() AT TIME ZONE 'UTC') - n * interval '1 minute', 60, 6, n, n, 0, 0, true
FROM generate_series(1, 1440) n
"""


def queue_names() -> list[str]:
    """Every table with messages except the error queue."""
    with connection.cursor() as cursor:
        cursor.execute(_TABLES)
        return [name for (name,) in cursor.fetchall()]


def make_queues(tables: int) -> int:
    """Create the configured tables and others up to the given number; returns the number of tables."""
    call_command("migrate", verbosity=0)
    install_tables("default", planned_tables(get_settings(), "postgresql"))
    missing = max(0, tables - len(queue_names()) - 1)
    with connection.cursor() as cursor:
        for number in range(missing):
            cursor.execute(f'CREATE TABLE "Other{number}" (LIKE "{LONG}" INCLUDING ALL)')
    return len(queue_names()) + 1


def register_worker() -> None:
    """Register a live process: with a worker, pages need not update samples and index themselves."""
    heartbeat = datetime.now(UTC) + timedelta(hours=1)
    known = {"endpoint": LONG, "name": "bench", "host": "bench", "pid": 1, "threads": {LONG: 8}}
    Instance.objects.create(**known, started_at=heartbeat, heartbeat_at=heartbeat)


def fill_queues(messages: int) -> None:
    """Put half of the messages into one queue and spread the rest; some are delayed, some expire."""
    others = [name for name in queue_names() if name != LONG]
    each = messages // 2 // max(1, len(others))
    counts = {LONG: messages - each * len(others), **dict.fromkeys(others, each)}
    with connection.cursor() as cursor:
        for name, count in counts.items():
            statement = _DELAYED if name.endswith(".Delayed") else _WAITING
            cursor.execute(statement.format(name=name), [stored_headers(), stored_body(), count])


def fill_samples() -> None:
    """Store a day of minute samples for every queue."""
    with connection.cursor() as cursor:
        for name in queue_names():
            cursor.execute(_SAMPLES, [name])


def fill_failures(failures: int, groups: int) -> None:
    """Write the rows of the error queue as an endpoint does: failures of a week in groups of different sizes."""
    error = queue_table("default", address_book_of(get_settings()).of_queue("error"))
    now = datetime.now(UTC)
    common = read_headers(stored_headers())

    def row(number: int) -> NewRow:
        # Every second failure is in one of a hundred groups.
        group = number % 100 if number % 2 else number % groups
        at = now - timedelta(seconds=(failures - number) * 7 * 86_400 / failures)
        kind = f"shop.errors.Error{group % 7}"
        headers: dict[str, str | None] = {
            **common,
            "NServiceBus.MessageId": str(uuid.uuid4()),
            "NServiceBus.ConversationId": f"order-{number // LONGEST_CONVERSATION}",
            "NServiceBus.FailedQ": f"Shop{group % RETRIED}",
            "NServiceBus.EnclosedMessageTypes": f"Shop.Message{group % 50}",
            "NServiceBus.ProcessingEndpoint": f"Shop{group % RETRIED}",
            "NServiceBus.ProcessingMachine": "mill",
            "NServiceBus.TimeOfFailure": format_time(at),
            "NServiceBus.ExceptionInfo.ExceptionType": kind,
            "NServiceBus.ExceptionInfo.Message": f"no more {number}",
            "NServiceBus.ExceptionInfo.StackTrace": f"{kind}: no more {number}\n   at shop.handlers.h{group}() in /shop.py:line 7\n"
            * 20,
        }
        return NewRow(str(uuid.uuid4()), write_headers(headers), b"{}")

    error.send(row(number) for number in range(failures))
