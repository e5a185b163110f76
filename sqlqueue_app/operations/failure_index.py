"""The index of failures kept in step with the error queues: what came, what is gone, what a retry has resolved (design 6.7).

Rows are known by their RowVersions. The numbers of the last rows are compared each time, because a row can be committed after one
with a higher number; all others are compared in turn, a piece at each look, which also finds what somebody took out by hand. The
last row is read, in case the table was made anew. That is six statements for each error queue, over index ranges of a thousand
rows, however long it is.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import count
from typing import Final

from django.db.models import QuerySet

from sqlqueue_app.conf import Settings
from sqlqueue_app.instances import managed_alias
from sqlqueue_app.messages.errors import DatabaseError, TransientError
from sqlqueue_app.models import FailedAttempt
from sqlqueue_app.operations.claims import claim
from sqlqueue_app.operations.error_rows import Acknowledgement, FailureRow, read_error_row
from sqlqueue_app.operations.failure_records import FailureRecords, numbers_of
from sqlqueue_app.operations.failure_retention import RETENTION_SECONDS
from sqlqueue_app.operations.known_queues import KnownQueue, QueueKind, known_queues
from sqlqueue_app.operations.looking import looking
from sqlqueue_app.operations.retention import forget_what_is_old
from sqlqueue_app.scheduler import BackgroundJob
from sqlqueue_app.tables.clock import database_now
from sqlqueue_app.tables.connections import connection_of, database_errors, dialect_of_connection
from sqlqueue_app.tables.queue import QueueTable, queue_table

# How many numbers of the end of a queue are compared at each look, and of the rest.
TAIL: Final = 1_000
STRETCH: Final = 1_000
# So many rows are read with their headers at once.
ROWS_AT_ONCE: Final = 100
# SQL Server takes 2,100 values in a statement.
GONE_AT_ONCE: Final = 500
# An idle worker asks the database little (benchmarks/idle.py): one statement for each error queue, whether a row has come behind
# the last one that is known, and at every sixth look for all the rest.
LOOK_SECONDS: Final = 10.0
WHOLE_LOOKS: Final = 6
# One run of the job: the rest is left to the next, so that other jobs of the worker have their turn.
_BATCH: Final = 500
_BATCHES: Final = 40


@dataclass(frozen=True, slots=True)
class IndexState:
    """What a look has found: failures that came or came again, messages that are gone, that were resolved.

    `is_behind`: there is more, which the next look reads. `problems` name the error queues that could not be read.
    """

    read: int = 0
    gone: int = 0
    resolved: int = 0
    is_behind: bool = False
    problems: tuple[str, ...] = ()

    def plus(self, other: IndexState) -> IndexState:
        """Both together."""
        return IndexState(
            self.read + other.read,
            self.gone + other.gone,
            self.resolved + other.resolved,
            self.is_behind or other.is_behind,
            self.problems + other.problems,
        )


def error_queues(settings: Settings) -> list[KnownQueue]:
    """The error queues of the settings. Raises AddressError for an address that cannot be read."""
    return [queue for queue in known_queues(settings) if queue.kind is QueueKind.ERROR]


def catch_up(settings: Settings, *, limit: int, now: datetime, queues_at_most: int | None = None) -> IndexState:
    """Bring the index up to date; reads at most `limit` rows of error queues, and looks at `queues_at_most` of them in turn.

    Takes nothing but acknowledgements, and those only with ERROR_QUEUE_OWNER "sqlqueue". Any number of processes may do this at
    once; what is written is one transaction for each hundred rows. A queue that cannot be read is named in `problems`, and left for
    the next look; the same for a database that is away: no error of a database is raised.
    """
    state = IndexState()
    for queue in _in_turn(error_queues(settings), queues_at_most):
        try:
            with database_errors(dialect_of_connection(connection_of(managed_alias())), "write the index of failures"):
                state = state.plus(_QueueIndex(settings, queue).look(limit - state.read, now))
        except DatabaseError as error:
            state = state.plus(IndexState(problems=(f"{queue.name}: {error}",)))
    return state


def has_new_failures(settings: Settings, queues_at_most: int) -> bool:
    """Whether an error queue has a row behind the last one that is known: two statements for each, of which it takes some in turn.

    What is gone, and what has come late, only a whole look finds. A queue that cannot be read has none. Raises TransientErrors.
    """
    for queue in _in_turn(error_queues(settings), queues_at_most):
        known = FailedAttempt.objects.using(managed_alias()).filter(queue=queue.name, row_version__isnull=False)
        last = max(numbers_of(known.order_by("-row_version")[:1]), default=0)
        if _is_longer(settings, queue, last):
            return True
    return False


def _is_longer(settings: Settings, queue: KnownQueue, last: int) -> bool:
    """Whether the queue has a row behind this one."""
    table = queue_table(settings.database, queue.address)
    try:
        with looking(table.alias, f"look for failures in {table.qualified}"):
            return bool(table.row_versions(1, after=last))
    except TransientError:
        raise
    except DatabaseError:
        return False  # the look at everything names it


_turns: Final = count()
_cursors: Final[dict[tuple[str, str], int]] = {}
_cursors_lock: Final = threading.Lock()


def _in_turn(queues: list[KnownQueue], at_most: int | None) -> list[KnownQueue]:
    if at_most is None or len(queues) <= at_most:
        return queues
    first = next(_turns) * at_most % len(queues)
    return (queues + queues)[first : first + at_most]


class _QueueIndex:
    """The index of one error queue."""

    def __init__(self, settings: Settings, queue: KnownQueue) -> None:
        self._alias = managed_alias()
        self._table: QueueTable = queue_table(settings.database, queue.address)
        self._queue = queue.name
        self._records = FailureRecords(self._alias, self._table, queue.name)
        self._is_ours = settings.error_queue_owner == "sqlqueue"

    def look(self, limit: int, now: datetime) -> IndexState:
        """One look. Raises DatabaseError."""
        with looking(self._table.alias, f"look for failures in {self._table.qualified}"):
            newest = self._attempts().order_by("-row_version").first()
            if newest is not None and not self._is_there_as_it_was(newest, now):
                # The table was made anew, and counts from 1 again: nothing of what is known is there.
                gone = numbers_of(self._attempts().order_by("-row_version")[: TAIL + STRETCH])
                return self._note_gone(gone, now).plus(IndexState(is_behind=True))
            start = max(newest.row_version or 0 if newest is not None else 0, TAIL) - TAIL
            late, missing = self._compare_stretch(start) if start else ([], set())
            # What is known is asked first: a row that comes in between is no missing one.
            known = set(numbers_of(self._attempts().filter(row_version__gt=start))) if newest is not None else set()
            there = self._table.row_versions(TAIL + limit, after=start)
            missing |= known.difference(there)
            runs = [*late, *_runs(there, known)]
        # Where so many are gone at once, as after a purge, more of them are.
        is_behind = len(there) >= TAIL + limit or sum(map(len, runs)) > limit or len(missing) >= STRETCH
        state = self._note_gone(missing, now).plus(IndexState(is_behind=is_behind))
        for numbers in _portions(runs, limit, ROWS_AT_ONCE):
            state = state.plus(self._read(numbers, now))
        return state

    def _is_there_as_it_was(self, attempt: FailedAttempt, now: datetime) -> bool:
        """Whether the row of the attempt, if it is there, is of the same message still."""
        number = attempt.row_version or 0
        rows = self._table.peek(1, after=number - 1, body_limit=0)
        if not rows or rows[0].row_version != number:
            return True
        return read_error_row(self._queue, rows[0], now)[1].id == attempt.failure_id

    def _note_gone(self, numbers: Collection[int], now: datetime) -> IndexState:
        gone = sum(self._records.gone(portion, now) for portion in _portions([sorted(numbers)], len(numbers), GONE_AT_ONCE))
        return IndexState(gone=gone)

    def _compare_stretch(self, until: int) -> tuple[list[list[int]], set[int]]:
        """A stretch of the numbers up to `until`, another one at each call: what is not known of it, and what is not there."""
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
        there_here = [each for each in there if each <= end]
        return list(_runs(there_here, known_here)), known_here.difference(there_here)

    def _read(self, numbers: list[int], now: datetime) -> IndexState:
        """Read rows that follow each other, and write what they say."""
        wanted = set(numbers)
        with looking(self._table.alias, f"read failures in {self._table.qualified}"):
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
        told = {each.row_version for each in acknowledgements}.difference(others)
        new = [failure for number, failure in failures.items() if number not in told]
        return IndexState(read=self._records.write(new, now) if new else 0, resolved=resolved)

    def _attempts(self) -> QuerySet[FailedAttempt]:
        return FailedAttempt.objects.using(self._alias).filter(queue=self._queue, row_version__isnull=False)


def _runs(there: Iterable[int], known: set[int]) -> Iterator[list[int]]:
    """The numbers that are not known, those that follow each other in the queue together."""
    run: list[int] = []
    for number in there:
        if number not in known:
            run.append(number)
        elif run:
            yield run
            run = []
    if run:
        yield run


def _portions(runs: Iterable[list[int]], limit: int, size: int) -> Iterator[list[int]]:
    """The runs in portions of a size, together no more than the limit."""
    left = limit
    for run in runs:
        for start in range(0, len(run), size):
            portion = run[start : start + size][:left]
            if not portion:
                return
            left -= len(portion)
            yield portion


class FailureIndexing:
    """Keeps the index up to date in a worker, one for all of them. `now` is the clock of the managed tables' database."""

    def __init__(self, settings: Settings, *, now: Callable[[], datetime] | None = None) -> None:
        self._settings = settings
        self._alias = managed_alias()
        self._now = now or partial(database_now, self._alias)
        # Another project on this database has error queues and a claim of its own.
        names = "\n".join(sorted(queue.name for queue in error_queues(settings)))
        self._claim = hashlib.sha256(names.encode()).hexdigest()[:16]
        self._looks = count()
        self._last: dict[str, int] = {}

    def job(self) -> BackgroundJob:
        """`index` as a background job."""
        return BackgroundJob("index of failures", LOOK_SECONDS, self._run)

    def index(self) -> IndexState:
        """Catch up if there is something new, and at every sixth call; unless another process has in these ten seconds.

        Forgets what is old, once an hour. Raises DatabaseError.
        """
        is_whole = next(self._looks) % WHOLE_LOOKS == 0
        if not is_whole and not self._has_grown():
            return IndexState()
        with database_errors(dialect_of_connection(connection_of(self._alias)), "keep the index of failures"):
            now = self._now()
            if not claim(self._alias, f"index of failures {self._claim}", _begin(now, LOOK_SECONDS)):
                return IndexState()
            state = self._catch_up(now)
            if is_whole and claim(self._alias, "retention of failures", _begin(now, RETENTION_SECONDS)):
                forget_what_is_old(self._alias, now)
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

    def _has_grown(self) -> bool:
        """Whether an error queue has a row behind the last one that was known after the last look of this process."""
        return any(_is_longer(self._settings, queue, self._last.get(queue.name, 0)) for queue in error_queues(self._settings))

    def _run(self) -> None:
        try:
            self.index()
        except TransientError:
            # The database is away, or (SQLite) written to by somebody who takes long: the next look comes.
            return


def _begin(now: datetime, seconds: float) -> datetime:
    return datetime.fromtimestamp(now.timestamp() // seconds * seconds, UTC)
