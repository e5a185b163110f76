"""What became of the failed messages of which the lake has copies, as the index of failures knows it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from django.db.models import Q, QuerySet

from sqlqueue_app.lake.columns import FATES
from sqlqueue_app.models import BatchKind, CopyFate, FailedMessage, FailureStatus, LakeCopy
from sqlqueue_app.pipeline.computing import write_rows
from sqlqueue_app.pipeline.manifest import Commit
from sqlqueue_app.pipeline.places import inflight
from sqlqueue_app.pipeline.runs import count_in_run
from sqlqueue_app.pipeline.tools import Tools
from sqlqueue_app.tables.clock import database_now

_AT_ONCE: Final = 500
# The index of failures forgets what has ended before that.
_LOOKED_AT_FOR: Final = timedelta(days=30)
# Instants of the index and of the copies are written in different transactions.
_MARGIN: Final = timedelta(minutes=2)
_FINAL: Final = (CopyFate.RESOLVED, CopyFate.DELETED, CopyFate.GONE)
_OF_STATUS: Final = {
    FailureStatus.RESOLVED: CopyFate.RESOLVED,
    FailureStatus.RETRY_ISSUED: CopyFate.RETRIED,
    FailureStatus.DELETED: CopyFate.DELETED,
    FailureStatus.GONE: CopyFate.GONE,
}


@dataclass(frozen=True, slots=True)
class _Change:
    copy: LakeCopy
    fate: CopyFate
    at: datetime


class Fates:
    """The fates of the copies of one lake."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._since: datetime | None = None

    def learn(self) -> int:
        """Note what has changed since the last look, at first of all copies whose fate may change; returns how many did."""
        now = database_now(self._tools.alias)
        changed = 0
        for portion in _portions(self._candidates(now)):
            changed += self._write(list(self._changes(portion, now)))
        self._since = now
        return changed

    def _candidates(self, now: datetime) -> QuerySet[LakeCopy]:
        copies = LakeCopy.objects.using(self._tools.alias).filter(lake_id=self._tools.manifest.lake_id).exclude(fate__in=_FINAL)
        copies = copies.filter(Q(left_at=None) | Q(left_at__gte=now - _LOOKED_AT_FOR))
        if self._since is None:
            return copies.order_by("pk")
        since = self._since - _MARGIN
        failures = FailedMessage.objects.using(self._tools.alias).filter(status_at__gte=since)
        ids = [str(each) for each in failures.values_list("pk", flat=True)[: _AT_ONCE + 1]]
        if len(ids) > _AT_ONCE:
            return copies.order_by("pk")
        recent = Q(left_at__gte=since) | Q(left_at__isnull=False, fate=CopyFate.WAITING)
        return copies.filter(recent | Q(unique_message_id__in=ids)).order_by("pk")

    def _changes(self, copies: Sequence[LakeCopy], now: datetime) -> Iterator[_Change]:
        ids = {each.pk: _uuid(each.unique_message_id) for each in copies}
        failures = FailedMessage.objects.using(self._tools.alias).in_bulk([each for each in ids.values() if each is not None])
        for each in copies:
            key = ids[each.pk]
            failure = None if key is None else failures.get(key)
            fate = fate_of(each, failure)
            if fate != each.fate:
                yield _Change(each, fate, now if failure is None or failure.status_at is None else failure.status_at)

    def _write(self, changes: Sequence[_Change]) -> int:
        if not changes:
            return 0
        tools, batch = self._tools, uuid.uuid4()
        rows = [
            {
                "queue": each.copy.queue,
                "row_version": each.copy.row_version,
                "native_id": each.copy.native_id,
                "message_id": each.copy.message_id,
                "unique_message_id": each.copy.unique_message_id,
                "fate": str(each.fate),
                "fate_at": each.at,
                "copied_at": each.copy.copied_at,
                "batch": str(batch),
                "day": each.at.date(),
            }
            for each in changes
        ]
        commit = Commit(batch, BatchKind.FATES, rows=len(rows), files=write_rows(tools, batch, FATES, rows))
        tools.storage.sync([f"{inflight(batch)}/{each.written_as}" for each in commit.files])
        tools.manifest.publish(tools.committed(commit, lambda _: self._record(commit, changes)))
        return len(changes)

    def _record(self, commit: Commit, changes: Sequence[_Change]) -> None:
        for each in changes:
            each.copy.fate, each.copy.fate_at = each.fate, each.at
        LakeCopy.objects.using(self._tools.alias).bulk_update(
            [each.copy for each in changes], ["fate", "fate_at"], batch_size=_AT_ONCE // 5
        )
        self._tools.step("fates recorded")
        count_in_run(self._tools.alias, self._tools.run, batches=1, bytes=commit.bytes)


def fate_of(copy: LakeCopy, failure: FailedMessage | None) -> CopyFate:
    """What has become of a copied row, by what the index says of its message; as it was where the index does not know yet."""
    is_there = copy.left_at is None
    before = CopyFate(copy.fate)
    if failure is None:
        return before if is_there or before is not CopyFate.WAITING else CopyFate.GONE
    status = FailureStatus(failure.status)
    if is_there:
        return CopyFate.ARCHIVED if status is FailureStatus.ARCHIVED else CopyFate.WAITING
    if status in _OF_STATUS:
        return _OF_STATUS[status]
    is_same_row = (failure.queue, failure.row_version) == (copy.queue, copy.row_version)
    # It waits again, by another row: it was sent again and has failed again.
    return before if failure.row_version is None or is_same_row else CopyFate.RETRIED


def _portions(copies: QuerySet[LakeCopy]) -> Iterator[list[LakeCopy]]:
    after = 0
    while portion := list(copies.filter(pk__gt=after)[:_AT_ONCE]):
        yield portion
        after = portion[-1].pk


def _uuid(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(text)
    except ValueError:
        return None
