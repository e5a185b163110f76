"""The index of failed messages, kept in step with the error queues: new failures, removed rows, successful retries.

Rows are identified by their RowVersions. Each update compares the last TAIL RowVersions, because a row can be committed after one
with a higher RowVersion, and the next STRETCH of all others, which finds rows that were removed by hand. It reads the last known
row again, to detect a table that was recreated. That is six statements per error queue over index ranges of a thousand rows,
whatever its length.

Attempts of a message are distinguished by their time of failure, as in ServiceControl: a copy of the same failure is not another
attempt. The index is written in one transaction, by one process of the cluster at a time.
"""

from __future__ import annotations

import hashlib
import threading
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import count
from typing import Any, Final
from uuid import UUID

from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet

from sqlqueue_app.conf import Settings
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.envelope import IncomingMessage, guid_of
from sqlqueue_app.messages.errors import DatabaseError, PoisonMessage, TransientError
from sqlqueue_app.messages.failure_groups import (
    CLASSIFIERS,
    Group,
    deterministic_guid,
    groups_of,
    processing_endpoint,
    unique_message_id,
)
from sqlqueue_app.messages.headers import Headers, read_headers
from sqlqueue_app.messages.times import time_or_none
from sqlqueue_app.models import FailedAttempt, FailedMessage, FailureGroup, FailureStatus, managed_alias
from sqlqueue_app.models.failures import fitting
from sqlqueue_app.receiving.background import BackgroundJob
from sqlqueue_app.receiving.instances import claim, one_at_a_time
from sqlqueue_app.status.events import EventKind, NewEvent, record_events
from sqlqueue_app.status.instances import read_instances
from sqlqueue_app.status.queues import KnownQueue, QueueKind, known_queues
from sqlqueue_app.status.retention import RETENTION_SECONDS, delete_old_rows
from sqlqueue_app.status.samples import start_of
from sqlqueue_app.tables.connections import database_now, errors_of_alias, guarded_read
from sqlqueue_app.tables.queue import QueueTable, queue_table
from sqlqueue_app.tables.row_selection import headers_of_rows, remove_rows
from sqlqueue_app.tables.rows import PeekedRow, cut_text, without_nul

# RowVersions compared by each update: at the end of a queue, and of the rest.
TAIL: Final = 1_000
STRETCH: Final = 1_000
# Rows that are read with their headers by one statement.
READ_BATCH: Final = 100
# SQL Server takes 2,100 values in a statement.
GONE_BATCH: Final = 500
# An idle worker sends few statements (benchmarks/idle.py): one per error queue for new rows, a full update at every sixth call.
INDEX_SECONDS: Final = 10.0
FULL_SCAN_EVERY: Final = 6
# Rows and queues that a page reads; a worker reads the rest.
PAGE_ROWS: Final = 500
PAGE_QUEUES: Final = 2
# Bound for one run of the job, so that other jobs of the worker get their turn.
_BATCH: Final = 500
_BATCHES: Final = 40


@dataclass(frozen=True, slots=True)
class IndexState:
    """The result of an update: counts of new or repeated failures, removed messages and resolved messages.

    `is_behind` is set if rows are left for the next update. `problems` name the error queues that could not be read.
    """

    read: int = 0
    gone: int = 0
    resolved: int = 0
    is_behind: bool = False
    problems: tuple[str, ...] = ()

    def plus(self, other: IndexState) -> IndexState:
        return IndexState(
            self.read + other.read,
            self.gone + other.gone,
            self.resolved + other.resolved,
            self.is_behind or other.is_behind,
            self.problems + other.problems,
        )


def error_queues(settings: Settings) -> list[KnownQueue]:
    """The error queues of the settings. Raises AddressError for an invalid address."""
    return [queue for queue in known_queues(settings) if queue.kind is QueueKind.ERROR]


def catch_up(settings: Settings, *, limit: int, now: datetime, max_queues: int | None = None) -> IndexState:
    """Bring the index up to date: read at most `limit` rows, from at most `max_queues` error queues in rotation.

    Takes only acknowledgements out of the queues, and only with ERROR_QUEUE_OWNER "sqlqueue". Any number of processes may call this
    at the same time; each hundred rows are one transaction. Raises no database errors: a queue that cannot be read is listed in
    `problems` and tried again by the next update.
    """
    state = IndexState()
    for queue in _in_turn(error_queues(settings), max_queues, _reads):
        try:
            with errors_of_alias(managed_alias(), "write the index of failures"):
                state = state.plus(_QueueIndex(settings, queue).update(limit - state.read, now))
        except DatabaseError as error:
            state = state.plus(IndexState(problems=(f"{queue.name}: {error}{error.remedy}",)))
    return state


def catch_up_for_page(settings: Settings, now: datetime | None = None, *, max_queues: int = PAGE_QUEUES) -> IndexState:
    """Bring the index up to date as far as a page has time for, so that it is correct without a worker. See `catch_up`.

    `now` is the clock of the managed tables' database; it is read if the page does not know it. `max_queues` is the number of
    queues to read while a worker reads all of them.
    """
    is_alone = len(error_queues(settings)) > max_queues and not any(each.works_for_all for each in read_instances()[0])
    at = now or database_now(managed_alias())
    return catch_up(settings, limit=PAGE_ROWS, now=at, max_queues=None if is_alone else max_queues)


def has_new_failures(settings: Settings) -> bool:
    """Whether an error queue has a row behind the last known one; two statements per queue, queues in rotation.

    Only a full update finds removed and late rows. A queue that cannot be read counts as unchanged. Raises TransientErrors.
    """
    for queue in _in_turn(error_queues(settings), PAGE_QUEUES, _probes):
        known = FailedAttempt.objects.using(managed_alias()).filter(queue=queue.name, row_version__isnull=False)
        last = max(numbers_of(known.order_by("-row_version")[:1]), default=0)
        if _is_longer(settings, queue, last):
            return True
    return False


def _is_longer(settings: Settings, queue: KnownQueue, last: int) -> bool:
    table = queue_table(settings.database, queue.address)
    try:
        with guarded_read(table.alias, f"look for failures in {table.qualified}"):
            return bool(table.row_versions(1, after=last))
    except TransientError:
        raise
    except DatabaseError:
        return False  # a full update reports it


# Separate, because a page probes and then reads: with common turns, it may always read other queues than it has probed.
_probes: Final = count()
_reads: Final = count()
_cursors: Final[dict[tuple[str, str], int]] = {}
_cursors_lock: Final = threading.Lock()


def _in_turn(queues: list[KnownQueue], max_queues: int | None, turns: Iterator[int]) -> list[KnownQueue]:
    if max_queues is None or len(queues) <= max_queues:
        return queues
    first = next(turns) * max_queues % len(queues)
    return (queues + queues)[first : first + max_queues]


class _QueueIndex:
    def __init__(self, settings: Settings, queue: KnownQueue) -> None:
        self._alias = managed_alias()
        self._table: QueueTable = queue_table(settings.database, queue.address)
        self._queue = queue.name
        self._records = FailureRecords(self._alias, self._table, queue.name)
        self._is_ours = settings.error_queue_owner == "sqlqueue"

    def update(self, limit: int, now: datetime) -> IndexState:
        """Update the index of this queue once. Raises DatabaseError."""
        with guarded_read(self._table.alias, f"look for failures in {self._table.qualified}"):
            newest = self._attempts().order_by("-row_version").first()
            if newest is not None and not self._is_unchanged(newest, now):
                # The table was recreated and counts from 1 again: no known row is there.
                gone = numbers_of(self._attempts().order_by("-row_version")[: TAIL + STRETCH])
                return self._note_gone(gone, now).plus(IndexState(is_behind=True))
            start = max(newest.row_version or 0 if newest is not None else 0, TAIL) - TAIL
            late, missing = self._compare_stretch(start) if start else ([], set())
            # Known rows are read first: a row that arrives in between is not missing.
            known = set(numbers_of(self._attempts().filter(row_version__gt=start))) if newest is not None else set()
            there = self._table.row_versions(TAIL + limit, after=start)
            missing |= known.difference(there)
            runs = [*late, *_runs(there, known)]
        # After this many removed rows, as after a purge, expect more.
        is_behind = len(there) >= TAIL + limit or sum(map(len, runs)) > limit or len(missing) >= STRETCH
        state = self._note_gone(missing, now).plus(IndexState(is_behind=is_behind))
        for numbers in _chunks(runs, limit, READ_BATCH):
            state = state.plus(self._read(numbers, now))
        return state

    def _is_unchanged(self, attempt: FailedAttempt, now: datetime) -> bool:
        """Whether the row of the attempt is gone or still belongs to the same message."""
        row = self._table.peek_row(attempt.row_version or 0, body_limit=0)
        return row is None or read_error_row(self._queue, row, now)[1].id == attempt.failure_id

    def _note_gone(self, numbers: Collection[int], now: datetime) -> IndexState:
        gone = sum(self._records.gone(chunk, now) for chunk in _chunks([sorted(numbers)], len(numbers), GONE_BATCH))
        return IndexState(gone=gone)

    def _compare_stretch(self, until: int) -> tuple[list[list[int]], set[int]]:
        """Compare the next stretch of RowVersions up to `until`: runs of unknown rows, and known rows that are missing."""
        key = (self._table.alias, self._table.qualified)
        with _cursors_lock:
            start = _cursors.get(key, 0)
        start = start if start < until else 0
        stretch = self._attempts().filter(row_version__gt=start, row_version__lte=until)
        known = numbers_of(stretch.order_by("row_version")[:STRETCH])
        there = [each for each in self._table.row_versions(STRETCH, after=start) if each <= until]
        end = min([until, *(found[-1] for found in (known, there) if len(found) == STRETCH)])
        with _cursors_lock:
            _cursors[key] = end
        known_here = {each for each in known if each <= end}
        found_here = [each for each in there if each <= end]
        return list(_runs(found_here, known_here)), known_here.difference(found_here)

    def _read(self, numbers: list[int], now: datetime) -> IndexState:
        """Read consecutive rows and write them to the index."""
        wanted = set(numbers)
        with guarded_read(self._table.alias, f"read failures in {self._table.qualified}"):
            rows = self._table.peek(len(numbers), after=numbers[0] - 1, body_limit=0)
        failures: dict[int, FailureRow] = {}
        acknowledgements: list[Acknowledgement] = []
        for row in rows:
            if row.row_version in wanted:
                acknowledgement, failures[row.row_version] = read_error_row(self._queue, row, now)
                if acknowledgement is not None:
                    acknowledgements.append(acknowledgement)
        resolved = 0
        others: list[int] = []
        if acknowledgements and self._is_ours:
            resolved, others = self._records.resolve(acknowledgements, now)
        acknowledged = {each.row_version for each in acknowledgements}.difference(others)
        new = [failure for number, failure in failures.items() if number not in acknowledged]
        return IndexState(read=self._records.write(new, now) if new else 0, resolved=resolved)

    def _attempts(self) -> QuerySet[FailedAttempt]:
        return FailedAttempt.objects.using(self._alias).filter(queue=self._queue, row_version__isnull=False)


def _runs(there: Iterable[int], known: set[int]) -> Iterator[list[int]]:
    """The unknown RowVersions, grouped into runs that are consecutive in the queue."""
    run: list[int] = []
    for number in there:
        if number not in known:
            run.append(number)
        elif run:
            yield run
            run = []
    if run:
        yield run


def _chunks(runs: Iterable[list[int]], limit: int, size: int) -> Iterator[list[int]]:
    """The runs in chunks of `size`, together at most `limit` RowVersions."""
    left = limit
    for run in runs:
        for start in range(0, len(run), size):
            chunk = run[start : start + size][:left]
            if not chunk:
                return
            left -= len(chunk)
            yield chunk


class FailureIndexing:
    """Keeps the index up to date in a worker. `now` is the clock of the managed tables' database."""

    def __init__(self, settings: Settings, *, now: Callable[[], datetime] | None = None) -> None:
        self._settings = settings
        self._alias = managed_alias()
        self._now = now or partial(database_now, self._alias)
        # Another project in this database has its own error queues and its own claim.
        names = "\n".join(sorted(queue.name for queue in error_queues(settings)))
        self._claim = hashlib.sha256(names.encode()).hexdigest()[:16]
        self._calls = count()
        self._last: dict[str, int] = {}

    def job(self) -> BackgroundJob:
        return BackgroundJob("index of failures", INDEX_SECONDS, self.index, retries_silently=True)

    def index(self) -> IndexState:
        """Update the index if an error queue has grown, and at every sixth call, once per interval in the cluster.

        Deletes expired rows once an hour. Raises DatabaseError.
        """
        is_whole = next(self._calls) % FULL_SCAN_EVERY == 0
        queues = error_queues(self._settings)
        if not is_whole and not any(_is_longer(self._settings, queue, self._last.get(queue.name, 0)) for queue in queues):
            return IndexState()
        with errors_of_alias(self._alias, "keep the index of failures"):
            now = self._now()
            if not claim(self._alias, f"index of failures {self._claim}", start_of(now, INDEX_SECONDS)):
                return IndexState()
            state = self._catch_up(now)
            if is_whole and claim(self._alias, "retention of failures", start_of(now, RETENTION_SECONDS)):
                delete_old_rows(self._alias, now)
        return state

    def _catch_up(self, now: datetime) -> IndexState:
        state = IndexState()
        for _ in range(_BATCHES):
            found = catch_up(self._settings, limit=_BATCH, now=now)
            state = state.plus(replace(found, is_behind=False))
            if not found.is_behind or found.problems:
                break
        known = FailedAttempt.objects.using(self._alias).filter(row_version__isnull=False)
        for queue in error_queues(self._settings):
            last = numbers_of(known.filter(queue=queue.name).order_by("-row_version")[:1])
            self._last[queue.name] = max(last, default=0)
        return state


_LOCK: Final = "failure index is written"
_ATTEMPT_VALUES: Final = ("exception_type", "exception_message", "failed_q")
_WORKER_CHARACTERS: Final = 255
# In these states the row is in the error queue. In any other state a new row makes the message unresolved again.
_WAITING: Final = (FailureStatus.UNRESOLVED, FailureStatus.ARCHIVED)
_ENDED: Final = (FailureStatus.RESOLVED, FailureStatus.DELETED)
# A group is open while one of its messages is unresolved or its retry is not acknowledged.
_OPEN: Final = (FailureStatus.UNRESOLVED, FailureStatus.RETRY_ISSUED)
# Each failure is in one group per classifier; events report only this classifier.
_EVENT_CLASSIFIER: Final = CLASSIFIERS["exception"]
_WRITE_BATCH: Final = 100


class FailureRecords:
    """Writes the index of one error queue, in the managed tables of `alias`. `queue` is its name among the known queues."""

    def __init__(self, alias: str, table: QueueTable, queue: str) -> None:
        self._alias = alias
        self._table = table
        self._queue = queue

    def write(self, rows: Sequence[FailureRow], now: datetime) -> int:
        """Write failures that are new and whose rows still exist; returns how many."""
        with self._writing(now):
            known = self._known(each.row_version for each in rows)
            unknown = [each for each in rows if each.row_version not in known]
            stored = {each.pk: each for each in self._locked(Q(pk__in={each.id for each in unknown}))}
            # A message may have been retried between the read and the lock: its row is not a new failure.
            doubted = [each.row_version for each in unknown if each.id in stored]
            there = headers_of_rows(self._table, doubted)
            new = [each for each in unknown if each.id not in stored or each.row_version in there]
            self._write_groups(new, stored, now)
            _IndexBatch(self._alias, self._queue, now, stored).write(
                sorted(new, key=lambda each: (each.failed_at, each.row_version))
            )
        return len(new)

    def resolve(self, found: Sequence[Acknowledgement], now: datetime) -> tuple[int, list[int]]:
        """Delete acknowledgements and resolve their messages; returns how many, and the rows that are not acknowledgements.

        A message that has a row in the error queue has failed again since, and is not resolved. With an edited copy its original is
        resolved.
        """
        with self._writing(now):
            messages = FailedMessage.objects.using(self._alias)
            known = set(messages.filter(pk__in={each.id for each in found}).values_list("pk", flat=True))
            acknowledgements = [each for each in found if each.is_certain or each.id in known]
            removed = set(remove_rows(self._table, [each.row_version for each in acknowledgements]))
            ids = {each.id for each in acknowledgements if each.row_version in removed}
            resolved = 0
            # A copy names its original in a header, which is untrusted: a cycle ends when none is left to resolve.
            while ids:
                waiting = [each for each in self._locked(Q(pk__in=ids)) if each.row_version is None and each.status not in _ENDED]
                resolved += messages.filter(pk__in=[each.pk for each in waiting]).update(
                    status=FailureStatus.RESOLVED, status_at=now
                )
                ids = {each.edit_of for each in waiting if each.edit_of is not None}
        return resolved, [each.row_version for each in found if each not in acknowledgements]

    def gone(self, row_versions: Iterable[int], now: datetime) -> int:
        """Note that these rows are no longer in the queue; returns how many messages are gone with them."""
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
            messages.bulk_update(lost, ["queue", "row_version", "status", "status_at"], batch_size=_WRITE_BATCH)
        return sum(1 for each in lost if each.row_version is None)

    def _locked(self, condition: Q) -> list[FailedMessage]:
        """Lock the messages until the transaction ends: messages before their attempts, in the order of ids."""
        return list(FailedMessage.objects.using(self._alias).filter(condition).order_by("pk").select_for_update())

    def _copies(self, messages: Sequence[FailedMessage]) -> dict[UUID, tuple[str, int]]:
        """The latest other row of each message that has one."""
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
        stored.bulk_create(made, batch_size=_WRITE_BATCH)
        # A row that is not later than the last known failure was put back, or is a copy.
        failed_again = [
            each
            for each in rows
            if each.id not in messages or _comparable(each.failed_at) > _comparable(messages[each.id].failed_at)
        ]
        back = self._reopened({group.id for row in failed_again for group in row.groups} - missing)
        record_events(
            [
                NewEvent(EventKind.GROUP_NEW if key in missing else EventKind.GROUP_BACK, groups[key].title, {"group": str(key)})
                for key in groups
                if groups[key].classifier is _EVENT_CLASSIFIER and (key in missing or key in back)
            ],
            now=now,
        )

    def _reopened(self, groups: Collection[UUID]) -> set[UUID]:
        """The known groups without an open message, before the new failures are written."""
        members = FailedMessage.objects.using(self._alias).filter(**{_EVENT_CLASSIFIER.field: OuterRef("pk")}, status__in=_OPEN)
        known = FailureGroup.objects.using(self._alias).filter(~Exists(members), classifier=_EVENT_CLASSIFIER.name, pk__in=groups)
        return set(known.values_list("pk", flat=True)) if groups else set()

    @contextmanager
    def _writing(self, now: datetime) -> Iterator[None]:
        """A transaction on the managed tables, inside one on the queues if those are elsewhere; one at a time in the cluster.

        The inner transaction commits first: if the process dies in between, an acknowledgement is read again.
        """
        outer = nullcontext() if self._alias == self._table.alias else transaction.atomic(using=self._table.alias)
        with outer, transaction.atomic(using=self._alias):
            one_at_a_time(self._alias, _LOCK, now)
            yield


class _IndexBatch:
    """Writes rows of one error queue to the index, oldest failure first."""

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
        messages.bulk_create(self._new.values(), batch_size=_WRITE_BATCH)
        changed = [*(each.name for each in FailedMessage._meta.concrete_fields if not each.primary_key)]
        touched = [self._stored[each] for each in sorted({row.id for row in rows} & self._stored.keys())]
        messages.bulk_update(touched, changed, batch_size=_WRITE_BATCH)
        attempts.bulk_create(self._attempts, batch_size=_WRITE_BATCH)
        attempts.bulk_update(self._back, ["queue", "row_version"], batch_size=_WRITE_BATCH)

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
        place = {"queue": self._queue, "row_version": row.row_version}
        self._attempts.append(FailedAttempt(failure_id=row.id, failed_at=row.failed_at, **place, **row.attempt))

    def _fail_again(self, message: FailedMessage, row: FailureRow, *, is_new: bool) -> None:
        """Add the row of a known message: a failure after a retry, or another row of the same failure."""
        if is_new:
            message.attempts += 1
        if message.status == FailureStatus.RETRY_ISSUED and not is_new:
            return  # a copy of the retried row is not the result of the retry
        if is_new or message.status not in _WAITING:
            if message.status != FailureStatus.UNRESOLVED:
                message.status_at = self._now
            message.status = FailureStatus.UNRESOLVED
        message.first_failed_at = min(message.first_failed_at, row.failed_at)
        if message.row_version is None or row.failed_at >= message.failed_at:
            message.row_version, message.failed_at = row.row_version, max(message.failed_at, row.failed_at)
            for name, value in row.values.items():
                # A retry of an edited copy no longer names its original.
                if name != "edit_of" or value is not None:
                    setattr(message, name, value)


def numbers_of(attempts: QuerySet[FailedAttempt]) -> list[int]:
    """The RowVersions of the attempts, in their order."""
    return [int(number) for number in attempts.values_list("row_version", flat=True) if number is not None]


def _comparable(at: datetime) -> datetime:
    """An instant with the precision that every database keeps: SQLite has milliseconds."""
    return at - timedelta(microseconds=at.microsecond % 1_000)


MESSAGE_CHARACTERS: Final = 1_000
NO_FAILED_QUEUE: Final = f"the header {names.FAILED_QUEUE} is missing: the queue in which the message failed is unknown"


@dataclass(frozen=True, slots=True)
class FailureRow:
    """A failed message in an error queue. `values` are the columns of FailedMessage except id, state, position and counts.

    `attempt` are the columns of FailedAttempt except id, position and the actions of operators.
    """

    row_version: int
    id: uuid.UUID
    failed_at: datetime
    values: Mapping[str, Any]
    attempt: Mapping[str, Any]
    groups: tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """A message by which an endpoint reports that it has handled a retried message.

    `is_certain` if it cannot be anything else. An uncertain one is left in the queue if no retry waits for it.
    """

    row_version: int
    id: uuid.UUID
    is_certain: bool


def read_error_row(queue: str, row: PeekedRow, now: datetime) -> tuple[Acknowledgement | None, FailureRow]:
    """The acknowledgement in the row, if it is one, and the failure that it is otherwise. Never raises."""
    try:
        headers, unreadable = read_headers(row.headers), ""
    except PoisonMessage as error:
        headers, unreadable = {}, str(error)
    poison = unreadable or ("" if headers.get(names.FAILED_QUEUE) else NO_FAILED_QUEUE)
    return _acknowledgement(row, headers), _failure(queue, row, headers, poison, now)


def _acknowledgement(row: PeekedRow, headers: Headers) -> Acknowledgement | None:
    if names.RETRY_SUCCESSFUL not in headers:
        return None
    unique = guid_of(headers.get(names.RETRY_UNIQUE_MESSAGE_ID))
    if unique is None:
        return None
    is_control = (headers.get(names.CONTROL_MESSAGE) or "").lower() == "true"
    is_certain = is_control and names.FAILED_QUEUE not in headers and not row.body_length
    return Acknowledgement(row.row_version, unique, is_certain)


def _failure(queue: str, row: PeekedRow, headers: Headers, poison: str, now: datetime) -> FailureRow:
    message = IncomingMessage(row.id, headers, b"", row.correlation_id, row.reply_to_address)
    failed_at = time_or_none(headers.get(names.TIME_OF_FAILURE)) or message.time_sent or now
    groups = () if poison else groups_of(headers)
    fields = {each.classifier.field: each.id for each in groups}
    values: dict[str, Any] = {
        "queue": queue,
        "message_id": message.message_id,
        "conversation_id": message.conversation_id or "",
        "message_type": next(iter(message.message_types), ""),
        "endpoint": processing_endpoint(headers),
        "failed_q": headers.get(names.FAILED_QUEUE) or "",
        "exception_type": headers.get(names.EXCEPTION_TYPE) or "",
        "exception_message": (headers.get(names.EXCEPTION_MESSAGE) or "")[:MESSAGE_CHARACTERS],
        "poison": poison,
        "sent_at": message.time_sent,
        "size": row.body_length,
        "edit_of": guid_of(headers.get(names.EDIT_OF)),
        **{field: fields.get(field) for field in _GROUP_FIELDS},
    }
    native = str(row.id)
    unique = deterministic_guid(queue, native) if poison else unique_message_id(headers, native_id=native)
    values = {name: fitting(name, each) for name, each in values.items()}
    attempt = {
        **{name: values[name] for name in _ATTEMPT_VALUES},
        "worker": cut_text(headers.get(names.HOST_DISPLAY_NAME) or headers.get(names.PROCESSING_MACHINE) or "", _WORKER_CHARACTERS),
        "started_at": time_or_none(headers.get(names.HANDLER_START_TIME)),
        "delayed_at": time_or_none(headers.get(names.DELAYED_RETRIES_TIMESTAMP)),
    }
    return FailureRow(row.row_version, unique, failed_at, values, attempt, groups)


_GROUP_FIELDS: Final = tuple(each.name for each in FailedMessage._meta.get_fields() if each.name.endswith("_group"))
