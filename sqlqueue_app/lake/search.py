"""Search the messages in the files of a lake: newest first, page by page, within a time limit.

A search by id scans all files at once, because bloom filters and row group statistics exclude nearly all of them. Any other search
walks back from the newest time span until a page is full. When its time is up it reports how far back it got. DuckDB runs inside
the calling process, with bounds on memory, threads and concurrent searches; broken files are reported and skipped.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from operator import attrgetter
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from sqlqueue_app.lake.columns import FAILURES
from sqlqueue_app.lake.data_files import SEARCHED, DataFile, LakeEngineMissing, LakeError, engine_root
from sqlqueue_app.messages.headers import json_texts

SECONDS: Final = 2.0
READ_SECONDS: Final = 10.0
# The queue exists only in the file path; it distinguishes rows with the same time and RowVersion.
# The folder of the lake may have such a name, too: the last one counts.
QUEUE: Final = r"regexp_extract(filename, '.*/queue=([^/]*)/', 1)"
_TIMES: Final = ("counted_at", "sent_at", "started_at", "ended_at", "expires")
_TEXTS: Final = (
    "message_id", "conversation_id", "related_to", "message_type", "intent", "sending_endpoint", "endpoint",
)  # fmt: skip
_PLAIN: Final = (
    *_TEXTS, "native_id", "row_version", "processing_seconds", "critical_seconds", "body_bytes", "is_retried",
)  # fmt: skip
_OF_FAILURES: Final = ("exception_type", "exception_message", "unique_message_id")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_CURSOR: Final = re.compile(r"(-?[0-9]{1,18})\.([0-9]{1,19})\.(.{0,400})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class SearchQuery:
    """The query of a search; empty fields do not filter.

    In `message_type` and `endpoint`, ``*`` matches any characters. `text` is matched in headers and, with `bodies`, in bodies,
    ignoring case. The range is `since` (inclusive) to `until` (exclusive); `after` is the cursor of the previous page. `headers`:
    also read the headers.
    """

    conversation: str = ""
    message_id: str = ""
    message_type: str = ""
    endpoint: str = ""
    text: str = ""
    tables: tuple[str, ...] = SEARCHED
    since: datetime | None = None
    until: datetime | None = None
    after: Cursor | None = None
    size: int = 50
    headers: bool = False
    bodies: bool = False

    @property
    def is_by_id(self) -> bool:
        """Whether the query is selective enough to scan all files at once."""
        return bool(self.conversation or self.message_id)


@dataclass(frozen=True, slots=True)
class Cursor:
    """A position in the results, for keyset pagination. `queue` is encoded as in paths."""

    counted_at: datetime
    row_version: int
    queue: str

    def __str__(self) -> str:
        return f"{(self.counted_at - _EPOCH) // _MICRO}.{self.row_version}.{self.queue}"

    @classmethod
    def read(cls, text: str) -> Cursor | None:
        """Parse the text of a cursor; None for any other text."""
        found = _CURSOR.fullmatch(text)
        if found is None:
            return None
        try:
            at = instant(int(found[1]))
        except OverflowError:
            return None
        row_version = int(found[2])
        return cls(at, row_version, found[3]) if row_version < 2**63 else None


def instant(micros: int) -> datetime:
    """Convert microseconds since 1970."""
    return _EPOCH + micros * _MICRO


@dataclass(frozen=True, slots=True)
class FoundMessage:
    """A message of the lake. `table` is `messages` (handled) or `failures`; `queue` and `row_version` identify its former row.

    `counted_at` is the time of handling or failure, or the closest known time. `path_queue` is the queue as encoded in paths.
    `headers` and `body` are only read for a single message, `headers` also for a conversation.
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
        """The queue that it was taken or copied from, decoded."""
        return unquote(self.path_queue)

    @property
    def kind(self) -> str:
        """Its outcome: `handled` or `failed`."""
        return "failed" if self.table == FAILURES.name else "handled"

    @property
    def day(self) -> date:
        """The day of its partition."""
        return self.counted_at.date()


@dataclass(slots=True)
class Results:
    """A page of messages. `next` is the cursor of the next page, None on the last one.

    `is_partial`: the time was up; everything since `searched_from` was searched, None: not even the newest span. `problems` names
    the unreadable files, `files` is the number of files searched. `count` is the number of matches, None if too slow to count.
    """

    messages: list[FoundMessage] = field(default_factory=list)
    next: Cursor | None = None
    is_partial: bool = False
    searched_from: datetime | None = None
    seconds: float = 0.0
    files: int = 0
    problems: list[str] = field(default_factory=list)
    count: int | None = None


def search(
    lake: str,
    files: Sequence[DataFile],
    query: SearchQuery,
    *,
    seconds: float = SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> Results:
    """Search these files of the lake for at most `seconds`. Thread-safe; leaves nothing open.

    Raises LakeEngineMissing without DuckDB, and LakeError if the lake is out of reach or the memory limit is exceeded. Broken or
    missing files are listed in the results.
    """
    begun = clock()
    root = engine_root(lake)
    wanted = [each for each in files if each.table in query.tables and _is_in_range(each, query)]
    results = Results(files=len(wanted))
    if wanted:
        try:
            with engine(root, wait=seconds) as db:
                scan = _Scan(db, root, wanted, begun + seconds - clock(), clock)
                _fill(scan, query, results)
        except OutOfTime:
            results.is_partial = True
    results.count = results.count if wanted else 0
    results.seconds = clock() - begun
    return results


def read_message(
    lake: str, files: Sequence[DataFile], row_version: int, *, with_body: bool, seconds: float = READ_SECONDS
) -> FoundMessage | None:
    """Read one message with its headers from `files`, the files of its table, queue and day; None if it is not there.

    Raises like `search`, OutOfTime, and FileProblem if the message may be in an unreadable file.
    """
    wanted = list(files)
    if not wanted:
        return None
    root = engine_root(lake)
    with engine(root, wait=seconds) as db:
        scan = _Scan(db, root, wanted, seconds, time.monotonic)
        more = ("headers", "body") if with_body else ("headers",)
        # A recreated table reuses RowVersions: the newest message counts.
        found = _select(scan, wanted, Conditions(["row_version = ?"], [row_version]), 1, more=more)
    if not found and scan.problems:
        raise FileProblem("; ".join(scan.problems))
    return found[0] if found else None


class _Scan:
    """One running search: engine, readable files, deadline."""

    def __init__(self, db: Engine, root: str, files: Sequence[DataFile], seconds: float, clock: Callable[[], float]) -> None:
        self.db = db
        self.root = root
        self.is_local = Path(root).is_absolute()
        # Not a list: each file is looked up in it.
        self.files = dict.fromkeys(files)
        self.problems: list[str] = []
        self._clock = clock
        self._end = clock() + seconds

    def left(self) -> float:
        return self._end - self._clock()

    def rows(self, files: Sequence[DataFile], sql: str, values: Sequence[object], limit_seconds: float) -> list[tuple[Any, ...]]:
        """Run a statement whose first parameter is the list of files. Unreadable files are dropped and recorded in `problems`."""
        good = [each for each in files if each in self.files]
        if not good:
            return []
        try:
            return self._rows(good, sql, values, limit_seconds)
        except FileProblem:
            left = self._there(good)
            if 0 < len(left) < len(good):
                return self.rows(left, sql, values, limit_seconds)
            found = []
            for each in left:
                try:
                    found += self._rows([each], sql, values, limit_seconds)
                except FileProblem as error:
                    self._leave_out(each, str(error))
            return found

    def _rows(self, files: Sequence[DataFile], sql: str, values: Sequence[object], limit_seconds: float) -> list[tuple[Any, ...]]:
        paths = [f"{self.root}/{each.path}" for each in files]
        return self.db.rows(sql, [paths, *values], seconds=min(self.left(), limit_seconds))

    def _there(self, files: Sequence[DataFile]) -> list[DataFile]:
        """Drop local files that no longer exist or are out of reach."""
        left = []
        for each in files:
            try:
                if self.is_local:
                    Path(self.root, each.path).stat()
                left.append(each)
            except FileNotFoundError:
                self._leave_out(each, "the file is gone")
            except OSError as error:
                self._leave_out(each, str(error.strerror))
        return left

    def _leave_out(self, file: DataFile, why: str) -> None:
        del self.files[file]
        self.problems.append(f"{file.path}: {why}")


_DAY: Final = timedelta(days=1)
_MICRO: Final = timedelta(microseconds=1)
# The first span of a text search. Spans grow while each takes less than _SPAN_SECONDS.
_FIRST_SPAN: Final = timedelta(minutes=10)
_SPAN_SECONDS: Final = 0.25
# Seconds after which a span of a text search is abandoned and made shorter.
_MAX_SPAN_SECONDS: Final = 0.75
_MIN_SPAN: Final = timedelta(seconds=1)
_MAX_SPAN: Final = timedelta(days=4_000)


def _fill(scan: _Scan, query: SearchQuery, results: Results) -> None:
    """Read a page plus one message, which shows whether another page follows."""
    try:
        if query.is_by_id:
            results.messages = _newest(scan, query, query.since, query.until)
        else:
            _walk(scan, query, results)
    except OutOfTime:
        results.is_partial = True
    results.messages.sort(key=attrgetter("counted_at", "row_version", "path_queue"), reverse=True)
    if len(results.messages) > query.size:
        results.messages = results.messages[: query.size]
        last = results.messages[-1]
        results.next = Cursor(last.counted_at, last.row_version, last.path_queue)
        results.is_partial = False
    elif results.is_partial and results.searched_from is not None:
        results.next = Cursor(results.searched_from, 0, "")
    results.count = _count(scan, query, results)
    results.problems += scan.problems


def _walk(scan: _Scan, query: SearchQuery, results: Results) -> None:
    days = sorted({each.day for each in scan.files})
    span = _FIRST_SPAN if query.text else _DAY
    end = min(each for each in (query.until, query.after and query.after.counted_at + _MICRO, _begin(days[-1]) + _DAY) if each)
    while len(results.messages) <= query.size:
        earlier = [day for day in days if _begin(day) < end]
        if not earlier or (query.since is not None and end <= query.since):
            return
        end = min(end, _begin(earlier[-1]) + _DAY)
        begin = max(each for each in (end - span, query.since, _begin(earlier[0])) if each)
        begun = scan.left()
        try:
            found = _newest(scan, query, begin, end)
        except OutOfTime:
            if scan.left() <= 0 or span <= _MIN_SPAN:
                raise
            span /= 8
            continue
        results.messages += found
        results.searched_from = end = begin
        span = _next_span(span, begun - scan.left())


def _next_span(span: timedelta, seconds: float) -> timedelta:
    if seconds < _SPAN_SECONDS:
        return min(span * (8 if seconds < _SPAN_SECONDS / 4 else 2), _MAX_SPAN)
    return max(span / 2, _MIN_SPAN) if seconds > 2 * _SPAN_SECONDS else span


def _begin(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


def _is_in_range(file: DataFile, query: SearchQuery) -> bool:
    if query.since is not None and file.day < query.since.astimezone(UTC).date():
        return False
    last = min((each for each in (query.until, query.after and query.after.counted_at) if each), default=None)
    return last is None or file.day <= last.astimezone(UTC).date()


_FROM: Final = "FROM read_parquet(?, filename = true, hive_partitioning = false)"


def _newest(scan: _Scan, query: SearchQuery, begin: datetime | None, end: datetime | None) -> list[FoundMessage]:
    """The newest matches of a time span, one more than the page size."""
    found: list[FoundMessage] = []
    inside = [each for each in scan.files if _touches(each, begin, end)]
    for table in query.tables:
        of_table = [each for each in inside if each.table == table]
        if not of_table:
            continue
        limit_seconds = _MAX_SPAN_SECONDS if query.text else scan.left()
        first = begin
        if not query.is_by_id and not query.text:
            # Find the times first, so that the other columns are only read for the rows of the page.
            instants = _instants(scan, of_table, conditions_of(query, begin, end), query.size + 1)
            if not instants:
                continue
            first = instants[-1]
        more = ("headers",) if query.headers else ()
        found += _select(scan, of_table, conditions_of(query, first, end), query.size + 1, more=more, limit_seconds=limit_seconds)
    return found


def _touches(file: DataFile, begin: datetime | None, end: datetime | None) -> bool:
    return (begin is None or _begin(file.day) + _DAY > begin) and (end is None or _begin(file.day) < end)


def _instants(scan: _Scan, files: Sequence[DataFile], conditions: Conditions, limit: int) -> list[datetime]:
    sql = f"SELECT epoch_us(counted_at) {_FROM} WHERE {conditions.text} ORDER BY counted_at DESC LIMIT {limit}"
    rows = scan.rows(files, sql, conditions.values, scan.left())
    return [instant(micros) for micros in sorted((row[0] for row in rows), reverse=True)[:limit]]


def _select(
    scan: _Scan,
    files: Sequence[DataFile],
    conditions: Conditions,
    limit: int,
    *,
    more: Sequence[str],
    limit_seconds: float = 3_600.0,
) -> list[FoundMessage]:
    """The newest rows of files of one table, matching the conditions."""
    table = files[0].table
    names = [*_PLAIN, *(_OF_FAILURES if table == FAILURES.name else ()), *more]
    columns = ", ".join([*(f"epoch_us({name})" for name in _TIMES), *names, QUEUE])
    order = f"ORDER BY counted_at DESC, row_version DESC, {QUEUE} DESC LIMIT {limit}"
    rows = scan.rows(files, f"SELECT {columns} {_FROM} WHERE {conditions.text} {order}", conditions.values, limit_seconds)
    return [_message(table, names, row) for row in rows]


def _message(table: str, names: Sequence[str], row: Sequence[Any]) -> FoundMessage:
    times: dict[str, Any] = {name: None if micros is None else instant(micros) for name, micros in zip(_TIMES, row, strict=False)}
    values = dict(zip(names, row[len(_TIMES) : -1], strict=True))
    values |= {name: values.get(name) or "" for name in (*_TEXTS, *_OF_FAILURES, "native_id")}
    values["is_retried"] = bool(values["is_retried"])
    return FoundMessage(table=table, path_queue=row[-1], **times, **values)


def _count(scan: _Scan, query: SearchQuery, results: Results) -> int | None:
    """The number of matches, on the first page only and within the remaining time."""
    if query.after is not None or query.text or results.is_partial:
        return None
    if results.next is None:
        return len(results.messages)
    conditions = conditions_of(query, query.since, query.until)
    try:
        sql = f"SELECT count(*) {_FROM} WHERE {conditions.text}"
        rows = scan.rows([*scan.files], sql, conditions.values, scan.left())
    except OutOfTime:
        return None
    return sum(int(row[0]) for row in rows)


@dataclass(slots=True)
class Conditions:
    """The conditions of a WHERE clause, with their values as parameters."""

    sql: list[str]
    values: list[object]

    def add(self, sql: str, *values: object) -> None:
        self.sql.append(sql)
        self.values += values

    @property
    def text(self) -> str:
        """The conditions joined by AND."""
        return " AND ".join(self.sql) or "TRUE"


def conditions_of(query: SearchQuery, begin: datetime | None, end: datetime | None) -> Conditions:
    """The conditions of a query between `begin` (inclusive) and `end` (exclusive)."""
    found = Conditions([], [])
    if begin is not None:
        found.add("counted_at >= ?", begin)
    if end is not None:
        found.add("counted_at < ?", end)
    if query.after is not None:
        # Implied by the next condition, but only this one can skip row groups.
        found.add("counted_at <= ?", query.after.counted_at)
        found.add(
            f"(counted_at < ? OR (row_version, {QUEUE}) < (?, ?))",
            query.after.counted_at,
            query.after.row_version,
            query.after.queue,
        )
    for column, wanted in (("conversation_id", query.conversation), ("message_id", query.message_id)):
        if wanted:
            found.add(f"{column} = ?", wanted)
    for column, wanted in (("message_type", query.message_type), ("endpoint", query.endpoint)):
        if "*" in wanted:
            found.add(f"{column} LIKE ? ESCAPE '\\'", _like(wanted.split("*")))
        elif wanted:
            found.add(f"{column} = ?", wanted)
    if query.text:
        # A body that is not UTF-8 becomes NULL and does not match.
        columns = ("headers", "try(decode(body))") if query.bodies else ("headers",)
        matches = " OR ".join(f"regexp_matches({each}, ?)" for each in columns)
        found.add(f"({matches})", *[_pattern(query.text)] * len(columns))
    return found


def _like(parts: Iterable[str]) -> str:
    return "%".join(re.sub(r"([\\%_])", r"\\\1", part) for part in parts)


def _pattern(text: str) -> str:
    """An RE2 pattern for the text, raw or as any JSON writer escapes it, ignoring case. Much faster than ILIKE."""
    found = {*json_texts(text), json.dumps(text, ensure_ascii=False)[1:-1]}
    return "(?i)" + "|".join(re.escape(each) for each in sorted(found))


INSTALL: Final = "pip install 'django-sqlqueue[spark]'"
# Per search. DuckDB needs about 125 MB per thread; a search that needs more fails.
MEMORY: Final = "512MB"
THREADS: Final = 4
# Concurrent searches per process. The others wait, and the wait counts towards their time limit.
MAX_CONCURRENT: Final = 2
_turns = threading.BoundedSemaphore(MAX_CONCURRENT)


class OutOfTime(LakeError):
    """The time limit of a search was reached."""


class FileProblem(LakeError):
    """The engine could not read a file: it is probably broken or gone."""


class Engine:
    """A connection to an empty in-memory database, for one search in one thread. Created by `engine`."""

    def __init__(self, connection: Any, duckdb: Any) -> None:
        self._connection = connection
        self._duckdb = duckdb

    def rows(self, sql: str, values: Sequence[object], *, seconds: float) -> list[tuple[Any, ...]]:
        """Run a statement. Raises OutOfTime after `seconds`, FileProblem for an unreadable file, LakeError if memory runs out."""
        if seconds <= 0:
            raise OutOfTime("The time limit of the search was reached.")
        timer = threading.Timer(seconds, self._connection.interrupt)
        timer.daemon = True
        timer.start()
        try:
            found: list[tuple[Any, ...]] = self._connection.execute(sql, list(values)).fetchall()
        except self._duckdb.InterruptException as error:
            raise OutOfTime("The time limit of the search was reached.") from error
        except self._duckdb.OutOfMemoryException as error:
            raise LakeError(f"The search needs more memory than it may take ({MEMORY}): choose a shorter time.") from error
        except self._duckdb.Error as error:
            raise FileProblem(str(error).partition("\n")[0]) from error
        finally:
            timer.cancel()
            timer.join()
        return found


@contextmanager
def engine(root: str, *, wait: float) -> Iterator[Engine]:
    """A context with an engine for files below `root`. Raises LakeEngineMissing, and OutOfTime if none becomes free within `wait`.

    For a local lake it can only read files below the root and loads no extension.
    """
    try:
        import duckdb  # noqa: PLC0415 - optional dependency, only for lake searches
    except ImportError as error:
        raise LakeEngineMissing(f"Searching a lake needs DuckDB, which is not installed. Install it with: {INSTALL}") from error
    if not _turns.acquire(timeout=max(wait, 0)):
        raise OutOfTime("Other searches are running: try again in a moment.")
    try:
        connection = duckdb.connect(":memory:", config={"memory_limit": MEMORY, "threads": THREADS, "temp_directory": ""})
        try:
            _prepare(connection, duckdb, root)
            yield Engine(connection, duckdb)
        finally:
            connection.close()
    finally:
        _turns.release()


def _prepare(connection: Any, duckdb: Any, root: str) -> None:
    connection.execute("SET enable_progress_bar = false")
    connection.execute("SET parquet_metadata_cache = true")
    if Path(root).is_absolute():
        connection.execute("SET autoinstall_known_extensions = false")
        quoted = root.replace("'", "''")
        connection.execute(f"SET allowed_directories = ['{quoted}']")
        connection.execute("SET enable_external_access = false")
        return
    # Credentials come from the machine: environment, profile or role.
    scheme = root.partition(":")[0]
    kinds = {"s3": "s3", "r2": "r2", "gs": "gcs", "az": "azure", "abfss": "azure"}
    try:
        connection.execute(f"CREATE SECRET (TYPE {kinds[scheme]}, PROVIDER credential_chain)")
    except duckdb.Error as error:
        raise LakeError(f"The store of {root!r} cannot be reached: {error}") from error
