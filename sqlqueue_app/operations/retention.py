"""What is forgotten after its time: failures that need nobody, events, notifications, ended operations, actions, fine figures."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from sqlqueue_app.models import ConversationEdge, GroupFigures, MessageFigures, Operation, OperatorAction
from sqlqueue_app.operations.bulk.engine import OPEN
from sqlqueue_app.operations.events import forget_old_events
from sqlqueue_app.operations.failure_retention import forget_old_failures
from sqlqueue_app.operations.notifications.retention import forget_old_deliveries
from sqlqueue_app.operations.portions import delete_in_portions

OPERATIONS_KEPT: Final = timedelta(days=90)
# Who did what is asked for at the end of a year.
ACTIONS_KEPT: Final = timedelta(days=400)
FIGURES_KEPT: Final = {60: timedelta(days=2), 3600: timedelta(days=92)}
"""How long figures are kept, by the seconds of their time; those of a day are never forgotten."""


def forget_what_is_old(alias: str, now: datetime) -> None:
    """All of it, in portions. Raises the database's errors; what is done then stays done."""
    forget_old_failures(alias, now)
    forget_old_events(alias, now)
    forget_old_deliveries(alias, now)
    forget_old_operations(alias, now)
    forget_old_actions(alias, now)
    forget_fine_figures(alias, now)


def forget_old_operations(alias: str, now: datetime) -> int:
    """Delete operations that ended 90 days ago or earlier; the actions that asked for them stay. Returns how many."""
    # By the time of the request too, of which there is an index.
    old = {"requested_at__lt": now - OPERATIONS_KEPT, "finished_at__lt": now - OPERATIONS_KEPT}
    return delete_in_portions(Operation.objects.using(alias).filter(**old).exclude(state__in=OPEN).order_by("requested_at"))


def forget_old_actions(alias: str, now: datetime) -> int:
    """Delete what operators did 400 days ago or earlier; returns how many rows."""
    return delete_in_portions(OperatorAction.objects.using(alias).filter(at__lt=now - ACTIONS_KEPT).order_by("at"))


def forget_fine_figures(alias: str, now: datetime) -> int:
    """Delete figures of minutes after 2 days and of hours after 92, by their own time; returns how many rows."""
    deleted = 0
    for model in (MessageFigures, GroupFigures, ConversationEdge):
        for seconds, kept in FIGURES_KEPT.items():
            old = model._default_manager.using(alias).filter(seconds=seconds, at__lt=now - kept)
            deleted += delete_in_portions(old.order_by("at"))
    return deleted
