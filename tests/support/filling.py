"""Queues with messages, for tests that only read."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sqlqueue_app.conf import get_settings
from sqlqueue_app.installation import planned_tables
from sqlqueue_app.messages.headers import write_headers
from sqlqueue_app.messages.times import format_time
from sqlqueue_app.models import Instance
from sqlqueue_app.sending.subscribers import subscribers_of
from sqlqueue_app.status.queues import address_book_of
from sqlqueue_app.tables.installation import install_tables
from sqlqueue_app.tables.queue import QueueTable, queue_table
from sqlqueue_app.tables.rows import NewRow
from sqlqueue_app.tables.subscriptions import SubscriptionRow
from tests.support.databases import QueueDatabase

ENDPOINTS: dict[str, Any] = {
    "Sales": {"CALLBACKS": True, "INSTANCE": "here", "CALLBACK_QUEUES": 2, "SATELLITES": {"Sales.Priority": {}}}
}
HOSTILE = "<script>alert('x')</script>"


def install(database: QueueDatabase, **sqlqueue: Any) -> None:
    """Point the settings at the database and create all their tables."""
    database.configure(**{"ENDPOINTS": ENDPOINTS, **sqlqueue})
    install_tables(database.alias, planned_tables(get_settings(), database.vendor))


def table(database: QueueDatabase, name: str) -> QueueTable:
    """The table with exactly this name."""
    return queue_table(database.alias, address_book_of(get_settings()).of_queue(name))


def subscribe(database: QueueDatabase, endpoint: str, topic: str, address: str | None = None) -> None:
    """Insert a subscription; the default address is the endpoint's queue."""
    subscriptions = subscribers_of(database.alias, address_book_of(get_settings())).table
    subscriptions.subscribe(SubscriptionRow(endpoint, topic, address or endpoint))


def row(headers: dict[str, str | None] | str | None = None, body: bytes = b"{}", lifetime_ms: int | None = None) -> NewRow:
    """A row with these headers, or with this text instead."""
    text = headers if isinstance(headers, str) else write_headers(headers or {})
    return NewRow(str(uuid.uuid4()), text, body, time_to_be_received_ms=lifetime_ms)


def message(
    body: object = None, *, age: timedelta = timedelta(), lifetime_ms: int | None = None, headers: Mapping[str, str] | None = None
) -> NewRow:
    """A row as an endpoint sends it."""
    sent = format_time(datetime.now(UTC) - age)
    common: dict[str, str | None] = {
        "NServiceBus.MessageId": str(uuid.uuid4()),
        "NServiceBus.MessageIntent": "Send",
        "NServiceBus.EnclosedMessageTypes": "Sales.PlaceOrder",
        "NServiceBus.ContentType": "application/json",
        "NServiceBus.TimeSent": sent,
    }
    return row({**common, **(headers or {})}, json.dumps(body if body is not None else {"order_id": "42"}).encode(), lifetime_ms)


def count(database: QueueDatabase, name: str, where: str = "1 = 1") -> int:
    """The number of rows, by plain SQL."""
    with database.connection.cursor() as cursor:
        cursor.execute(f"SELECT count(*) FROM {table(database, name).qualified} WHERE {where}")
        return int(cursor.fetchone()[0])


def now_of(database: QueueDatabase) -> str:
    """The database's current time, in the form of Expires."""
    clocks = {
        "sqlite": "strftime('%Y-%m-%d %H:%M:%f', 'now')",
        "postgresql": "(clock_timestamp() AT TIME ZONE 'UTC')",
        "sqlserver": "GETUTCDATE()",
    }
    return clocks[database.vendor]


def instance(*, silent: timedelta = timedelta(), **fields: Any) -> Instance:
    """Register a process whose last heartbeat was this long ago."""
    now = datetime.now(UTC)
    known = {"endpoint": "Sales", "name": "here", "host": "here", "pid": 4711, "callback_queue": "Sales.here"}
    return Instance.objects.create(
        **{
            **known,
            "started_at": now,
            "heartbeat_at": now - silent,
            "threads": {"Sales": 3, "Sales.here": 1},
            "concurrency": 4,
            **fields,
        }
    )


@pytest.fixture
def errors(queue_database: QueueDatabase) -> QueueDatabase:
    """A database with an empty error queue."""
    install(queue_database)
    return queue_database
