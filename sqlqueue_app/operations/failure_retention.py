"""Failures that need nobody any more are forgotten: ServiceControl keeps them for 15 days (operations reference 3.6)."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from django.db import transaction
from django.db.models import Exists, OuterRef

from sqlqueue_app.messages.failure_groups import CLASSIFIERS
from sqlqueue_app.models import FailedAttempt, FailedMessage, FailureGroup, FailureStatus
from sqlqueue_app.operations.portions import DELETED_AT_ONCE

KEPT: Final = timedelta(days=15)
RETENTION_SECONDS: Final = 3_600.0
# Whatever waits in an error queue is kept for ever, archived or not: to forget it would be to find it again as new.
_OLD_AT_SOME_TIME: Final = (FailureStatus.RESOLVED, FailureStatus.DELETED, FailureStatus.GONE)


def forget_old_failures(alias: str, now: datetime) -> int:
    """Delete what was resolved, deleted or gone 15 days ago or earlier, and groups without messages and notes; returns how many.

    A thousand messages are one transaction. A message of which a copy lies in an error queue is kept.
    """
    forgotten = 0
    messages = FailedMessage.objects.using(alias)
    lies_there = Exists(FailedAttempt.objects.using(alias).filter(failure=OuterRef("pk"), row_version__isnull=False))
    old = messages.filter(~lies_there, status__in=_OLD_AT_SOME_TIME, status_at__lt=now - KEPT)
    fields = [each.field for each in CLASSIFIERS.values()]
    while True:
        with transaction.atomic(using=alias):
            chosen = list(old.order_by("pk").values_list("pk", *fields)[:DELETED_AT_ONCE])
            messages.filter(pk__in=[key for key, *_groups in chosen]).delete()
            for field, groups in zip(fields, zip(*(groups for _key, *groups in chosen), strict=True), strict=False):
                _forget_groups(alias, field, {each for each in groups if each is not None})
        forgotten += len(chosen)
        if len(chosen) < DELETED_AT_ONCE:
            return forgotten


def _forget_groups(alias: str, field: str, groups: Iterable[UUID]) -> None:
    members = FailedMessage.objects.using(alias).filter(**{"status__in": FailureStatus.values, f"{field}__in": groups})
    empty = set(groups).difference(members.values_list(field, flat=True).distinct())
    FailureGroup.objects.using(alias).filter(pk__in=empty, note="").delete()
