"""Failed messages in error queues and their index, for tests that act on them."""

from __future__ import annotations

import itertools
import json
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlqueue_app.conf import get_settings
from sqlqueue_app.failures.index import catch_up
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.times import format_time
from sqlqueue_app.models import FailedMessage, FailureStatus, managed_alias
from sqlqueue_app.tables.connections import database_now
from sqlqueue_app.tables.rows import NewRow
from tests.support.databases import QueueDatabase
from tests.support.filling import install, table

ENDPOINTS: dict[str, Any] = {"Sales": {"CALLBACKS": False}}
FAILED_AT = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
_seconds = itertools.count()


def install_sales(database: QueueDatabase, **sqlqueue: Any) -> None:
    install(database, **{"ENDPOINTS": ENDPOINTS, **sqlqueue})


def failed_row(
    message_id: str | None = None, *, failed_q: str | None = "Sales", body: bytes = b"{}", more: dict[str, str] | None = None
) -> NewRow:
    """A row of the error queue with additional headers."""
    written = {
        names.MESSAGE_ID: message_id or str(uuid.uuid4()),
        names.CORRELATION_ID: "the-correlation",
        names.REPLY_TO_ADDRESS: "Web",
        names.ENCLOSED_MESSAGE_TYPES: "Shop.PlaceOrder",
        names.IMMEDIATE_RETRIES: "4",
        names.DELAYED_RETRIES_TIMESTAMP: "x",
        names.EXCEPTION_TYPE: "shop.errors.OutOfStock",
        names.EXCEPTION_MESSAGE: "no tea left",
        names.TIME_OF_FAILURE: format_time(FAILED_AT + timedelta(seconds=next(_seconds))),
        names.EDIT_OF: "x",
        **({names.FAILED_QUEUE: failed_q} if failed_q is not None else {}),
        **(more or {}),
    }
    return NewRow(str(uuid.uuid4()), json.dumps(written), body)


def failed_headers(headers: dict[str, str]) -> dict[str, str]:
    """The headers after one more failure in the queue `Sales`."""
    at = FAILED_AT + timedelta(seconds=next(_seconds))
    return {**headers, names.FAILED_QUEUE: "Sales", names.TIME_OF_FAILURE: format_time(at), names.EXCEPTION_TYPE: "shop.Again"}


def fail(database: QueueDatabase, rows: list[NewRow], queue: str = "error") -> list[FailedMessage]:
    """Put rows into an error queue and index them; returns the messages in the order of their last rows."""
    before = set(FailedMessage.objects.filter(row_version__isnull=False).values_list("queue", "row_version"))
    table(database, queue).send(rows)
    while catch_up(get_settings(), limit=10_000, now=database_now(managed_alias())).is_behind:
        pass
    found = FailedMessage.objects.filter(queue=queue, row_version__isnull=False).order_by("row_version")
    return [each for each in found if (each.queue, each.row_version) not in before]


def statuses(*failures: FailedMessage) -> list[str]:
    """The current statuses in the index, in the given order."""
    now = {each.pk: each.status for each in FailedMessage.objects.filter(pk__in=[each.pk for each in failures])}
    return [FailureStatus(now[each.pk]).name for each in failures]
