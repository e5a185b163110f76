"""Rows of the failure index, for tests that do not need the messages themselves."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

from sqlqueue_app.models import FailedMessage

FAILED_AT = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def failure(**fields: Any) -> FailedMessage:
    """A failed message of the index, with nothing in any queue."""
    known = {
        "id": uuid.uuid4(),
        "status_at": FAILED_AT,
        "queue": "error",
        "message_id": str(uuid.uuid4()),
        "message_type": "Shop.PlaceOrder",
        "endpoint": "Sales",
        "failed_q": "Sales",
        "exception_type": "shop.errors.OutOfStock",
        "exception_message": "no tea left",
        "first_failed_at": FAILED_AT,
        "failed_at": FAILED_AT,
    }
    return FailedMessage.objects.create(**{**known, **fields})
