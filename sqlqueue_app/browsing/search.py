"""Find messages by any text: an id, a type, an endpoint, a header value, a text of a body.

Ids of failed messages, of tasks and of the archive are looked up by their indexes. Queue tables have no index on headers, so
their newest rows are read, up to a limit; the archive is searched back from its newest message until the time is up. The
result describes what was searched and where to continue.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from operator import attrgetter
from typing import Final

from django.db.models import Q, TextChoices
from django.utils.translation import gettext_lazy

from sqlqueue_app.browsing.analytics import KnownLake, known_lake
from sqlqueue_app.browsing.conversations import (
    ConversationMessage,
    MessageOutcome,
    RowSearch,
    ScanExtent,
    failures_where,
    message_of_failure,
    messages_of_lake,
    messages_of_rows,
    scan_rows,
)
from sqlqueue_app.conf import Settings
from sqlqueue_app.lake.data_files import LakeEngineMissing, LakeError
from sqlqueue_app.lake.search import FoundMessage, Results, SearchQuery, search
from sqlqueue_app.messages.envelope import guid_of
from sqlqueue_app.messages.failure_groups import unique_message_id
from sqlqueue_app.messages.headers import json_texts
from sqlqueue_app.models import TaskResult, managed_alias
from sqlqueue_app.models.failures import fitting
from sqlqueue_app.status.queues import QueueKind
from sqlqueue_app.tables.connections import optional_read
from sqlqueue_app.tables.queue import LAST_ROW_VERSION

# For all tables together, in equal shares.
MAX_FROM_TABLES: Final = 200
MAX_FROM_ARCHIVE: Final = 50
MAX_PER_GROUP: Final = 200
# The number of tasks read from each backend: finished ones, and others.
TASKS_READ: Final = 1_000
# The queues get the first part of the time, the archive the rest.
SECONDS: Final = 1.5
QUEUE_SECONDS: Final = 0.8
_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)
Clock = Callable[[], float]


class Place(TextChoices):
    """The place where a message was found."""

    QUEUES = "queues", gettext_lazy("Queues")
    DELAYED = "delayed", gettext_lazy("Delayed")
    FAILED = "failed", gettext_lazy("Failed")
    ARCHIVE = "archive", gettext_lazy("Archive")


@dataclass(frozen=True, slots=True)
class ArchiveSearch:
    """The extent of the archive search; `results` is None without one, because of the `problem` or without an archive."""

    lake: KnownLake
    results: Results | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The results, newest first, and the extent of the search. `archive` is None if only one queue was searched further."""

    messages: dict[Place, list[ConversationMessage]]
    extent: ScanExtent
    problems: tuple[str, ...]
    tasks: list[TaskResult] = field(default_factory=list)
    archive: ArchiveSearch | None = None


def search_messages(
    settings: Settings, text: str, *, bodies: bool, queue: str = "", before: int = LAST_ROW_VERSION, clock: Clock = time.monotonic
) -> SearchResult:
    """Search everything, or one queue from the RowVersion `before` back. Bodies are read only with `bodies`.

    Takes at most SECONDS, plus the statement then running; about ten statements. Raises ConnectionLost.
    """
    begun = clock()
    wanted = RowSearch(
        json_texts(text),
        bodies=bodies,
        limit=lambda tables: max(1, MAX_FROM_TABLES // tables),
        queue=queue,
        before=before,
        in_time=lambda: clock() < begun + QUEUE_SECONDS,
    )
    rows, extent, problems = scan_rows(settings, wanted)
    errors = {
        unique_message_id(row.headers, native_id=row.native_id): row.headers for row in rows if row.queue.kind is QueueKind.ERROR
    }
    failures = failures_where(Q(pk__in=list(errors)) if queue else Q(pk__in=list(errors)) | _by_id(text))
    messages = [message_of_failure(each, errors.get(each.pk, {})) for each in failures.values()]
    messages += messages_of_rows(failures, rows)
    if queue:
        return SearchResult(_grouped(messages), extent, problems)
    archive, archived = _search_archive(settings, text, bodies=bodies, end=begun + SECONDS, clock=clock)
    return SearchResult(_grouped([*messages, *archived]), extent, problems, _tasks(settings, text, bodies=bodies), archive)


def _by_id(text: str) -> Q:
    found = Q(conversation_id=fitting("conversation_id", text)) | Q(message_id=fitting("message_id", text))
    unique = guid_of(text)
    return found if unique is None else found | Q(pk=unique)


def _grouped(messages: list[ConversationMessage]) -> dict[Place, list[ConversationMessage]]:
    found: dict[Place, list[ConversationMessage]] = {place: [] for place in Place}
    for each in sorted(messages, key=lambda each: (each.ended or each.sent or _LONG_AGO, each.row_version or 0), reverse=True):
        found[_place(each)].append(each)
    return {place: each[:MAX_PER_GROUP] for place, each in found.items() if each}


def _place(each: ConversationMessage) -> Place:
    if each.lake:
        return Place.ARCHIVE
    if each.outcome is MessageOutcome.DELAYED:
        return Place.DELAYED
    is_failure = each.key.startswith("failed ") or each.outcome is MessageOutcome.FAILED
    return Place.FAILED if is_failure else Place.QUEUES


def _search_archive(
    settings: Settings, text: str, *, bodies: bool, end: float, clock: Clock
) -> tuple[ArchiveSearch, list[ConversationMessage]]:
    """Search by ids, type and endpoint, which excludes most files at once, then by text as far back as time allows."""
    lake = known_lake(settings)
    if not lake.lake or lake.problem or not lake.files:
        return ArchiveSearch(lake, problem=lake.problem), []
    found: dict[tuple[str, str, int, datetime], FoundMessage] = {}
    results: Results | None = None
    try:
        for query in _archive_queries(text, bodies=bodies):
            results = search(lake.lake, lake.files, query, seconds=max(end - clock(), 0), clock=clock)
            found |= {(each.table, each.path_queue, each.row_version, each.counted_at): each for each in results.messages}
            if results.messages and query.is_by_id:
                break
    except (LakeError, LakeEngineMissing) as error:
        return ArchiveSearch(lake, problem=str(error)), []
    newest = sorted(found.values(), key=attrgetter("counted_at", "row_version", "path_queue"), reverse=True)[:MAX_FROM_ARCHIVE]
    read = messages_of_lake(newest)
    return ArchiveSearch(lake, results), [*read.handled, *read.failed.values()]


def _archive_queries(text: str, *, bodies: bool) -> Iterator[SearchQuery]:
    shared = SearchQuery(size=MAX_FROM_ARCHIVE, headers=True)
    if " " not in text:
        yield replace(shared, message_id=text)
        yield replace(shared, conversation=text)
        yield replace(shared, message_type=f"*{text}*")
        yield replace(shared, endpoint=text)
    yield replace(shared, text=text, bodies=bodies)


def _tasks(settings: Settings, text: str, *, bodies: bool) -> list[TaskResult]:
    """Tasks with this id, and those whose path contains the text; arguments and results are the bodies of their messages."""
    if not settings.task_backends:
        return []
    folded = text.casefold()
    found: dict[str, TaskResult] = {}
    with optional_read(managed_alias(), "read results of tasks"):
        rows = TaskResult.objects.using(managed_alias())
        if not bodies:
            rows = rows.defer("args", "kwargs", "return_value", "errors")
        found |= {each.pk: each for each in rows.filter(pk=text)}
        for backend in settings.task_backends:
            ended = rows.filter(backend=backend, finished_at__isnull=False).order_by("-finished_at", "-pk")
            for each in (*rows.filter(backend=backend, finished_at__isnull=True)[:TASKS_READ], *ended[:TASKS_READ]):
                shown = [each.task, each.queue_name]
                shown += [json.dumps([each.args, each.kwargs, each.return_value], ensure_ascii=False)] if bodies else []
                if any(folded in value.casefold() for value in shown):
                    found[each.pk] = each
    return sorted(found.values(), key=lambda each: (each.enqueued_at, each.pk), reverse=True)[:MAX_PER_GROUP]
