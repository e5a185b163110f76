"""Retention: deletes old rows, a thousand in each transaction."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import transaction
from django.db.models import Exists, OuterRef, QuerySet

from sqlqueue_app.messages.failure_groups import CLASSIFIERS
from sqlqueue_app.models import (
    ConversationEdge,
    DeliveryState,
    Event,
    FailedAttempt,
    FailedMessage,
    FailureGroup,
    FailureStatus,
    GroupFigures,
    MessageFigures,
    NotificationDelivery,
    Operation,
    OperatorAction,
    UniqueMessage,
)
from sqlqueue_app.models.operations import OPEN

OPERATIONS_KEPT: Final = timedelta(days=90)
# Year-end audits need the record of actions.
ACTIONS_KEPT: Final = timedelta(days=400)
# How long a message that waits longer than its key holds still keeps another from being sent.
UNIQUE_KEPT: Final = timedelta(days=14)
MORE: Final[list[Callable[[str, datetime], object]]] = []
"""What else to delete, called with the same arguments: parts that not every project loads add theirs."""
ROLLUPS_KEPT: Final = {60: timedelta(days=2), 3600: timedelta(days=92)}
"""Retention of rollups by the seconds of their interval; daily ones are kept forever."""


def delete_old_rows(alias: str, now: datetime) -> None:
    """Delete everything that is due, in chunks. Raises the database's errors; committed chunks stay deleted."""
    delete_old_failures(alias, now)
    delete_old_events(alias, now)
    delete_old_deliveries(alias, now)
    # Also filtered by the time of the request, which has an index. The actions that requested the operations stay.
    old = {"requested_at__lt": now - OPERATIONS_KEPT, "finished_at__lt": now - OPERATIONS_KEPT}
    delete_in_chunks(Operation.objects.using(alias).filter(**old).exclude(state__in=OPEN).order_by("requested_at"))
    delete_in_chunks(OperatorAction.objects.using(alias).filter(at__lt=now - ACTIONS_KEPT).order_by("at"))
    delete_old_rollups(alias, now)
    # Its message may still wait.
    records = UniqueMessage.objects.using(alias).filter(unique_until__lt=now - UNIQUE_KEPT)
    delete_in_chunks(records.order_by("unique_until"))
    for delete in MORE:
        delete(alias, now)


def delete_old_rollups(alias: str, now: datetime) -> int:
    """Delete minute rollups after 2 days and hourly ones after 92, by their own time. Returns the number of rows."""
    deleted = 0
    for model in (MessageFigures, GroupFigures, ConversationEdge):
        for seconds, kept in ROLLUPS_KEPT.items():
            old = model._default_manager.using(alias).filter(seconds=seconds, at__lt=now - kept)
            deleted += delete_in_chunks(old.order_by("at"))
    return deleted


# Like ServiceControl (docs/internals/operations.md#retention).
FAILURES_KEPT: Final = timedelta(days=15)
RETENTION_SECONDS: Final = 3_600.0
# Messages in an error queue are kept, archived or not: once forgotten, they would be found again as new.
_EXPIRING_STATUSES: Final = (FailureStatus.RESOLVED, FailureStatus.DELETED, FailureStatus.GONE)


def delete_old_failures(alias: str, now: datetime) -> int:
    """Delete messages resolved, deleted or gone for 15 days, and groups without messages and notes. Returns the number deleted.

    A thousand messages are one transaction. A message with a copy in an error queue is kept.
    """
    forgotten = 0
    messages = FailedMessage.objects.using(alias)
    has_row = Exists(FailedAttempt.objects.using(alias).filter(failure=OuterRef("pk"), row_version__isnull=False))
    fields = [each.field for each in CLASSIFIERS.values()]
    # One status at a time, in the order of their index: by the primary key, every message would be read.
    for status in _EXPIRING_STATUSES:
        old = messages.filter(~has_row, status=status, status_at__lt=now - FAILURES_KEPT).order_by("failed_at", "pk")
        is_last = False
        while not is_last:
            with transaction.atomic(using=alias):
                chosen = list(old.values_list("pk", *fields)[:DELETE_BATCH])
                messages.filter(pk__in=[key for key, *_groups in chosen]).delete()
                for field, groups in zip(fields, zip(*(groups for _key, *groups in chosen), strict=True), strict=False):
                    members = messages.filter(status__in=FailureStatus.values, **{field: OuterRef("pk")})
                    ids = {each for each in groups if each is not None}
                    FailureGroup.objects.using(alias).filter(~Exists(members), pk__in=ids, note="").delete()
            forgotten += len(chosen)
            is_last = len(chosen) < DELETE_BATCH
    return forgotten


NOTIFICATIONS_KEPT: Final = timedelta(days=30)


def delete_old_deliveries(alias: str, now: datetime) -> int:
    """Delete finished deliveries that are at least 30 days old, a thousand at a time. Returns the number deleted."""
    old = NotificationDelivery.objects.using(alias).filter(created_at__lt=now - NOTIFICATIONS_KEPT)
    return delete_in_chunks(old.exclude(state=DeliveryState.WAITING).order_by("created_at"))


DELETE_BATCH: Final = 1_000


def delete_in_chunks(rows: QuerySet[Any]) -> int:
    """Delete the rows of an ordered queryset, a thousand in each transaction, until none is left. Returns the number deleted."""
    deleted = 0
    # The default manager of a project's model may not show these rows.
    table = rows.model._base_manager.using(rows.db)
    while chosen := list(rows.values_list("pk", flat=True)[:DELETE_BATCH]):
        table.filter(pk__in=chosen).delete()
        deleted += len(chosen)
        if len(chosen) < DELETE_BATCH:
            break
    return deleted


# As long as ServiceControl keeps its event log (docs/internals/operations.md#event-log).
EVENTS_KEPT: Final = timedelta(days=14)


def delete_old_events(alias: str, now: datetime) -> int:
    """Delete events older than 14 days, a thousand at once. Returns the number deleted."""
    return delete_in_chunks(Event.objects.using(alias).filter(at__lt=now - EVENTS_KEPT).order_by("at", "id"))
