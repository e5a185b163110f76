"""Messages in the delayed table of an endpoint, for tests that only read."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime, timedelta

from sqlqueue_app.conf import get_settings
from sqlqueue_app.messages.headers import write_headers
from sqlqueue_app.status.delayed import known_delayed_tables
from sqlqueue_app.status.queues import address_book_of
from sqlqueue_app.tables.delayed import DelayedTable, list_rows
from sqlqueue_app.tables.installation import delayed_address
from tests.support.databases import QueueDatabase
from tests.support.sqlserver import needs

FORWARD = "NServiceBus.SqlServer.ForwardDestination"
HOUR = timedelta(hours=1)


def delayed(database: QueueDatabase, endpoint: str = "Sales") -> DelayedTable:
    """The delayed table of an endpoint."""
    return DelayedTable(database.alias, delayed_address(address_book_of(get_settings()), endpoint))


def put(
    database: QueueDatabase,
    left: timedelta = HOUR,
    *,
    endpoint: str = "Sales",
    body: object = None,
    to: str | None = "Sales",
    **headers: str,
) -> str:
    """Insert a message due after this time; returns its key."""
    due = datetime.now(UTC) + left
    known: dict[str, str | None] = {
        "NServiceBus.MessageId": str(uuid.uuid4()),
        "NServiceBus.EnclosedMessageTypes": "Sales.Remind",
        "NServiceBus.ContentType": "application/json",
        "NServiceBus.DeliverAt": f"{due:%Y-%m-%d %H:%M:%S:%f} Z",
        **({} if to is None else {FORWARD: to}),
        **headers,
    }
    return put_text(database, write_headers(known), due, endpoint=endpoint, body=json.dumps(body or {"n": 1}).encode())


def put_text(database: QueueDatabase, headers: str, due: datetime, *, endpoint: str = "Sales", body: bytes = b"{}") -> str:
    """Insert a message with this header text; returns its key."""
    needs(database.vendor, "TOP WITH TIES")
    table = delayed(database, endpoint)
    before = {row.key for row in list_rows(table, 10_000)}
    table.add(headers, body, due)
    (key,) = {row.key for row in list_rows(table, 10_000)} - before
    return key


def known(endpoint: str = "Sales") -> object:
    """The table as operators see it."""
    return next(each for each in known_delayed_tables(get_settings()) if each.endpoint == endpoint)
