"""Conversations: find the messages of one conversation and build the tree of causes and effects.

Failed messages come from the index of failures, however many there are, handled ones from the lake as well. Waiting, delayed and
audited messages are found by scanning a limited number of rows per table, because only the headers name the conversation. The
result reports how far each scan went.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from typing import Final
from uuid import UUID

from django.db.models import Q, TextChoices
from django.utils.translation import gettext_lazy as _

from sqlqueue_app.browsing.analytics import known_lake
from sqlqueue_app.conf import Settings
from sqlqueue_app.lake.columns import FAILURES
from sqlqueue_app.lake.data_files import LakeEngineMissing, LakeError
from sqlqueue_app.lake.search import FoundMessage, SearchQuery, search
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.envelope import guid_of, message_times
from sqlqueue_app.messages.errors import AddressError, ConnectionLost, DatabaseError, PoisonMessage
from sqlqueue_app.messages.failure_groups import processing_endpoint, unique_message_id
from sqlqueue_app.messages.headers import Headers, Intent, read_headers
from sqlqueue_app.messages.types import resolve_enclosed
from sqlqueue_app.models import CallbackQueue, CopyOutcome, FailedMessage, FailureStatus, LakeCopy, managed_alias
from sqlqueue_app.models.failures import fitting
from sqlqueue_app.status.delayed import instant_of, known_delayed_tables
from sqlqueue_app.status.instances import read_callback_queues
from sqlqueue_app.status.queues import KnownQueue, QueueKind, known_queues, listed_tables, other_queues, queue_name_at, table_key
from sqlqueue_app.tables.connections import guarded_read, optional_read
from sqlqueue_app.tables.listing import EVERY, ScanResult, TableScan, find_rows
from sqlqueue_app.tables.queue import LAST_ROW_VERSION, queue_table
from sqlqueue_app.tables.row_selection import headers_of_rows

_LAST: Final = datetime.max.replace(tzinfo=UTC)


class Kind(TextChoices):
    """The kind of a message in the diagrams."""

    COMMAND = "command", _("command")
    EVENT = "event", _("event")
    TIMEOUT = "timeout", _("timeout")
    REPLY = "reply", _("reply")


class MessageOutcome(TextChoices):
    """The outcome of a message."""

    HANDLED = "handled", _("handled")
    FAILED = "failed", _("failed")
    ARCHIVED = "archived", _("archived")
    RETRIED = "retried", _("retried")
    WAITING = "waiting", _("waiting")
    DELAYED = "delayed", _("delayed")
    GONE = "gone", _("removed")

    @property
    def is_in_queue(self) -> bool:
        """Whether it has not been received yet."""
        return self in (MessageOutcome.WAITING, MessageOutcome.DELAYED)


@dataclass(frozen=True, slots=True)
class ConversationMessage:
    """A message of a conversation, wherever it was found. `key` is unique among messages and their copies.

    `related_to`: the id of the message whose handling sent this one, empty if first or unknown. `sending`, `receiving`: endpoints,
    empty if unknown. `queue` and `row_version`: its row; `failure`: its id in the index of failures; either may be missing.
    `started`, `ended`: processing or failure. `delayed`: its key in the table of delayed messages that `queue` names, `due` then.
    `lake`, `day`: the table and day of the lake where it was found; `queue` is then the queue it was taken or copied from.
    """

    key: str
    message_id: str
    conversation: str = ""
    related_to: str = ""
    message_type: str = ""
    kind: Kind = Kind.COMMAND
    outcome: MessageOutcome = MessageOutcome.HANDLED
    sending: str = ""
    receiving: str = ""
    sent: datetime | None = None
    due: datetime | None = None
    started: datetime | None = None
    ended: datetime | None = None
    processing: timedelta | None = None
    critical: timedelta | None = None
    queue: str = ""
    row_version: int | None = None
    failure: UUID | None = None
    delayed: str = ""
    lake: str = ""
    day: date | None = None

    @property
    def found_in(self) -> str:
        """The place where it was found: the lake, a table of the database, or only the index of failures."""
        return "lake" if self.lake else "queue" if self.row_version is not None or self.delayed else "index"

    @property
    def order(self) -> tuple[datetime, datetime, str]:
        """Sort key: processing time, messages not yet processed last, then time sent."""
        return self.ended or _LAST, self.sent or _LAST, self.key

    @property
    def short_type(self) -> str:
        name, bracket, arguments = self.message_type.partition("[")
        return (name.rpartition(".")[2].rpartition("+")[2] or name) + bracket + arguments


def message_from_headers(
    headers: Mapping[str, str | None], key: str, *, native_id: str, receiving: str, outcome: MessageOutcome
) -> ConversationMessage:
    """Read the headers; `native_id` replaces a missing message id. Never raises."""
    times = message_times(headers)
    types = resolve_enclosed(headers.get(names.ENCLOSED_MESSAGE_TYPES))
    is_over = not outcome.is_in_queue
    return ConversationMessage(
        key=key,
        message_id=headers.get(names.MESSAGE_ID) or native_id,
        conversation=headers.get(names.CONVERSATION_ID) or "",
        related_to=headers.get(names.RELATED_TO) or "",
        message_type=types[0] if types else "",
        kind=kind_of(headers),
        outcome=outcome,
        sending=headers.get(names.ORIGINATING_ENDPOINT) or "",
        receiving=receiving,
        sent=times.sent,
        started=times.started if is_over else None,
        ended=times.ended if is_over else None,
        processing=times.processing if is_over else None,
        critical=times.critical if is_over else None,
    )


def kind_of(headers: Mapping[str, str | None]) -> Kind:
    """A published message is an event, a saga timeout a timeout, an answer a reply, anything else a command."""
    intent = Intent.read(headers.get(names.MESSAGE_INTENT))
    if intent in {Intent.PUBLISH, Intent.REPLY}:
        return Kind.EVENT if intent is Intent.PUBLISH else Kind.REPLY
    return Kind.TIMEOUT if (headers.get(names.IS_SAGA_TIMEOUT_MESSAGE) or "").lower() == "true" else Kind.COMMAND


# Rows scanned in all tables together, and per table: a few tenths of a second in the worst case.
SCAN_ROWS_TOTAL: Final = 50_000
SCAN_ROWS_PER_TABLE: Final = 5_000
MIN_SCAN_ROWS: Final = 100
SCAN_ROWS_PER_AUDIT_QUEUE: Final = 5_000
# Rows per statement; between statements the time limit is checked.
SCAN_BATCH_ROWS: Final = 20_000
MAX_MESSAGES: Final = 1_000


@dataclass(frozen=True, slots=True)
class ScanExtent:
    """The extent of a scan: up to the newest `rows` of each of `queues` queues; of `delayed` tables, the rows due first.

    `longer`: by name, the RowVersion at which to continue in a queue that has or may have more, 0 for delayed messages. `late`:
    tables that were not read in time. `lake` is None without a lake.
    """

    rows: int = 0
    audited: int = 0
    longer: Mapping[str, int] = field(default_factory=dict)
    late: tuple[str, ...] = ()
    queues: int = 0
    delayed: int = 0
    lake: LakeScanExtent | None = None


@dataclass(frozen=True, slots=True)
class ConversationResult:
    """The messages found. `is_cut`: there are more than MAX_MESSAGES. `problems`: sources that could not be read."""

    messages: tuple[ConversationMessage, ...]
    extent: ScanExtent
    is_cut: bool
    problems: tuple[str, ...]


def read_conversation(settings: Settings, conversation: str) -> ConversationResult:
    """Every message of a conversation once: nine statements, with a lake 12 and up to two seconds. Raises ConnectionLost."""

    def fits(headers: Headers) -> bool:
        # Links from the index of failures contain the id as stored, which may be truncated.
        found = headers.get(names.CONVERSATION_ID)
        return found is not None and conversation in (found, fitting("conversation_id", found))

    failures = failures_where(Q(conversation_id=fitting("conversation_id", conversation)))
    rows, extent, problems = scan_rows(settings, RowSearch((needle_of(conversation),), fits=fits, match_case=True))
    lake = read_lake(settings, conversation)
    again = {
        unique: each for unique, each in failures.items() if unique not in lake.again or each.status == FailureStatus.UNRESOLVED
    }
    messages = [*_of_index(settings, again, rows), *messages_of_rows(failures, rows)]
    messages += _only_in_lake(lake, failures, messages)
    is_cut = len(messages) > MAX_MESSAGES or len(failures) >= MAX_MESSAGES
    return ConversationResult(tuple(messages[:MAX_MESSAGES]), replace(extent, lake=lake.extent), is_cut, problems)


# The newest failed messages are examined; at most this many conversations are returned.
RECENT_FAILURES: Final = 200
MAX_CONVERSATIONS: Final = 25


@dataclass(frozen=True, slots=True)
class FailingConversation:
    """A conversation with its number of recently failed messages, and time and type of the last one."""

    id: str
    failed: int
    last: datetime
    message_type: str


def newest_conversations() -> list[FailingConversation]:
    """Conversations of the newest unresolved failures, newest first: one statement. Raises ConnectionLost."""
    alias = managed_alias()
    failures = FailedMessage.objects.using(alias).filter(status=FailureStatus.UNRESOLVED).order_by("-failed_at", "-pk")
    rows: list[tuple[str, datetime, str]] = []
    # Without the tables of `migrate` there are none; the overview reports it.
    with optional_read(alias, "read the newest failures"):
        rows = list(failures.values_list("conversation_id", "failed_at", "message_type")[:RECENT_FAILURES])
    found: dict[str, FailingConversation] = {}
    for conversation, failed_at, message_type in rows:
        if conversation:
            known = found.get(conversation, FailingConversation(conversation, 0, failed_at, message_type))
            found[conversation] = replace(known, failed=known.failed + 1)
    return list(found.values())[:MAX_CONVERSATIONS]


# A message whose cause was handled more often than this links to the first copies only.
MAX_PARENTS: Final = 10


@dataclass(frozen=True, slots=True)
class Branch:
    """A message in the tree. `parent` is the index of its parent branch, None for a root."""

    message: ConversationMessage
    parent: int | None
    depth: int


@dataclass(frozen=True, slots=True)
class Forest:
    """The branches in depth-first order. `links` are all pairs of indexes (cause, effect), including additional causes.

    Headers are untrusted: a message may name itself, form a cycle, or name an unknown message; one handled twice sends twice.
    """

    branches: tuple[Branch, ...]
    links: tuple[tuple[int, int], ...]


def causes(messages: Sequence[ConversationMessage]) -> list[list[int]]:
    """For each message, the indexes of the messages whose handling sent it.

    A cause has the id in `related_to` and was handled by the sending endpoint; without such a match, any copy that is not an event
    counts. A message related to itself has no cause.
    """
    by_id: defaultdict[str, list[int]] = defaultdict(list)
    for number, message in enumerate(messages):
        by_id[message.message_id].append(number)
    found = []
    for message in messages:
        named = by_id.get(message.related_to, []) if message.related_to and message.related_to != message.message_id else []
        at_sender = [each for each in named if messages[each].receiving == message.sending]
        found.append((at_sender or [each for each in named if messages[each].kind is not Kind.EVENT])[:MAX_PARENTS])
    return found


def forest(messages: Sequence[ConversationMessage]) -> Forest:
    """Build the trees: roots and children in order of processing."""
    ordered = sorted(messages, key=lambda each: each.order)
    parents = causes(ordered)
    first = _without_cycles([each[0] if each else None for each in parents])
    children: defaultdict[int | None, list[int]] = defaultdict(list)
    for number, parent in enumerate(first):
        children[parent].append(number)
    branches: list[Branch] = []
    place_of: dict[int, int] = {}
    left = [(number, 0) for number in reversed(children[None])]
    while left:
        number, depth = left.pop()
        parent = first[number]
        place_of[number] = len(branches)
        branches.append(Branch(ordered[number], None if parent is None else place_of[parent], depth))
        left += [(child, depth + 1) for child in reversed(children[number])]
    links = tuple((place_of[cause], place_of[number]) for number, each in enumerate(parents) for cause in each)
    return Forest(tuple(branches), links)


def _without_cycles(parents: list[int | None]) -> list[int | None]:
    """Break each cycle at its earliest message."""
    found = list(parents)
    state = [0] * len(found)  # 1: on the current path, 2: leads to a root
    for start in range(len(found)):
        way = []
        at: int | None = start
        while at is not None and state[at] == 0:
            state[at] = 1
            way.append(at)
            at = found[at]
        if at is not None and state[at] == 1:
            found[min(way[way.index(at) :])] = None
        for each in way:
            state[each] = 2
    return found


def cut(whole: Forest, limit: int, *, first: Collection[int] = ()) -> Forest:
    """Keep at most `limit` branches: those in `first` with their ancestors, then the ones closest to the roots."""
    if len(whole.branches) <= limit:
        return whole
    kept: set[int] = set()
    by_depth = sorted(range(len(whole.branches)), key=lambda number: whole.branches[number].depth)
    for wanted in (*first, *by_depth):
        chain = []
        at: int | None = wanted
        while at is not None and at not in kept:
            chain.append(at)
            at = whole.branches[at].parent
        if len(kept) + len(chain) <= limit:
            kept.update(chain)
        if len(kept) == limit:
            break
    places = {number: place for place, number in enumerate(sorted(kept))}
    branches = []
    for number in places:
        branch = whole.branches[number]
        branches.append(Branch(branch.message, None if branch.parent is None else places[branch.parent], branch.depth))
    links = tuple((places[cause], places[effect]) for cause, effect in whole.links if cause in places and effect in places)
    return Forest(tuple(branches), links)


_OUTCOME_OF_STATUS: Final = {
    FailureStatus.UNRESOLVED: MessageOutcome.FAILED,
    FailureStatus.RESOLVED: MessageOutcome.HANDLED,
    FailureStatus.RETRY_ISSUED: MessageOutcome.RETRIED,
    FailureStatus.ARCHIVED: MessageOutcome.ARCHIVED,
    FailureStatus.DELETED: MessageOutcome.GONE,
    FailureStatus.GONE: MessageOutcome.GONE,
}


# What `message_of_failure` reads: a third of the columns, and none of the long ones.
_OF_FAILURE: Final = (
    "status", "queue", "retried_to", "row_version", "message_id", "conversation_id", "message_type", "endpoint", "failed_at",
    "sent_at",
)  # fmt: skip


def failures_where(condition: Q) -> dict[UUID, FailedMessage]:
    """The matching failures by id, newest first; none without the tables of `migrate`, which the overview reports."""
    alias = managed_alias()
    with optional_read(alias, "read the failures of a conversation"):
        matching = FailedMessage.objects.using(alias).filter(condition).only(*_OF_FAILURE)
        found = matching.order_by("-failed_at", "-pk")[:MAX_MESSAGES]
        return {each.pk: each for each in found}
    return {}


def _of_index(settings: Settings, failures: dict[UUID, FailedMessage], rows: Sequence[ScannedRow]) -> list[ConversationMessage]:
    """The failures, except those whose retried message was found elsewhere."""
    again = {guid_of(row.headers.get(names.RETRY_UNIQUE_MESSAGE_ID)) for row in rows if row.queue.kind is not QueueKind.ERROR}
    left = {unique: each for unique, each in failures.items() if unique not in again or each.status == FailureStatus.UNRESOLVED}
    headers = _headers_of(settings, left.values(), rows)
    return [message_of_failure(each, headers.get((each.queue, each.row_version or 0), {})) for each in left.values()]


def message_of_failure(failure: FailedMessage, headers: Headers) -> ConversationMessage:
    """The message of a failure; its headers may be unknown."""
    key = f"failed {failure.pk}"
    outcome = _OUTCOME_OF_STATUS[FailureStatus(failure.status)]
    found = message_from_headers(headers, key, native_id=failure.message_id, receiving=failure.endpoint, outcome=outcome)
    has_left = bool(failure.retried_to) and outcome in (MessageOutcome.RETRIED, MessageOutcome.HANDLED)
    return replace(
        found,
        message_id=failure.message_id if not headers else found.message_id,
        conversation=found.conversation or failure.conversation_id,
        message_type=found.message_type or failure.message_type,
        sent=found.sent or failure.sent_at,
        ended=found.ended or failure.failed_at,
        queue=queue_name_at(failure.retried_to) if has_left else failure.queue,
        row_version=failure.row_version,
        failure=failure.pk,
    )


def _headers_of(
    settings: Settings, failures: Iterable[FailedMessage], rows: Sequence[ScannedRow]
) -> dict[tuple[str, int], Headers]:
    """The headers of failures still in an error queue; one statement per queue for those not scanned."""
    found = {(row.queue.name, row.row_version): row.headers for row in rows if row.queue.kind is QueueKind.ERROR}
    missing: dict[str, list[int]] = {}
    for each in failures:
        if each.row_version is not None and (each.queue, each.row_version) not in found:
            missing.setdefault(each.queue, []).append(each.row_version)
    queues = {each.name: each for each in known_queues(settings) if each.kind is QueueKind.ERROR} if missing else {}
    for name, row_versions in missing.items():
        if name not in queues:
            continue
        # Those that cannot be read are shown without their headers.
        with optional_read(settings.database, f"read failures in {name}"):
            texts = headers_of_rows(queue_table(settings.database, queues[name].address), row_versions)
            found |= {(name, number): _read(text) for number, text in texts.items()}
    return found


# Characters that no JSON writer escapes.
_PLAIN: Final = re.compile(r"[A-Za-z0-9._:-]+")


@dataclass(frozen=True, slots=True)
class ScannedRow:
    """A matching row with its headers, empty if they cannot be read. `due`: the due time of a delayed message."""

    queue: KnownQueue
    is_delayed: bool
    row_version: int
    native_id: str
    headers: Headers
    due: datetime | None


@dataclass(frozen=True, slots=True)
class RowSearch:
    """A search for rows: the database finds those that hold one of the texts, `fits` checks their headers.

    `bodies`: also search bodies; `match_case`: only headers, as they are written, which is faster. `limit`: the maximum number
    of rows to return from each table. `queue`: search only this one, from the RowVersion `before` back. `in_time`: whether there
    is time for another statement.
    """

    texts: tuple[str, ...]
    fits: Callable[[Headers], bool] = lambda _headers: True
    bodies: bool = False
    match_case: bool = False
    limit: Callable[[int], int] = lambda _tables: SCAN_ROWS_PER_AUDIT_QUEUE
    queue: str = ""
    before: int = LAST_ROW_VERSION
    in_time: Callable[[], bool] = lambda: True

    def places(self, queues: Sequence[tuple[KnownQueue, bool]], rows: int) -> list[TableScan]:
        """The scan of each table: queues from their end, delayed messages from the first due one."""
        rows_of_kind = {QueueKind.AUDIT: SCAN_ROWS_PER_AUDIT_QUEUE}
        return [
            TableScan(queue.address, rows if self.queue else rows_of_kind.get(queue.kind, rows), delayed, not delayed, self.before)
            for queue, delayed in queues
        ]


def needle_of(text: str) -> str:
    """The longest part of the text that any JSON writer leaves unescaped."""
    return max(_PLAIN.findall(text), key=len, default=EVERY)[:100]


def rest_of(places: Sequence[TableScan], result: ScanResult, limit: int) -> dict[int, int]:
    """The position where each scan continues: behind the rows read, or behind the last returned one if there may be more."""
    found = dict(result.longer)
    for number, count in Counter(row.scan for row in result.rows).items():
        last = 0 if places[number].is_delayed else min(row.row_version for row in result.rows if row.scan == number) - 1
        if count == limit and (last > 0 or places[number].is_delayed):
            found[number] = last
    return found


def scan_rows(settings: Settings, wanted: RowSearch) -> tuple[list[ScannedRow], ScanExtent, tuple[str, ...]]:
    """The matching rows of all tables, how far they were scanned, and problems. Raises ConnectionLost."""
    try:
        queues = tables_to_search(settings, read_callback_queues())
    except AddressError as error:
        return [], ScanExtent(), (str(error),)
    if wanted.queue:
        queues = [each for each in queues if each[0].name == wanted.queue and not each[1]]
    count = max(1, len(queues))
    rows = SCAN_ROWS_TOTAL if wanted.queue else max(MIN_SCAN_ROWS, min(SCAN_ROWS_PER_TABLE, SCAN_ROWS_TOTAL // count))
    places, limit = wanted.places(queues, rows), wanted.limit(count)
    delayed = sum(is_delayed for _queue, is_delayed in queues)
    extent = ScanExtent(rows, SCAN_ROWS_PER_AUDIT_QUEUE, queues=len(queues) - delayed, delayed=delayed)
    found: list[ScannedRow] = []
    longer: dict[str, int] = {}
    at_once = max(1, SCAN_BATCH_ROWS // rows)
    for start in range(0, len(places), at_once):
        here = queues[start : start + at_once]
        if not wanted.in_time():
            return found, replace(extent, longer=longer, late=tuple(queue.name for queue, _delayed in queues[start:])), ()
        try:
            with guarded_read(settings.database, f"look for messages in {len(here)} tables"):
                part = places[start : start + at_once]
                result = find_rows(
                    settings.database, part, *wanted.texts, limit=limit, bodies=wanted.bodies, match_case=wanted.match_case
                )
        except ConnectionLost:
            raise
        except DatabaseError as error:
            return found, replace(extent, longer=longer), (str(error),)
        longer |= {here[number][0].name: rest for number, rest in sorted(rest_of(part, result, limit).items())}
        found += [row for row in scanned_rows(here, result) if wanted.fits(row.headers)]
    return found, replace(extent, longer=longer), ()


def scanned_rows(tables: Sequence[tuple[KnownQueue, bool]], result: ScanResult) -> list[ScannedRow]:
    """The rows that a scan of these tables has found."""
    return [
        ScannedRow(*tables[row.scan], row.row_version, str(row.id or ""), _read(row.headers), instant_of(row.due))
        for row in result.rows
    ]


def tables_to_search(settings: Settings, holders: Sequence[CallbackQueue]) -> list[tuple[KnownQueue, bool]]:
    """All queues of the database (False) and all tables of delayed messages (True)."""
    listed = listed_tables(settings.database)
    known = known_queues(settings, holders)
    there = {table_key(table.address) for table in listed if table.layout is not None}
    delayed = {table_key(table.address) for table in listed if table.is_delayed}
    queues = [each for each in (*known, *other_queues(settings, known, listed)) if table_key(each.address) in there]
    return [
        *((each, False) for each in queues),
        *(
            (KnownQueue(each.name, each.address, QueueKind.OTHER, (each.endpoint,)), True)
            for each in known_delayed_tables(settings, listed)
            if table_key(each.address) in delayed
        ),
    ]


def _read(text: str | None) -> Headers:
    try:
        return read_headers(text)
    except PoisonMessage:
        return {}


def messages_of_rows(failures: dict[UUID, FailedMessage], rows: Sequence[ScannedRow]) -> list[ConversationMessage]:
    """The messages of rows, except failures known to the index; of several rows of a failure the last."""
    found: dict[str, ConversationMessage] = {}
    for row in rows:
        unique = guid_of(row.headers.get(names.RETRY_UNIQUE_MESSAGE_ID))
        if row.queue.kind is QueueKind.ERROR:
            unique = unique_message_id(row.headers, native_id=row.native_id)
            if unique in failures:
                continue
        key = f"failed {unique}" if row.queue.kind is QueueKind.ERROR else f"{row.queue.name} {row.row_version or row.native_id}"
        outcome = _outcome(row)
        native = row.native_id or key
        message = message_from_headers(row.headers, key, native_id=native, receiving=_receiving(row), outcome=outcome)
        failure = unique if unique in failures else None
        if row.is_delayed:
            found[key] = replace(message, queue=row.queue.name, delayed=str(row.row_version or row.native_id), due=row.due)
        else:
            found[key] = replace(message, queue=row.queue.name, row_version=row.row_version, failure=failure)
    return list(found.values())


def _outcome(row: ScannedRow) -> MessageOutcome:
    if row.is_delayed:
        return MessageOutcome.DELAYED
    # Only the headers show the purpose of another system's queue.
    is_other = row.queue.kind is QueueKind.OTHER
    if row.queue.kind is QueueKind.ERROR or (is_other and names.FAILED_QUEUE in row.headers):
        return MessageOutcome.FAILED
    is_audit = row.queue.kind is QueueKind.AUDIT or (is_other and names.PROCESSING_ENDED in row.headers)
    return MessageOutcome.HANDLED if is_audit else MessageOutcome.WAITING


def _receiving(row: ScannedRow) -> str:
    """The endpoint that handled the message or will handle it."""
    if row.is_delayed:
        to = row.headers.get(names.FORWARD_DESTINATION)
        return queue_name_at(to) if to else row.queue.endpoints[0]
    if _outcome(row) in (MessageOutcome.HANDLED, MessageOutcome.FAILED):
        return processing_endpoint(row.headers)
    return row.queue.endpoints[0] if row.queue.endpoints else row.queue.name


LAKE_SECONDS: Final = 2.0
_OUTCOME_OF_COPY: Final[Mapping[str, MessageOutcome]] = {
    CopyOutcome.WAITING: MessageOutcome.FAILED,
    CopyOutcome.RETRIED: MessageOutcome.RETRIED,
    CopyOutcome.RESOLVED: MessageOutcome.HANDLED,
    CopyOutcome.ARCHIVED: MessageOutcome.ARCHIVED,
    CopyOutcome.DELETED: MessageOutcome.GONE,
    CopyOutcome.GONE: MessageOutcome.GONE,
}


@dataclass(frozen=True, slots=True)
class LakeScanExtent:
    """The number of searched files of the lake; `problem`: why not all."""

    files: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class LakeMessages:
    """Messages from the lake: handled ones, and the last copy of each failure by unique id."""

    handled: tuple[ConversationMessage, ...] = ()
    failed: Mapping[UUID, ConversationMessage] = field(default_factory=dict)
    extent: LakeScanExtent | None = None

    @property
    def again(self) -> frozenset[UUID]:
        """Unique ids of failed messages that were handled later."""
        return frozenset(each.failure for each in self.handled if each.failure is not None)


def read_lake(settings: Settings, conversation: str) -> LakeMessages:
    """Read a conversation from the lake; empty without a lake. At most four statements. Raises ConnectionLost."""
    lake = known_lake(settings)
    if not lake.lake:
        return LakeMessages()
    if lake.problem:
        return LakeMessages(extent=LakeScanExtent(problem=lake.problem))
    try:
        query = SearchQuery(conversation=conversation, size=MAX_MESSAGES, headers=True)
        found = search(lake.lake, lake.files, query, seconds=LAKE_SECONDS)
    except (LakeError, LakeEngineMissing) as error:
        return LakeMessages(extent=LakeScanExtent(problem=str(error)))
    problem = "; ".join(found.problems[:3]) or ("the time limit was reached" if found.is_partial else "")
    return replace(messages_of_lake(found.messages), extent=LakeScanExtent(found.files, problem))


def messages_of_lake(found: Iterable[FoundMessage]) -> LakeMessages:
    """Messages that were read with their headers, the newest first: one statement if some have failed."""
    handled: list[ConversationMessage] = []
    failed: dict[UUID, ConversationMessage] = {}
    for each in found:
        if each.table == FAILURES.name:
            unique = guid_of(each.unique_message_id) or unique_message_id(_read(each.headers), native_id=each.native_id)
            failed.setdefault(unique, replace(_lake_message(each, MessageOutcome.FAILED), failure=None))
        else:
            handled.append(_lake_message(each, MessageOutcome.HANDLED))
    return LakeMessages(tuple(handled), _with_outcomes(failed))


def _only_in_lake(
    lake: LakeMessages, failures: dict[UUID, FailedMessage], others: Sequence[ConversationMessage]
) -> list[ConversationMessage]:
    """Messages of the lake that were not found elsewhere: not in a queue, not in the index of failures."""
    # An event has the same id in the queues of all its subscribers, and its rows there may have the same number.
    rows = {(each.queue, each.row_version, each.message_id) for each in others if each.row_version is not None}
    later = lake.again | {each.failure for each in others if each.failure is not None}
    handled = [
        replace(each, failure=each.failure if each.failure in failures else None)
        for each in lake.handled
        if (each.queue, each.row_version, each.message_id) not in rows
    ]
    failed = [each for unique, each in lake.failed.items() if unique not in failures and unique not in later]
    return [*handled, *(each for each in failed if (each.queue, each.row_version, each.message_id) not in rows)]


def _lake_message(each: FoundMessage, outcome: MessageOutcome) -> ConversationMessage:
    headers = _read(each.headers)
    key = f"lake {each.table} {each.path_queue} {each.row_version} {each.day}"
    found = message_from_headers(
        headers, key, native_id=each.native_id or each.message_id, receiving=each.endpoint, outcome=outcome
    )
    return replace(
        found,
        queue=each.queue,
        row_version=each.row_version,
        failure=guid_of(headers.get(names.RETRY_UNIQUE_MESSAGE_ID)),
        ended=found.ended or each.counted_at,
        lake=each.table,
        day=each.day,
    )


def _with_outcomes(failed: dict[UUID, ConversationMessage]) -> dict[UUID, ConversationMessage]:
    """Set the outcomes that the pipeline has recorded for the copies."""
    if not failed:
        return failed
    copies = LakeCopy.objects.using(managed_alias()).filter(unique_message_id__in=[str(each) for each in failed])
    for unique, outcome in copies.order_by("copied_at").values_list("unique_message_id", "fate"):
        known = guid_of(unique)
        if known in failed and outcome in _OUTCOME_OF_COPY:
            failed[known] = replace(failed[known], outcome=_OUTCOME_OF_COPY[outcome])
    return failed
