"""What is forgotten after its time: failures that need nobody, events, notifications, operations that have ended, actions."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from sqlqueue_app.models import Operation, OperatorAction
from sqlqueue_app.operations.bulk.engine import OPEN
from sqlqueue_app.operations.events import forget_old_events
from sqlqueue_app.operations.failure_retention import forget_old_failures
from sqlqueue_app.operations.notifications.retention import forget_old_deliveries
from sqlqueue_app.operations.portions import delete_in_portions

OPERATIONS_KEPT: Final = timedelta(days=90)
# Who did what is asked for at the end of a year.
ACTIONS_KEPT: Final = timedelta(days=400)


def forget_what_is_old(alias: str, now: datetime) -> None:
    """All of it, in portions. Raises the database's errors; what is done then stays done."""
    forget_old_failures(alias, now)
    forget_old_events(alias, now)
    forget_old_deliveries(alias, now)
    forget_old_operations(alias, now)
    forget_old_actions(alias, now)


def forget_old_operations(alias: str, now: datetime) -> int:
    """Delete operations that ended 90 days ago or earlier; the actions that asked for them stay. Returns how many."""
    # By the time of the request too, of which there is an index.
    old = {"requested_at__lt": now - OPERATIONS_KEPT, "finished_at__lt": now - OPERATIONS_KEPT}
    return delete_in_portions(Operation.objects.using(alias).filter(**old).exclude(state__in=OPEN).order_by("requested_at"))


def forget_old_actions(alias: str, now: datetime) -> int:
    """Delete what operators did 400 days ago or earlier; returns how many rows."""
    return delete_in_portions(OperatorAction.objects.using(alias).filter(at__lt=now - ACTIONS_KEPT).order_by("at"))
