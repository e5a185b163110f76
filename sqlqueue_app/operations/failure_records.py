"""Writing what was found in an error queue into the index of failures: in one transaction, by one process at a time.

An attempt is told from another by its time of failure, as ServiceControl does: a copy of the same failure is no further attempt.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet

from sqlqueue_app.messages.failure_groups import CLASSIFIERS
from sqlqueue_app.models import FailedAttempt, FailedMessage, FailureGroup, FailureStatus
from sqlqueue_app.operations.claims import one_at_a_time
from sqlqueue_app.operations.error_rows import Acknowledgement, FailureRow, without_nul
from sqlqueue_app.operations.events import EventKind, Happening, record_events
from sqlqueue_app.tables.chosen_rows import headers_of_rows, remove_rows
from sqlqueue_app.tables.queue import QueueTable

_LOCK: Final = "failure index is written"
_ATTEMPT_VALUES: Final = ("exception_type", "exception_message", "failed_q")
# What the message waits in: its row lies in the error queue. In every other state a row that comes makes it wait again.
_WAITING: Final = (FailureStatus.UNRESOLVED, FailureStatus.ARCHIVED)
_ENDED: Final = (FailureStatus.RESOLVED, FailureStatus.DELETED)
# A group is open while one of its messages waits for somebody, or for the end of a retry.
_OPEN: Final = (FailureStatus.UNRESOLVED, FailureStatus.RETRY_ISSUED)
# Each failure is in a group of every classifier: one of them is told of.
_TOLD_OF: Final = CLASSIFIERS["exception"]
_WRITTEN_AT_ONCE: Final = 100


class FailureRecords:
    """The index of one error queue in the managed tables of `alias`. `queue` is its name among the known queues."""

    def __init__(self, alias: str, table: QueueTable, queue: str) -> None:
        self._alias = alias
        self._table = table
        self._queue = queue

    def write(self, rows: Sequence[FailureRow], now: datetime) -> int:
        """Write the failures that are not known yet, and whose rows are there still; returns how many."""
        with self._writing(now):
            known = self._known(each.row_version for each in rows)
            unknown = [each for each in rows if each.row_version not in known]
            stored = {each.pk: each for each in self._locked(Q(pk__in={each.id for each in unknown}))}
            # Between the look and the lock somebody may have sent a message again: his row is no new failure.
            doubted = [each.row_version for each in unknown if each.id in stored]
            there = headers_of_rows(self._table, doubted)
            new = [each for each in unknown if each.id not in stored or each.row_version in there]
            self._write_groups(new, stored, now)
            _Batch(self._alias, self._queue, now, stored).write(sorted(new, key=lambda each: (each.failed_at, each.row_version)))
        return len(new)

    def resolve(self, found: Sequence[Acknowledgement], now: datetime) -> tuple[int, list[int]]:
        """Delete acknowledgements and mark as resolved what they are of: how many, and the rows that are no acknowledgements.

        A message whose row lies in the error queue has failed again since then, and stays as it is.
        """
        with self._writing(now):
            messages = FailedMessage.objects.using(self._alias)
            known = set(messages.filter(pk__in={each.id for each in found}).values_list("pk", flat=True))
            meant = [each for each in found if each.is_certain or each.id in known]
            removed = set(remove_rows(self._table, [each.row_version for each in meant]))
            ids = {each.id for each in meant if each.row_version in removed}
            self._locked(Q(pk__in=ids))
            waiting = messages.filter(pk__in=ids, row_version=None).exclude(status__in=_ENDED)
            resolved = waiting.update(status=FailureStatus.RESOLVED, status_at=now)
        return resolved, [each.row_version for each in found if each not in meant]

    def gone(self, row_versions: Iterable[int], now: datetime) -> int:
        """Note that these rows are not in the queue any more; returns how many messages are gone with them."""
        numbers = sorted(row_versions)
        with self._writing(now):
            here = {"queue": self._queue, "row_version__in": numbers}
            attempts = FailedAttempt.objects.using(self._alias).filter(**here)
            messages = FailedMessage.objects.using(self._alias)
            lost = self._locked(Q(**here) | Q(pk__in=attempts.values("failure")))
            attempts.update(row_version=None)
            lost = [each for each in lost if each.queue == self._queue and each.row_version in here["row_version__in"]]
            copies = self._copies(lost)
            for each in lost:
                each.queue, each.row_version = copies.get(each.pk, (each.queue, None))
                if each.row_version is None and each.status in _WAITING:
                    each.status, each.status_at = FailureStatus.GONE, now
            messages.bulk_update(lost, ["queue", "row_version", "status", "status_at"], batch_size=_WRITTEN_AT_ONCE)
        return sum(1 for each in lost if each.row_version is None)

    def _locked(self, condition: Q) -> list[FailedMessage]:
        """The messages, kept from others until the end of the transaction: messages before their attempts, in the order of ids."""
        return list(FailedMessage.objects.using(self._alias).filter(condition).order_by("pk").select_for_update())

    def _copies(self, messages: Sequence[FailedMessage]) -> dict[UUID, tuple[str, int]]:
        """The last of further rows of the messages, where there are any."""
        attempts = FailedAttempt.objects.using(self._alias).filter(failure__in=messages, row_version__isnull=False)
        found = attempts.order_by("failed_at", "row_version").values_list("failure_id", "queue", "row_version")
        return {failure: (queue, number) for failure, queue, number in found if number is not None}

    def _known(self, row_versions: Iterable[int]) -> set[int]:
        attempts = FailedAttempt.objects.using(self._alias).filter(queue=self._queue, row_version__in=list(row_versions))
        return set(numbers_of(attempts))

    def _write_groups(self, rows: Sequence[FailureRow], messages: Mapping[UUID, FailedMessage], now: datetime) -> None:
        groups = {group.id: group for row in rows for group in row.groups}
        stored = FailureGroup.objects.using(self._alias)
        missing = groups.keys() - set(stored.filter(pk__in=list(groups)).values_list("pk", flat=True))
        made = [
            FailureGroup(pk=each, classifier=groups[each].classifier.name, title=without_nul(groups[each].title), first_seen_at=now)
            for each in sorted(missing)
        ]
        stored.bulk_create(made, batch_size=_WRITTEN_AT_ONCE)
        failed_anew = [each for each in rows if each.id not in messages or _is_later(each, messages[each.id])]
        back = self._come_back({group.id for row in failed_anew for group in row.groups} - missing)
        record_events(
            [
                Happening(EventKind.GROUP_NEW if key in missing else EventKind.GROUP_BACK, groups[key].title, {"group": str(key)})
                for key in groups
                if groups[key].classifier is _TOLD_OF and (key in missing or key in back)
            ],
            now=now,
        )

    def _come_back(self, groups: Collection[UUID]) -> set[UUID]:
        """Those of the groups of which no message is open, before the new ones are written."""
        members = FailedMessage.objects.using(self._alias).filter(**{_TOLD_OF.field: OuterRef("pk")}, status__in=_OPEN)
        known = FailureGroup.objects.using(self._alias).filter(~Exists(members), classifier=_TOLD_OF.name, pk__in=groups)
        return set(known.values_list("pk", flat=True)) if groups else set()

    @contextmanager
    def _writing(self, now: datetime) -> Iterator[None]:
        """A transaction of the managed tables, within one of the queues where those are elsewhere; one at a time in the cluster.

        The inner one is committed first: an end of the process in between leaves an acknowledgement that is read again.
        """
        outer = nullcontext() if self._alias == self._table.alias else transaction.atomic(using=self._table.alias)
        with outer, transaction.atomic(using=self._alias):
            one_at_a_time(self._alias, _LOCK, now)
            yield


class _Batch:
    """Rows of one error queue on their way into the index, oldest failure first."""

    def __init__(self, alias: str, queue: str, now: datetime, stored: dict[UUID, FailedMessage]) -> None:
        self._alias = alias
        self._queue = queue
        self._now = now
        self._stored = stored
        self._times: defaultdict[UUID, set[datetime]] = defaultdict(set)
        self._returned: dict[tuple[UUID, datetime], FailedAttempt] = {}
        self._new: dict[UUID, FailedMessage] = {}
        self._attempts: list[FailedAttempt] = []
        self._back: list[FailedAttempt] = []

    def write(self, rows: Sequence[FailureRow]) -> None:
        messages = FailedMessage.objects.using(self._alias)
        attempts = FailedAttempt.objects.using(self._alias)
        for each in attempts.filter(failure__in=list(self._stored)):
            at = _comparable(each.failed_at)
            self._times[each.failure_id].add(at)
            if each.row_version is None:
                self._returned[each.failure_id, at] = each
        for row in rows:
            self._take(row)
        messages.bulk_create(self._new.values(), batch_size=_WRITTEN_AT_ONCE)
        changed = [*(each.name for each in FailedMessage._meta.concrete_fields if not each.primary_key)]
        touched = [self._stored[each] for each in sorted({row.id for row in rows} & self._stored.keys())]
        messages.bulk_update(touched, changed, batch_size=_WRITTEN_AT_ONCE)
        attempts.bulk_create(self._attempts, batch_size=_WRITTEN_AT_ONCE)
        attempts.bulk_update(self._back, ["queue", "row_version"], batch_size=_WRITTEN_AT_ONCE)

    def _take(self, row: FailureRow) -> None:
        at = _comparable(row.failed_at)
        self._attempt(row, at)
        message = self._stored.get(row.id) or self._new.get(row.id)
        if message is None:
            self._new[row.id] = FailedMessage(
                pk=row.id, status_at=self._now, row_version=row.row_version, first_failed_at=row.failed_at, failed_at=row.failed_at,
                **row.values,
            )  # fmt: skip
        else:
            self._fail_again(message, row, is_new=at not in self._times[row.id])
        self._times[row.id].add(at)

    def _attempt(self, row: FailureRow, at: datetime) -> None:
        back = self._returned.pop((row.id, at), None)
        if back is not None:
            back.queue, back.row_version = self._queue, row.row_version
            self._back.append(back)
            return
        values = {name: row.values[name] for name in _ATTEMPT_VALUES}
        self._attempts.append(
            FailedAttempt(
                failure_id=row.id, queue=self._queue, row_version=row.row_version, failed_at=row.failed_at, **values
            )
        )  # fmt: skip

    def _fail_again(self, message: FailedMessage, row: FailureRow, *, is_new: bool) -> None:
        """The row of a message that is known: a failure after a retry, or one more row of the same failure."""
        if is_new:
            message.attempts += 1
        if message.status == FailureStatus.RETRY_ISSUED and not is_new:
            return  # a copy of what was sent again is no answer to that
        if is_new or message.status not in _WAITING:
            if message.status != FailureStatus.UNRESOLVED:
                message.status_at = self._now
            message.status = FailureStatus.UNRESOLVED
        message.first_failed_at = min(_instant(message.first_failed_at), row.failed_at)
        if message.row_version is None or row.failed_at >= _instant(message.failed_at):
            message.row_version, message.failed_at = row.row_version, max(_instant(message.failed_at), row.failed_at)
            for name, value in row.values.items():
                setattr(message, name, value)


def numbers_of(attempts: QuerySet[FailedAttempt]) -> list[int]:
    """The RowVersions of the attempts, in their order."""
    return [int(number) for number in attempts.values_list("row_version", flat=True) if number is not None]


def _is_later(row: FailureRow, message: FailedMessage) -> bool:
    """Whether the row is a failure after the last that is known of its message; else it is one that was put back, or a copy."""
    return _comparable(row.failed_at) > _comparable(message.failed_at)


def _instant(value: datetime | None) -> datetime:
    instant: datetime = value  # type: ignore[assignment]  # of columns that are never NULL
    return instant


def _comparable(at: datetime | None) -> datetime:
    """An instant as every database keeps it: SQLite has milliseconds."""
    instant = _instant(at)
    return instant - timedelta(microseconds=instant.microsecond % 1_000)
