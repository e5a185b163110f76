"""Rows of error queues, for tests."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Final

from sqlqueue_app.messages.times import format_time
from sqlqueue_app.tables.rows import NewRow
from tests.support.filling import row

FAILED_AT: Final = datetime(2026, 5, 1, 12, tzinfo=UTC)


def failed(name: str = "m-1", *, at: datetime = FAILED_AT, body: bytes = b"{}", **headers: str | None) -> NewRow:
    """A row of an error queue; in the names of headers, write `_` for a dot."""
    common: dict[str, str | None] = {
        "NServiceBus.MessageId": name,
        "NServiceBus.ConversationId": "c-1",
        "NServiceBus.EnclosedMessageTypes": "Shop.PlaceOrder, Shop",
        "NServiceBus.TimeSent": format_time(at - timedelta(minutes=1)),
        "NServiceBus.ProcessingEndpoint": "Sales",
        "NServiceBus.ProcessingMachine": "mill",
        "NServiceBus.FailedQ": "Sales@dbo",
        "NServiceBus.TimeOfFailure": format_time(at),
        "NServiceBus.ExceptionInfo.ExceptionType": "shop.OutOfStock",
        "NServiceBus.ExceptionInfo.Message": "no more A-1",
        "NServiceBus.ExceptionInfo.StackTrace": "shop.OutOfStock: no more A-1\n   at shop.handlers.place() in /shop.py:line 7\n",
    }
    changed = {name.replace("_", "."): value for name, value in headers.items()}
    return row({name: value for name, value in {**common, **changed}.items() if value is not None}, body)


def acknowledgement(of: uuid.UUID, **headers: str) -> NewRow:
    return row(
        {
            "ServiceControl.Retry.Successful": format_time(FAILED_AT),
            "ServiceControl.Retry.UniqueMessageId": str(of),
            "NServiceBus.ControlMessage": "True",
            **headers,
        },
        b"",
    )
