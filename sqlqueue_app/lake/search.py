"""Search of old messages in the files of a lake: the newest first, in portions, within a time limit, honest about what it left out.

Ids are looked for in all files at once: bloom filters and ranges of the row groups leave out nearly all of them. Anything else is
looked for in spans of time, from the newest backwards, until a portion is full: so a search for something common reads little, and
one for a rare text says how far back it has come when its time is over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from sqlqueue_app.lake.asking import QUEUE, Asked, Conditions, Cursor, conditions_of, instant
from sqlqueue_app.lake.columns import FAILURES
from sqlqueue_app.lake.data_files import DataFile, engine_root
from sqlqueue_app.lake.engine import Engine, FileProblem, OutOfTime, engine

SECONDS: Final = 2.0
READ_SECONDS: Final = 10.0
_DAY: Final = timedelta(days=1)
_MICRO: Final = timedelta(microseconds=1)
# The first span of a search for a text: a sixth of an hour. The spans grow as long as each takes less than this.
_FIRST_SPAN: Final = timedelta(minutes=10)
_SPAN_SECONDS: Final = 0.25
# No span of a search for a text may take more than this part of the time, nor any other more than all of it.
_SPAN_AT_MOST: Final = 0.75
_LEAST_SPAN: Final = timedelta(seconds=1)
_MOST_SPAN: Final = timedelta(days=4_000)
_TIMES: Final = ("counted_at", "sent_at", "started_at", "ended_at", "expires")
_TEXTS: Final = (
    "message_id", "conversation_id", "related_to", "message_type", "intent", "sending_endpoint", "endpoint",
)  # fmt: skip
_PLAIN: Final = (
    *_TEXTS, "native_id", "row_version", "processing_seconds", "critical_seconds", "body_bytes", "is_retried",
)  # fmt: skip
_OF_FAILURES: Final = ("exception_type", "exception_message", "unique_message_id")


@dataclass(frozen=True, slots=True)
class FoundMessage:
    """A message of the lake. `table` says whether it was handled (audited) or failed; `queue` and `row_version` where it lay.

    `counted_at` is when it was handled or has failed, or the nearest to that which is known; `path_queue` the queue as in paths.

    `headers` and `body` are read for one message alone, `headers` for a conversation as well.
    """

    table: str
    path_queue: str
    row_version: int
    counted_at: datetime
    sent_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    expires: datetime | None
    message_id: str
    conversation_id: str
    related_to: str
    message_type: str
    intent: str
    sending_endpoint: str
    endpoint: str
    processing_seconds: float | None
    critical_seconds: float | None
    body_bytes: int | None
    is_retried: bool
    exception_type: str = ""
    exception_message: str = ""
    unique_message_id: str = ""
    native_id: str = ""
    headers: str | None = None
    body: bytes | None = None

    @property
    def queue(self) -> str:
        """The queue that it was taken or copied from."""
        return unquote(self.path_queue)

    @property
    def day(self) -> date:
        """The day below which its file lies."""
        return self.counted_at.date()


@dataclass(slots=True)
class Results:
    """What was found. `next` goes on behind the portion, None: there is nothing more.

    `is_partial`: the time was over; what happened from `searched_from` on was searched, None: not even that of the newest span.
    `problems` name the files that could not be read; `files` is how many there were to search. `count` is how many messages fit,
    None where counting them would take too long.
    """

    messages: list[FoundMessage] = field(default_factory=list)
    next: Cursor | None = None
    is_partial: bool = False
    searched_from: datetime | None = None
    seconds: float = 0.0
    files: int = 0
    problems: list[str] = field(default_factory=list)
    count: int | None = None


class _Search:
    """One search: its engine, its files, its time."""

    def __init__(self, db: Engine, root: str, files: Sequence[DataFile], seconds: float, clock: Callable[[], float]) -> None:
        self.db = db
        self.root = root
        self.is_local = Path(root).is_absolute()
        self.files = list(files)
        self.problems: list[str] = []
        self._clock = clock
        self._end = clock() + seconds

    def left(self) -> float:
        """The seconds that are left."""
        return self._end - self._clock()

    def rows(self, files: Sequence[DataFile], sql: str, values: Sequence[object], at_most: float) -> list[tuple[Any, ...]]:
        """The rows of a statement, whose first value is the files; where one cannot be read, those of the others."""
        good = [each for each in files if each in self.files]
        if not good:
            return []
        try:
            return self._rows(good, sql, values, at_most)
        except FileProblem:
            left = self._there(good)
            if 0 < len(left) < len(good):
                return self.rows(left, sql, values, at_most)
            found = []
            for each in left:
                try:
                    found += self._rows([each], sql, values, at_most)
                except FileProblem as error:
                    self._leave_out(each, str(error))
            return found

    def _rows(self, files: Sequence[DataFile], sql: str, values: Sequence[object], at_most: float) -> list[tuple[Any, ...]]:
        paths = [f"{self.root}/{each.path}" for each in files]
        return self.db.rows(sql, [paths, *values], seconds=min(self.left(), at_most))

    def _there(self, files: Sequence[DataFile]) -> list[DataFile]:
        """Those of the files that are there, as far as that can be told without opening them."""
        gone = [each for each in files if self.is_local and not Path(self.root, each.path).exists()]
        for each in gone:
            self._leave_out(each, "the file is gone")
        return [each for each in files if each not in gone]

    def _leave_out(self, file: DataFile, why: str) -> None:
        self.files.remove(file)
        self.problems.append(f"{file.path}: {why}")


def search(
    lake: str,
    files: Sequence[DataFile],
    asked: Asked,
    *,
    seconds: float = SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> Results:
    """Search these files of the lake for at most so many seconds. Safe in several threads at once; nothing is left open.

    Raises LakeEngineMissing without DuckDB, LakeError for a lake that cannot be searched from here or where memory is short.
    A file that is broken or gone is named in the results, which have what the others hold.
    """
    begun = clock()
    root = engine_root(lake)
    wanted = [each for each in files if each.table in asked.tables and _is_in_range(each, asked)]
    results = Results(files=len(wanted))
    if wanted:
        try:
            with engine(root, wait=seconds) as db:
                running = _Search(db, root, wanted, begun + seconds - clock(), clock)
                _fill(running, asked, results)
        except OutOfTime:
            results.is_partial = True
    results.count = results.count if wanted else 0
    results.seconds = clock() - begun
    return results


def read_message(
    lake: str, files: Sequence[DataFile], row_version: int, *, with_body: bool, seconds: float = READ_SECONDS
) -> FoundMessage | None:
    """One message of these files, which are those of its table, queue and day, with its headers, and its body if wanted.

    None where it is not there. Raises as `search` does, OutOfTime, and FileProblem where it may be in a file that cannot be read.
    """
    wanted = list(files)
    if not wanted:
        return None
    root = engine_root(lake)
    with engine(root, wait=seconds) as db:
        running = _Search(db, root, wanted, seconds, time.monotonic)
        more = ("headers", "body") if with_body else ("headers",)
        # Of a table that was made anew, the last message with this number.
        found = _select(running, wanted, Conditions(["row_version = ?"], [row_version]), 1, more=more)
    if not found and running.problems:
        raise FileProblem("; ".join(running.problems))
    return found[0] if found else None


# --- walking back in time -----------------------------------------------------------------------------------------------------


def _fill(running: _Search, asked: Asked, results: Results) -> None:
    """Find a portion and one message more, which says whether there is a next one."""
    try:
        if asked.is_by_id:
            results.messages = _portion(running, asked, asked.since, asked.until)
        else:
            _walk(running, asked, results)
    except OutOfTime:
        results.is_partial = True
    results.messages.sort(key=_order, reverse=True)
    if len(results.messages) > asked.size:
        results.messages = results.messages[: asked.size]
        results.next = _cursor(results.messages[-1])
        results.is_partial = False
    elif results.is_partial and results.searched_from is not None:
        results.next = Cursor(results.searched_from, 0, "")
    results.count = _count(running, asked, results)
    results.problems += running.problems


def _walk(running: _Search, asked: Asked, results: Results) -> None:
    days = sorted({each.day for each in running.files})
    span = _FIRST_SPAN if asked.text else _DAY
    end = min(each for each in (asked.until, asked.after and asked.after.counted_at + _MICRO, _begin(days[-1]) + _DAY) if each)
    while len(results.messages) <= asked.size:
        earlier = [day for day in days if _begin(day) < end]
        if not earlier or (asked.since is not None and end <= asked.since):
            return
        end = min(end, _begin(earlier[-1]) + _DAY)
        begin = max(each for each in (end - span, asked.since, _begin(earlier[0])) if each)
        begun = running.left()
        try:
            found = _portion(running, asked, begin, end)
        except OutOfTime:
            if running.left() <= 0 or span <= _LEAST_SPAN:
                raise
            span /= 8
            continue
        results.messages += found
        results.searched_from = end = begin
        span = _next_span(span, begun - running.left())


def _next_span(span: timedelta, seconds: float) -> timedelta:
    if seconds < _SPAN_SECONDS:
        return min(span * (8 if seconds < _SPAN_SECONDS / 4 else 2), _MOST_SPAN)
    return max(span / 2, _LEAST_SPAN) if seconds > 2 * _SPAN_SECONDS else span


def _begin(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


def _is_in_range(file: DataFile, asked: Asked) -> bool:
    if asked.since is not None and file.day < asked.since.astimezone(UTC).date():
        return False
    last = min((each for each in (asked.until, asked.after and asked.after.counted_at) if each), default=None)
    return last is None or file.day <= last.astimezone(UTC).date()


# --- statements ---------------------------------------------------------------------------------------------------------------

_FROM: Final = "FROM read_parquet(?, filename = true, hive_partitioning = false)"


def _portion(running: _Search, asked: Asked, begin: datetime | None, end: datetime | None) -> list[FoundMessage]:
    """The newest messages of a span that fit, one more than asked for."""
    found: list[FoundMessage] = []
    inside = [each for each in running.files if _touches(each, begin, end)]
    for table in asked.tables:
        of_table = [each for each in inside if each.table == table]
        if not of_table:
            continue
        at_most = _SPAN_AT_MOST if asked.text else running.left()
        first = begin
        if not asked.is_by_id and not asked.text:
            # Which instants are wanted is read first: of all other columns only what is shown is read then.
            instants = _instants(running, of_table, conditions_of(asked, begin, end), asked.size + 1)
            if not instants:
                continue
            first = instants[-1]
        more = ("headers",) if asked.headers else ()
        found += _select(running, of_table, conditions_of(asked, first, end), asked.size + 1, more=more, at_most=at_most)
    return found


def _touches(file: DataFile, begin: datetime | None, end: datetime | None) -> bool:
    return (begin is None or _begin(file.day) + _DAY > begin) and (end is None or _begin(file.day) < end)


def _instants(running: _Search, files: Sequence[DataFile], conditions: Conditions, most: int) -> list[datetime]:
    sql = f"SELECT epoch_us(counted_at) {_FROM} WHERE {conditions.text} ORDER BY counted_at DESC LIMIT {most}"
    rows = running.rows(files, sql, conditions.values, running.left())
    return [instant(micros) for micros in sorted((row[0] for row in rows), reverse=True)[:most]]


def _select(
    running: _Search,
    files: Sequence[DataFile],
    conditions: Conditions,
    most: int,
    *,
    more: Sequence[str] = (),
    at_most: float = 3_600.0,
) -> list[FoundMessage]:
    """The newest rows of files of one table."""
    table = files[0].table
    names = [*_PLAIN, *(_OF_FAILURES if table == FAILURES.name else ()), *more]
    columns = ", ".join([*(f"epoch_us({name})" for name in _TIMES), *names, QUEUE])
    order = f"ORDER BY counted_at DESC, row_version DESC, {QUEUE} DESC LIMIT {most}"
    rows = running.rows(files, f"SELECT {columns} {_FROM} WHERE {conditions.text} {order}", conditions.values, at_most)
    return [_message(table, names, row) for row in rows]


def _message(table: str, names: Sequence[str], row: Sequence[Any]) -> FoundMessage:
    times: dict[str, Any] = {name: None if micros is None else instant(micros) for name, micros in zip(_TIMES, row, strict=False)}
    values = dict(zip(names, row[len(_TIMES) : -1], strict=True))
    values |= {name: values.get(name) or "" for name in (*_TEXTS, *_OF_FAILURES, "native_id")}
    values["is_retried"] = bool(values["is_retried"])
    return FoundMessage(table=table, path_queue=row[-1], **times, **values)


def _order(message: FoundMessage) -> tuple[datetime, int, str]:
    return message.counted_at, message.row_version, message.path_queue


def _cursor(message: FoundMessage) -> Cursor:
    return Cursor(message.counted_at, message.row_version, message.path_queue)


def _count(running: _Search, asked: Asked, results: Results) -> int | None:
    """How many messages fit, on the first page; counting them may take what is left of the time."""
    if asked.after is not None or asked.text or results.is_partial:
        return None
    if results.next is None:
        return len(results.messages)
    conditions = conditions_of(asked, asked.since, asked.until)
    try:
        sql = f"SELECT count(*) {_FROM} WHERE {conditions.text}"
        rows = running.rows(running.files, sql, conditions.values, running.left())
    except OutOfTime:
        return None
    return sum(int(row[0]) for row in rows)
