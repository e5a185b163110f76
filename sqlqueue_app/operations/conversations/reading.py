"""The messages of one conversation, from wherever they can be found now: its pages know no other source.

Failed messages are found by the index of failures, however many there are; those that wait, are delayed or were audited by a look
at some rows of each table, because nothing but the headers says what a row belongs to. What was not looked at is said.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from django.db.models import Q

from sqlqueue_app.conf import Settings
from sqlqueue_app.instances import managed_alias
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.errors import AddressError, ConnectionLost, DatabaseError, PoisonMessage
from sqlqueue_app.messages.failure_groups import guid_of, processing_endpoint, unique_message_id
from sqlqueue_app.messages.headers import Headers, read_headers
from sqlqueue_app.models import FailedMessage, FailureStatus, Instance
from sqlqueue_app.operations.conversations.message import Fate, TalkMessage, talk_message
from sqlqueue_app.operations.conversations.of_lake import LakeLooked, LakeMessages, conversation_in_lake, read_lake
from sqlqueue_app.operations.error_rows import fitting
from sqlqueue_app.operations.instance_status import read_instances
from sqlqueue_app.operations.known_delayed import KnownDelayed, known_delayed_tables
from sqlqueue_app.operations.known_queues import KnownQueue, QueueKind, address_book_of, known_queues
from sqlqueue_app.operations.looking import looking
from sqlqueue_app.operations.other_queues import other_queues
from sqlqueue_app.operations.queue_looks import listed_tables, table_key
from sqlqueue_app.tables.chosen_rows import headers_of_rows
from sqlqueue_app.tables.finding import EVERY, FoundRow, Place, find_rows
from sqlqueue_app.tables.queue import queue_table

# So many rows are looked at in all queues together, and in each: a few tenths of a second where all of them are long.
LOOKED_AT_ALL: Final = 25_000
LOOKED_AT_EACH: Final = 2_000
LEAST_LOOKED_AT: Final = 100
# Audit queues only grow, until somebody takes their messages away: the newest are looked at.
LOOKED_AT_AUDITS: Final = 5_000
MOST_MESSAGES: Final = 1_000
_FATES: Final = {
    FailureStatus.UNRESOLVED: Fate.FAILED,
    FailureStatus.RESOLVED: Fate.HANDLED,
    FailureStatus.RETRY_ISSUED: Fate.RETRIED,
    FailureStatus.ARCHIVED: Fate.ARCHIVED,
    FailureStatus.DELETED: Fate.GONE,
    FailureStatus.GONE: Fate.GONE,
}
# What every writer of JSON writes as it is.
_PLAIN: Final = re.compile(r"[A-Za-z0-9._:-]+")


@dataclass(frozen=True, slots=True)
class Looked:
    """How far the tables were looked at: so many rows of each queue, of each audit queue; `longer` have more rows than that.

    `lake`: how far the lake was, None where there is none.
    """

    rows: int
    audited: int
    longer: tuple[str, ...]
    lake: LakeLooked | None = None


_NOT_LOOKED: Final = Looked(0, 0, ())


@dataclass(frozen=True, slots=True)
class ConversationRead:
    """What was found. `is_cut`: there are more messages than are read. `problems` are sources that could not be read."""

    messages: tuple[TalkMessage, ...]
    looked: Looked
    is_cut: bool = False
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Found:
    """A row of a table with its headers: where it was found, whose it is."""

    queue: KnownQueue
    is_delayed: bool
    place: int
    row_version: int
    native_id: str
    headers: Headers


def read_conversation(settings: Settings, conversation: str) -> ConversationRead:
    """The messages of this conversation: failed, handled, waiting, delayed, in the lake; each once. Raises ConnectionLost.

    At most ten statements; three more, and two seconds, where there is a lake.
    """

    def fits(headers: Headers) -> bool:
        # A link from the index of failures has the id as its column holds it, which may be cut.
        found = headers.get(names.CONVERSATION_ID)
        return found is not None and conversation in (found, fitting("conversation_id", found))

    wanted = _Wanted(conversation, fits)
    failures = _failures(Q(conversation_id=fitting("conversation_id", conversation)))
    rows, looked, problems = _look(settings, wanted)
    lake = read_lake(settings, conversation, most=MOST_MESSAGES)
    again = {
        unique: each for unique, each in failures.items() if unique not in lake.again or each.status == FailureStatus.UNRESOLVED
    }
    messages = [*_of_index(settings, again, rows), *_of_rows(settings, failures, rows)]
    messages += _of_lake(lake, failures, messages)
    is_cut = len(messages) > MOST_MESSAGES or len(failures) >= MOST_MESSAGES
    return ConversationRead(tuple(messages[:MOST_MESSAGES]), replace(looked, lake=lake.looked), is_cut, problems)


def conversation_of(settings: Settings, text: str) -> tuple[str | None, Looked]:
    """The conversation that an id means: its own, that of a message, the unique one of a failed message; None if none is found."""
    indexed = Q(conversation_id=fitting("conversation_id", text)) | Q(message_id=fitting("message_id", text))
    if (unique := guid_of(text)) is not None:
        indexed |= Q(pk=unique)
    for failure in FailedMessage.objects.using(managed_alias()).filter(indexed).exclude(conversation_id="")[:1]:
        return failure.conversation_id, _NOT_LOOKED
    by_id = (names.CONVERSATION_ID, names.MESSAGE_ID)
    rows, looked, _problems = _look(settings, _Wanted(text, lambda headers: text in [headers.get(each) for each in by_id]))
    of_row = next((found for row in rows if (found := row.headers.get(names.CONVERSATION_ID))), None)
    return of_row or conversation_in_lake(settings, text), looked


def _of_lake(lake: LakeMessages, failures: dict[UUID, FailedMessage], others: Sequence[TalkMessage]) -> list[TalkMessage]:
    """The messages of the lake that were not found elsewhere: a row that is still in its queue, a failure that the index knows."""
    rows = {(each.row_version, each.message_id) for each in others if each.row_version is not None}
    later = lake.again | {each.failure for each in others if each.failure is not None}
    handled = [
        replace(each, failure=each.failure if each.failure in failures else None)
        for each in lake.handled
        if (each.row_version, each.message_id) not in rows
    ]
    failed = [each for unique, each in (lake.failed or {}).items() if unique not in failures and unique not in later]
    return [*handled, *(each for each in failed if (each.row_version, each.message_id) not in rows)]


# --- the index of failures ----------------------------------------------------------------------------------------------------


def _failures(condition: Q) -> dict[UUID, FailedMessage]:
    """The newest first."""
    try:
        with looking(managed_alias(), "read the failures of a conversation"):
            found = FailedMessage.objects.using(managed_alias()).filter(condition).order_by("-failed_at")[:MOST_MESSAGES]
            return {each.pk: each for each in found}
    except ConnectionLost:
        raise
    except DatabaseError:
        return {}  # the tables of `migrate` are missing, which the overview says


def _of_index(settings: Settings, failures: dict[UUID, FailedMessage], rows: Sequence[_Found]) -> list[TalkMessage]:
    """The failures but for those whose message, sent again, was found."""
    again = {guid_of(row.headers.get(names.RETRY_UNIQUE_MESSAGE_ID)) for row in rows if row.queue.kind is not QueueKind.ERROR}
    left = {unique: each for unique, each in failures.items() if unique not in again or each.status == FailureStatus.UNRESOLVED}
    headers = _headers_of(settings, left.values(), rows)
    return [_of_failure(each, headers.get((each.queue, each.row_version or 0), {})) for each in left.values()]


def _of_failure(failure: FailedMessage, headers: Headers) -> TalkMessage:
    key = f"failed {failure.pk}"
    fate = _FATES[FailureStatus(failure.status)]
    found = talk_message(headers, key, native_id=failure.message_id, receiving=failure.endpoint, fate=fate)
    return replace(
        found,
        message_id=failure.message_id if not headers else found.message_id,
        message_type=found.message_type or failure.message_type,
        sent=found.sent or failure.sent_at,
        ended=found.ended or failure.failed_at,
        queue=failure.queue,
        row_version=failure.row_version,
        failure=failure.pk,
    )


def _headers_of(settings: Settings, failures: Iterable[FailedMessage], rows: Sequence[_Found]) -> dict[tuple[str, int], Headers]:
    """The headers of failures that lie in an error queue: of those that were not found already, one statement for each queue."""
    found = {(row.queue.name, row.row_version): row.headers for row in rows if row.queue.kind is QueueKind.ERROR}
    missing: dict[str, list[int]] = {}
    for each in failures:
        if each.row_version is not None and (each.queue, each.row_version) not in found:
            missing.setdefault(each.queue, []).append(each.row_version)
    queues = {each.name: each for each in known_queues(settings) if each.kind is QueueKind.ERROR} if missing else {}
    for name, row_versions in missing.items():
        if name not in queues:
            continue
        try:
            with looking(settings.database, f"read failures in {name}"):
                texts = headers_of_rows(queue_table(settings.database, queues[name].address), row_versions)
        except ConnectionLost:
            raise
        except DatabaseError:
            continue  # the diagram has them without what their headers say
        found |= {(name, number): _read(text) for number, text in texts.items()}
    return found


# --- rows of tables -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What rows are looked for: those whose headers fit. The database finds those that have the text."""

    text: str
    fits: Callable[[Headers], bool]

    @property
    def needle(self) -> str:
        """The longest part of the text that stands in the JSON as it is, whoever has written it."""
        return max(_PLAIN.findall(self.text), key=len, default=EVERY)[:100]


def _look(settings: Settings, wanted: _Wanted) -> tuple[list[_Found], Looked, tuple[str, ...]]:
    """The rows of all tables that fit, as far as each is looked at."""
    try:
        queues = _tables(settings, read_instances()[1])
    except AddressError as error:
        return [], _NOT_LOOKED, (str(error),)
    rows = max(LEAST_LOOKED_AT, min(LOOKED_AT_EACH, LOOKED_AT_ALL // max(1, len(queues))))
    places = [_place(queue, is_delayed, rows) for queue, is_delayed in queues]
    try:
        with looking(settings.database, f"look for a conversation in {len(places)} tables"):
            finding = find_rows(settings.database, places, wanted.needle, most=LOOKED_AT_AUDITS)
    except ConnectionLost:
        raise
    except DatabaseError as error:
        return [], Looked(rows, LOOKED_AT_AUDITS, ()), (str(error),)
    longer = tuple(sorted(queues[number][0].name for number in finding.longer))
    found = [_found(row, *queues[row.place]) for row in finding.rows]
    return [row for row in found if wanted.fits(row.headers)], Looked(rows, LOOKED_AT_AUDITS, longer), ()


def _tables(settings: Settings, instances: Sequence[Instance]) -> list[tuple[KnownQueue, bool]]:
    """Every queue of the database, and every table of delayed messages: those with True."""
    listed = listed_tables(settings.database)
    known = known_queues(settings, instances)
    there = {table_key(table.address) for table in listed if table.layout is not None}
    delayed = {table_key(table.address) for table in listed if table.is_delayed}
    queues = [each for each in (*known, *other_queues(settings, known, listed)) if table_key(each.address) in there]
    return [
        *((each, False) for each in queues),
        *((_delayed(each), True) for each in known_delayed_tables(settings, listed) if table_key(each.address) in delayed),
    ]


def _delayed(table: KnownDelayed) -> KnownQueue:
    return KnownQueue(table.name, table.address, QueueKind.OTHER, (table.endpoint,))


def _place(queue: KnownQueue, is_delayed: bool, rows: int) -> Place:
    is_audit = queue.kind is QueueKind.AUDIT
    from_end = is_audit or queue.kind is QueueKind.ERROR
    return Place(queue.address, LOOKED_AT_AUDITS if is_audit else rows, is_delayed, from_end)


def _found(row: FoundRow, queue: KnownQueue, is_delayed: bool) -> _Found:
    return _Found(queue, is_delayed, row.place, row.row_version, str(row.id or ""), _read(row.headers))


def _read(text: str | None) -> Headers:
    try:
        return read_headers(text)
    except PoisonMessage:
        return {}


def _of_rows(settings: Settings, failures: dict[UUID, FailedMessage], rows: Sequence[_Found]) -> list[TalkMessage]:
    """The messages of rows, but for those of error queues that the index knows; of several rows of a failure the last."""
    found: dict[str, TalkMessage] = {}
    for row in rows:
        unique = guid_of(row.headers.get(names.RETRY_UNIQUE_MESSAGE_ID))
        if row.queue.kind is QueueKind.ERROR:
            unique = unique_message_id(row.headers, native_id=row.native_id)
            if unique in failures:
                continue
        key = f"failed {unique}" if row.queue.kind is QueueKind.ERROR else f"{row.queue.name} {row.row_version or row.native_id}"
        fate = _fate(row)
        native = row.native_id or key
        message = talk_message(row.headers, key, native_id=native, receiving=_receiving(settings, row), fate=fate)
        failure = unique if unique in failures else None
        if row.is_delayed:
            found[key] = replace(message, queue=row.queue.name, delayed=str(row.row_version or row.native_id))
        else:
            found[key] = replace(message, queue=row.queue.name, row_version=row.row_version, failure=failure)
    return list(found.values())


def _fate(row: _Found) -> Fate:
    if row.is_delayed:
        return Fate.DELAYED
    # Queues of other systems say by nothing else what they are for.
    is_other = row.queue.kind is QueueKind.OTHER
    if row.queue.kind is QueueKind.ERROR or (is_other and names.FAILED_QUEUE in row.headers):
        return Fate.FAILED
    is_audit = row.queue.kind is QueueKind.AUDIT or (is_other and names.PROCESSING_ENDED in row.headers)
    return Fate.HANDLED if is_audit else Fate.WAITING


def _receiving(settings: Settings, row: _Found) -> str:
    """The endpoint that has handled the message, or will."""
    if row.is_delayed:
        to = row.headers.get(names.FORWARD_DESTINATION)
        return _queue_name(settings, to) if to else row.queue.endpoints[0]
    if _fate(row) in (Fate.HANDLED, Fate.FAILED):
        return processing_endpoint(row.headers)
    return row.queue.endpoints[0] if row.queue.endpoints else row.queue.name


def _queue_name(settings: Settings, address: str) -> str:
    try:
        return address_book_of(settings).parse(address).table
    except AddressError:
        return address
