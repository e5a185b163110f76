"""What was sent, or given up, is forgotten after a month."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from sqlqueue_app.models import DeliveryState, NotificationDelivery

KEPT: Final = timedelta(days=30)
DELETED_AT_ONCE: Final = 1_000


def forget_old_deliveries(alias: str, now: datetime) -> int:
    """Delete the deliveries that were made 30 days ago or earlier and do not wait, a thousand at a time; returns how many."""
    deliveries = NotificationDelivery.objects.using(alias)
    old = deliveries.filter(created_at__lt=now - KEPT).exclude(state=DeliveryState.WAITING).order_by("created_at")
    forgotten = 0
    while chosen := list(old.values_list("pk", flat=True)[:DELETED_AT_ONCE]):
        deliveries.filter(pk__in=chosen).delete()
        forgotten += len(chosen)
        if len(chosen) < DELETED_AT_ONCE:
            break
    return forgotten
