"""Queues: their names, depth, age of the first message, and problems of their tables."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

from django.db.models import TextChoices
from django.utils.translation import gettext_lazy

from sqlqueue_app.conf import PipelineSettings, Settings, get_settings, instance_name
from sqlqueue_app.conf.validation import suggestion
from sqlqueue_app.dialects.dialect import QueueLayout
from sqlqueue_app.dialects.schema import PlannedTable, TableKind
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.addresses import AddressBook, QueueAddress, quote_postgresql
from sqlqueue_app.messages.errors import (
    AddressError,
    ConfigurationError,
    ConnectionLost,
    DatabaseError,
    PoisonMessage,
    QueueNotFound,
    TableMismatch,
)
from sqlqueue_app.messages.headers import read_headers
from sqlqueue_app.messages.times import parse_time
from sqlqueue_app.models import CallbackQueue, Instance
from sqlqueue_app.tables.connections import connection_of, dialect_of_connection, guarded_read, optional_read
from sqlqueue_app.tables.installation import Finding, FindingKind, findings_of_layout, inspect_tables
from sqlqueue_app.tables.listing import (
    DeadRows,
    HorizonHolder,
    ListedTable,
    QueueSnapshot,
    count_expiries,
    current_catalog,
    horizon_holders,
    list_tables,
    snapshot_queues,
)
from sqlqueue_app.tables.queue import EXACT_COUNT_LIMIT, Depth, QueueTable, queue_table

# The maximum number of rows of long tables counted in one read of all tables; beyond it, depths are estimated.
MAX_COUNTED: Final = 50_000
_MIN_LIMIT: Final = 200


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """One queue. `exists` and `depth` are None if they could not be read; `problem` holds the cause and the remedy.

    `head_age` belongs to the first row and is None for an empty queue. `expiry_exact`: whether the two numbers of the Expires
    backlog are exact, which is possible while the depth is an estimate. `written`: the number of rows ever written into the
    table, if the database provides it. `dead`: its dead rows on PostgreSQL, if it was read together with others.
    """

    queue: KnownQueue
    table: str
    exists: bool | None = None
    depth: Depth | None = None
    expiry_exact: bool = True
    head_age: HeadAge | None = None
    problem: QueueProblem | None = None
    written: int | None = None
    dead: DeadRows | None = None

    @property
    def name(self) -> str:
        return self.queue.name

    @property
    def head_age_seconds(self) -> float | None:
        """The age of the first message, 0 if it was sent while the queues were read; None for an empty queue and if unknown."""
        age = None if self.head_age is None else self.head_age.age
        return None if age is None else max(age.total_seconds(), 0.0)


def total_depth(depths: Iterable[Depth | None]) -> Depth | None:
    """The total depth of several queues; None if one of them could not be counted, or without any."""
    counted = list(depths)
    known = [each for each in counted if each is not None]
    waiting, expiring, expired = (sum(getattr(each, name) for each in known) for name in ("waiting", "expiring", "expired"))
    is_known = known and len(known) == len(counted)
    return Depth(waiting, expiring, expired, exact=all(each.exact for each in known)) if is_known else None


def limit_of_each(tables: int, limit: int) -> int:
    """The number of rows up to which each of several tables is counted: `limit`, or less for many tables."""
    return min(limit, max(_MIN_LIMIT, MAX_COUNTED // max(1, tables)))


def utc_now() -> datetime:
    """The clock of this process."""
    return datetime.now(UTC)


def read_queues(
    settings: Settings,
    queues: Sequence[KnownQueue],
    *,
    limit: int = EXACT_COUNT_LIMIT,
    now: datetime,
    listed: Iterable[ListedTable] | None = None,
) -> list[QueueStatus]:
    """Read queues in their order, except missing callback queues. `listed`: the tables, where known. Raises ConnectionLost.

    Exact up to `limit`, or less for more than five long queues, which share 50,000 rows to count. A page of 200 queues
    must not take 200 round trips: they are read together, and one by one if one of them fails.
    """
    lower = limit_of_each(len(queues), limit)
    listed = listed_tables(settings.database) if listed is None else listed
    layouts = {table_key(table.address): table.layout for table in listed if table.layout is not None}
    together = {queue: layout for queue in queues if (layout := layouts.get(table_key(queue.address))) is not None}

    def probe(unseen: list[KnownQueue]) -> dict[KnownQueue, QueueStatus]:
        with optional_read(settings.database, f"inspect {len(unseen)} queues"):
            found = _read_together(settings, {queue: together[queue] for queue in unseen}, lower, now)
            # Few queues are long. Gaps inflate an estimate, most of all in an error queue.
            long = [queue for queue, each in found.items() if each.depth is not None and not each.depth.exact]
            if long and (higher := limit_of_each(len(long), limit)) > lower:
                found |= _read_together(settings, {queue: together[queue] for queue in long}, higher, now)
            return found
        return {}

    found = shared_snapshots({queue: (settings.database, queue) for queue in together}, probe)
    statuses = [found.get(queue) or read_queue(settings, queue, limit=lower, now=lambda: now) for queue in queues]
    return [each for each in statuses if each.exists is not False or each.queue.kind is not QueueKind.CALLBACK]


def table_key(address: QueueAddress) -> tuple[str | None, str | None, str]:
    """The identity of a table: on SQLite and, by its usual collations, on SQL Server names differ by more than case."""
    if address.form == "postgresql":
        return (None, address.schema, address.table)
    schema, catalog = address.schema, address.catalog
    return (catalog and catalog.lower(), schema and schema.lower(), address.table.lower())


def listed_tables(alias: str) -> list[ListedTable]:
    """The tables of the database; none if its catalog cannot be read. Raises ConnectionLost."""
    with optional_read(alias, "list the tables"):
        return list_tables(alias)
    return []


def _read_together(
    settings: Settings, queues: dict[KnownQueue, QueueLayout], limit: int, now: datetime
) -> dict[KnownQueue, QueueStatus]:
    alias = settings.database
    snapshots = dict(zip(queues, snapshot_queues(alias, [queue.address for queue in queues], limit + 1), strict=True))
    long = [queue for queue, snapshot in snapshots.items() if snapshot.waiting > limit and queues[queue].expires_index]
    expiries = dict(zip(long, count_expiries(alias, [queue.address for queue in long], limit + 1), strict=True))
    found = {}
    for queue, snapshot in snapshots.items():
        table = queue_table(alias, queue.address)
        table.remember_layout(queues[queue])
        depth = _depth(snapshot, expiries.get(queue), limit)
        problem = problem_of_found_layout(table, queue, settings.table_layout, queues[queue])
        expiry_exact = depth.exact or (queue in expiries and depth.expiring <= limit)
        age = head_age(snapshot.head, now) if depth.waiting else None
        dead = None if snapshot.dead is None else DeadRows(table.qualified, snapshot.dead, snapshot.live or 0)
        found[queue] = QueueStatus(queue, table.qualified, True, depth, expiry_exact, age, problem, snapshot.written, dead)
    return found


def _depth(snapshot: QueueSnapshot, expiries: tuple[int, int] | None, limit: int) -> Depth:
    if snapshot.waiting <= limit:
        return Depth(snapshot.waiting, snapshot.expiring, snapshot.expired, exact=True)
    expiring, expired = expiries or (snapshot.expiring, snapshot.expired)
    return Depth(max(snapshot.span, snapshot.waiting), expiring, expired, exact=False)


def read_queue(
    settings: Settings, queue: KnownQueue, *, limit: int = EXACT_COUNT_LIMIT, now: Callable[[], datetime] = utc_now
) -> QueueStatus:
    """Read one queue. Raises ConnectionLost."""
    table = queue_table(settings.database, queue.address)
    try:
        with guarded_read(settings.database, f"inspect {table.qualified}"):
            layout = table.layout()
            depth = table.depth(limit)
            # Beyond the limit both numbers come from the index on Expires, which bounds them too.
            expiry_exact = depth.exact or (layout.expires_index and depth.expiring <= limit)
            problem = problem_of_layout(table, queue, settings.table_layout)
            head = table.peek(1, body_limit=0) if depth.waiting else []
            age = head_age(head[0].headers, now()) if head else None
            return QueueStatus(queue, table.qualified, True, depth, expiry_exact, age, problem)
    except ConnectionLost:
        raise
    except DatabaseError as error:
        unreadable, exists = problem_of_error(table, queue, settings.table_layout, error)
        return QueueStatus(queue, table.qualified, exists=exists, problem=unreadable)


class QueueKind(TextChoices):
    """The purpose of a queue; OTHER for a table that the settings do not name."""

    MAIN = "main", gettext_lazy("main")
    SATELLITE = "satellite", gettext_lazy("satellite")
    ERROR = "error", gettext_lazy("error")
    AUDIT = "audit", gettext_lazy("audit")
    CALLBACK = "callback", gettext_lazy("callback")
    OTHER = "other", gettext_lazy("other")


@dataclass(frozen=True, slots=True)
class KnownQueue:
    """A queue that the settings or a running instance name.

    `name` is unique among the known queues: the literal name of the table, or the whole address if the settings place the queue
    elsewhere than its name implies. `endpoints` are those that receive from it, or use it for failures or audits.
    """

    name: str
    address: QueueAddress
    kind: QueueKind
    endpoints: tuple[str, ...]

    @property
    def is_receiving(self) -> bool:
        """Whether workers receive from it: a main queue or a satellite."""
        return self.kind in (QueueKind.MAIN, QueueKind.SATELLITE)

    @property
    def planned(self) -> PlannedTable:
        """The table as the installer would create it."""
        return PlannedTable(TableKind.QUEUE, self.address)


def address_book_of(settings: Settings, *, endpoint: str | None = None) -> AddressBook:
    """The address book of the queues' database; does not connect."""
    connection = connection_of(settings.database)
    return settings.address_book(dialect_of_connection(connection).name, current_catalog(connection), endpoint=endpoint)


def known_queues(
    settings: Settings, holders: Iterable[Instance | CallbackQueue] = (), *, book: AddressBook | None = None
) -> list[KnownQueue]:
    """Every known queue once: main queues and satellites, error and audit queues, then callback queues.

    Callback queues are the pool of this machine if CALLBACKS is True, and those that `holders` name. `book` is by default that of
    the queues' database. Does not connect. AddressError for an invalid error or audit address.
    """
    book = book or address_book_of(settings)
    found: dict[tuple[str | None, ...], KnownQueue] = {}
    for address, kind, endpoint in (*_of_settings(settings, book), *_callback_queues(settings, book, holders)):
        key = table_key(address)
        first = found.get(key)
        if first is None:
            found[key] = KnownQueue(name_of_queue(book, address), address, kind, (endpoint,))
        elif endpoint not in first.endpoints:
            found[key] = replace(first, endpoints=(*first.endpoints, endpoint))
    return list(found.values())


_Entry = tuple[QueueAddress, QueueKind, str]


def _of_settings(settings: Settings, book: AddressBook) -> Iterator[_Entry]:
    for endpoint in settings.senders.values():
        for queue in endpoint.receiving_queue_names():
            yield book.of_queue(queue), QueueKind.MAIN if queue == endpoint.name else QueueKind.SATELLITE, endpoint.name
    for endpoint in settings.senders.values():
        yield book.parse(endpoint.error_queue), QueueKind.ERROR, endpoint.name
    for endpoint in settings.senders.values():
        if endpoint.audit_queue is not None:
            yield book.parse(endpoint.audit_queue), QueueKind.AUDIT, endpoint.name


def _callback_queues(settings: Settings, book: AddressBook, holders: Iterable[Instance | CallbackQueue]) -> Iterator[_Entry]:
    for endpoint in settings.senders.values():
        if endpoint.callbacks is True:
            for queue in endpoint.callback_queue_names(instance_name(endpoint)):
                yield book.of_queue(queue), QueueKind.CALLBACK, endpoint.name
    for holder in holders:
        if holder.callback_queue:
            try:
                yield book.of_queue(holder.callback_queue), QueueKind.CALLBACK, holder.endpoint
            except AddressError:
                continue  # the row was written by hand: the instance is shown without a depth


def pipeline_addresses(settings: Settings, kind: QueueKind, book: AddressBook) -> list[QueueAddress]:
    """The audit or error queues that the pipeline reads: those of its settings, else those of all endpoints; each once."""
    pipeline = settings.pipeline or PipelineSettings()
    texts = pipeline.audit_queues if kind is QueueKind.AUDIT else pipeline.error_queues
    if texts is None:
        return [each.address for each in known_queues(settings, book=book) if each.kind is kind]
    found: dict[tuple[str | None, ...], QueueAddress] = {}
    for address in map(book.parse, texts):
        found.setdefault(table_key(address), address)
    return list(found.values())


def known_queue_at(settings: Settings, address: str) -> KnownQueue | None:
    """The known queue with this address as the wire writes it; None if there is none or it is not an address. Never connects."""
    try:
        found = address_book_of(settings).parse(address)
    except AddressError:
        return None
    return next((each for each in known_queues(settings) if each.address == found), None)


def name_of_queue(book: AddressBook, address: QueueAddress) -> str:
    """The name of a `KnownQueue` with this address."""
    return address.table if book.of_queue(address.table) == address else str(address)


def queue_name_at(address: str) -> str:
    """The name of the queue at this address as the wire writes it, for pages; the text itself if it is not an address."""
    book = address_book_of(get_settings())
    try:
        return name_of_queue(book, book.parse(address))
    except AddressError:
        return address


def address_of_queue(name: str) -> str:
    """The address of the queue of this name, as the wire writes it in FailedQ; the text itself if it has none. Never connects."""
    book = address_book_of(get_settings())
    try:
        return book.canonical(book.of_queue(name))
    except AddressError:
        return name


def table_of_argument(settings: Settings, text: str, known: Iterable[KnownQueue]) -> QueueTable:
    """The queue that a user names: a known queue, else the table of this literal name, else the table of this address.

    ConfigurationError with the nearest known name if there is none; TableMismatch for a table that is not a queue; QueueNotFound
    for a known queue whose table is missing.
    """
    if not text.strip():
        raise ConfigurationError(f"the name of the queue is {text!r}: expected the name of a queue or its address")
    names = {queue.name: queue.address for queue in known}
    table = _existing(settings, names, text)
    if table is None:
        near = suggestion(text, names) or f"; known are {', '.join(names) or 'none: the settings have no endpoints'}"
        raise ConfigurationError(f"there is no queue {text!r} in database {settings.database!r}{near}")
    # A table without the columns of a queue is not one: never delete from an unrelated table.
    table.layout()
    return table


def _existing(settings: Settings, names: dict[str, QueueAddress], text: str) -> QueueTable | None:
    if text in names:
        return queue_table(settings.database, names[text])
    book = address_book_of(settings)
    literal = queue_table(settings.database, book.of_queue(text))
    if literal.exists():
        return literal
    try:
        parsed = queue_table(settings.database, book.parse(text))
    except AddressError:
        return None
    return parsed if parsed.exists() else None


INSTALL_COMMAND = "python manage.py sqlqueue_install"


class ProblemKind(TextChoices):
    """The kind of a problem; the values are stable, for machines."""

    MISSING = "missing", gettext_lazy("Missing")
    MISMATCH = "mismatch", gettext_lazy("Not a queue")
    UNREADABLE = "unreadable", gettext_lazy("Unreadable")
    NO_EXPIRES_INDEX = "no_expires_index", gettext_lazy("No index on Expires")
    NON_UNICODE_HEADERS = "non_unicode_headers", gettext_lazy("Headers not in Unicode")
    DEAD_ROWS = "dead_rows", gettext_lazy("Dead rows pile up")

    @property
    def stops_work(self) -> bool:
        """Whether nothing can be sent or received; otherwise the problem affects speed or non-ASCII letters."""
        return self in (ProblemKind.MISSING, ProblemKind.MISMATCH, ProblemKind.UNREADABLE)


@dataclass(frozen=True, slots=True)
class QueueProblem:
    """One problem. `sql` and `command` are two remedies; empty where not applicable."""

    kind: ProblemKind
    text: str
    sql: str = ""
    command: str = ""

    @property
    def stops_work(self) -> bool:
        return self.kind.stops_work


_KINDS = {
    FindingKind.MISSING: ProblemKind.MISSING,
    FindingKind.MISMATCH: ProblemKind.MISMATCH,
    FindingKind.NO_EXPIRES_INDEX: ProblemKind.NO_EXPIRES_INDEX,
    FindingKind.NON_UNICODE_HEADERS: ProblemKind.NON_UNICODE_HEADERS,
}


def problem_of_error(table: QueueTable, queue: KnownQueue, layout: str, error: DatabaseError) -> tuple[QueueProblem, bool | None]:
    """Explain an error of reading the table. Also returns whether the table exists (None: unknown)."""
    if isinstance(error, QueueNotFound):
        try:
            finding = _first(table, queue, layout)
        except ConnectionLost:
            raise
        except DatabaseError:
            finding = None
        if finding is not None and finding.kind is FindingKind.MISSING:
            return QueueProblem(ProblemKind.MISSING, finding.text, finding.sql, INSTALL_COMMAND), False
        return QueueProblem(ProblemKind.MISSING, str(error), command=INSTALL_COMMAND), False
    if isinstance(error, TableMismatch):
        return QueueProblem(ProblemKind.MISMATCH, str(error)), True
    return QueueProblem(ProblemKind.UNREADABLE, f"{error}{error.remedy}"), None


def problem_of_layout(table: QueueTable, queue: KnownQueue, layout: str) -> QueueProblem | None:
    """A possible improvement of a working table; reads the database only if the known columns suggest one."""
    found = table.layout()
    if found.expires_index and found.unicode_headers:
        return None
    finding = _first(table, queue, layout)
    if finding is None:
        # It was repaired since this process read the columns.
        table.forget_layout()
        return None
    return QueueProblem(_KINDS[finding.kind], finding.text, finding.sql)


def problem_of_found_layout(table: QueueTable, queue: KnownQueue, layout: str, found: QueueLayout) -> QueueProblem | None:
    """The same for columns that were just read, without a statement."""
    finding = next(iter(findings_of_layout(table.dialect, queue.planned, found, layout)), None)
    return None if finding is None else QueueProblem(_KINDS[finding.kind], finding.text, finding.sql)


def _first(table: QueueTable, queue: KnownQueue, layout: str) -> Finding | None:
    findings = inspect_tables(table.alias, [queue.planned], layout=layout)
    return findings[0] if findings else None


class UnknownAge(TextChoices):
    """The reason why a head has no age."""

    UNREADABLE_HEADERS = "its headers cannot be read", gettext_lazy("the headers of the first message cannot be read")
    NO_TIME = "its headers hold no time", gettext_lazy("the headers of the first message have no time")
    UNREADABLE_TIME = "its time cannot be read", gettext_lazy("the time in the headers of the first message cannot be read")


@dataclass(frozen=True, slots=True)
class HeadAge:
    """The age of the first message, by `header`; negative if the sender's clock is ahead. None for the reason `unknown`."""

    age: timedelta | None
    header: str | None = None
    unknown: UnknownAge | None = None


def head_age(text: str | None, now: datetime) -> HeadAge:
    """The time since the row with these headers was due (DeliverAt), or else sent (TimeSent). Never raises."""
    try:
        headers = read_headers(text)
    except PoisonMessage:
        return HeadAge(None, unknown=UnknownAge.UNREADABLE_HEADERS)
    for name in (names.DELIVER_AT, names.TIME_SENT):
        value = headers.get(name)
        if value:
            try:
                return HeadAge(now - parse_time(value), name)
            except ValueError:
                return HeadAge(None, name, UnknownAge.UNREADABLE_TIME)
    return HeadAge(None, unknown=UnknownAge.NO_TIME)


MAX_KEPT: Final = 2_000
Item = TypeVar("Item", bound=Hashable)


class SnapshotCache:
    """The last snapshot of each item, for pages that reload often. Safe from any thread; `clock` is in seconds.

    One thread reads at a time; waiting threads use its result.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._snapshots: dict[Hashable, tuple[float, Any]] = {}

    @contextmanager
    def used(self, seconds: float) -> Iterator[None]:
        """While open, `shared_snapshots` of this thread stores snapshots here, and reuses those younger than `seconds`."""
        token = _used.set((self, seconds))
        try:
            yield
        finally:
            _used.reset(token)

    def read(
        self, keys: Mapping[Item, Hashable], probe: Callable[[list[Item]], dict[Item, Any]], seconds: float
    ) -> dict[Item, Any]:
        """The snapshots of these items: younger than this many seconds, or taken now by `probe`."""
        with self._lock:
            since = self._clock() - seconds
            known = ((item, self._snapshots.get(key)) for item, key in keys.items())
            recent = {item: snapshot[1] for item, snapshot in known if snapshot is not None and snapshot[0] > since}
            new = probe([item for item in keys if item not in recent])
            if len(self._snapshots) + len(new) > MAX_KEPT:
                self._snapshots.clear()
            now = self._clock()
            self._snapshots.update({keys[item]: (now, snapshot) for item, snapshot in new.items()})
        return {**new, **recent}


_used: ContextVar[tuple[SnapshotCache, float] | None] = ContextVar("sqlqueue_snapshots", default=None)


def shared_snapshots(keys: Mapping[Item, Hashable], probe: Callable[[list[Item]], dict[Item, Any]]) -> dict[Item, Any]:
    """The results of `probe` for these items, or recent ones if a SnapshotCache is in use; `keys` maps each item to its key."""
    used = _used.get()
    return probe(list(keys)) if used is None else used[0].read(keys, probe, used[1])


def other_queues(settings: Settings, known: Iterable[KnownQueue], listed: Iterable[ListedTable]) -> list[KnownQueue]:
    """The queue tables of the database that are not known queues, by schema and name."""
    keys = {table_key(queue.address) for queue in known}
    book = address_book_of(settings)
    return [
        KnownQueue(name_of_queue(book, table.address), table.address, QueueKind.OTHER, ())
        for table in listed
        if table.layout is not None and table_key(table.address) not in keys
    ]


# Measured (docs/internals/performance.md#dead-rows), receives from the start of the table: behind an old transaction 5,000 dead
# rows leave 0.28 of the speed, 60,000 leave 0.02; without one, 100,000 leave 0.58. Our receivers remember their position and
# lose nothing, but reads from the start do: other systems' receivers, the first receive of a thread, counts and peeks.
DEAD_ROWS_BEHIND_A_HOLDER = 5_000
DEAD_ROWS = 100_000
# A younger transaction is not a problem yet: it may be a receive, or a report that is about to end.
OLD_SECONDS = 60.0
# The same for sessions whose time is hidden: this many receives of one message each.
OLD_TRANSACTIONS = 1_000


def dead_row_problems(alias: str, found: Iterable[DeadRows]) -> dict[str, QueueProblem]:
    """Problems with dead rows by table. One statement, if there are many. Raises DatabaseErrors."""
    many = {each.table: each for each in found if each.dead >= DEAD_ROWS_BEHIND_A_HOLDER}
    if not many:
        return {}
    holders = [
        each
        for each in horizon_holders(alias)
        if each.transactions >= OLD_TRANSACTIONS or (each.seconds is not None and each.seconds >= OLD_SECONDS)
    ]
    return {name: _problem(found, holders) for name, found in many.items() if holders or found.dead >= DEAD_ROWS}


def _problem(found: DeadRows, holders: Sequence[HorizonHolder]) -> QueueProblem:
    counts = f"{found.dead:,} dead rows beside {found.live:,} live ones"
    text = f"table {found.table} holds {counts}: a reader that starts at the beginning must skip them all"
    if not holders:
        advice = (
            "autovacuum does not keep up; make it run sooner (and set autovacuum_naptime of the server to 5s, the interval "
            "between its runs)"
        )
        tuning = (
            f"ALTER TABLE {found.table} SET (\n    autovacuum_vacuum_scale_factor = 0,\n    autovacuum_vacuum_threshold = 1000,\n"
            f"    autovacuum_vacuum_cost_delay = 0\n);\nVACUUM {found.table};"
        )
        return QueueProblem(ProblemKind.DEAD_ROWS, f"{text}; {advice}", tuning)
    who = "; ".join(map(_words, holders))
    hidden = any(holder.kind == "session" and holder.seconds is None for holder in holders)
    more = "; this role cannot see the sessions of other roles: GRANT pg_read_all_stats to it" if hidden else ""
    remedy = "\n".join([*(line for holder in holders for line in _ending(holder)), f"VACUUM {found.table};"])
    return QueueProblem(ProblemKind.DEAD_ROWS, f"{text}; vacuum must keep them for {who}{more}", remedy)


def _words(holder: HorizonHolder) -> str:
    age = f"{holder.transactions:,} transactions old"
    if holder.kind != "session":
        return f"the {holder.kind} {holder.name!r}, {age}"
    state = holder.state or "in a state that is hidden"
    since = "" if holder.seconds is None else f", open for {holder.seconds:.0f} s"
    role = "" if holder.role is None else f" of the role {holder.role!r}"
    return f"process {holder.pid} ({holder.name or 'without an application name'}){role}, {state}{since}, {age}"


def _ending(holder: HorizonHolder) -> list[str]:
    """SQL that ends the holder, and prevents its return where a setting can."""
    if holder.kind == "prepared transaction":
        return [
            "-- or COMMIT PREPARED, if the other databases in the transaction have committed:",
            f"ROLLBACK PREPARED {_literal(holder.name)};",
        ]
    if holder.kind == "replication slot":
        return ["-- if no standby or subscriber still needs it:", f"SELECT pg_drop_replication_slot({_literal(holder.name)});"]
    lines = [f"SELECT pg_terminate_backend({holder.pid});"]
    if holder.role is not None:
        lines.append(f"ALTER ROLE {quote_postgresql(holder.role)} SET idle_in_transaction_session_timeout = '60s';")
    return lines


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
