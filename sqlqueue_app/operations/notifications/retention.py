"""What was sent, or given up, is forgotten after a month."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from sqlqueue_app.models import DeliveryState, NotificationDelivery
from sqlqueue_app.operations.portions import delete_in_portions

KEPT: Final = timedelta(days=30)


def forget_old_deliveries(alias: str, now: datetime) -> int:
    """Delete the deliveries that were made 30 days ago or earlier and do not wait, a thousand at a time; returns how many."""
    old = NotificationDelivery.objects.using(alias).filter(created_at__lt=now - KEPT)
    return delete_in_portions(old.exclude(state=DeliveryState.WAITING).order_by("created_at"))
