"""One failed message: what the index says of it, and its row in the error queue, if it is there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from django.utils import timezone

from sqlqueue_app.conf import Settings
from sqlqueue_app.instances import managed_alias
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.errors import DatabaseError
from sqlqueue_app.messages.failure_groups import CLASSIFIERS
from sqlqueue_app.models import FailedAttempt, FailedMessage, FailureGroup
from sqlqueue_app.operations.browse import MessageDetail, detail_of
from sqlqueue_app.operations.error_rows import read_error_row
from sqlqueue_app.operations.failure_index import error_queues
from sqlqueue_app.operations.failure_records import FailureRecords
from sqlqueue_app.operations.known_queues import KnownQueue
from sqlqueue_app.operations.looking import looking
from sqlqueue_app.tables.queue import QueueTable, queue_table

ATTEMPTS_AT_MOST: Final = 100
_PYTHON: Final = "Traceback (most recent call last):"


@dataclass(frozen=True, slots=True)
class FailureDetail:
    """A failed message. `row` is what lies in the error queue; None where it does not, or `problem` says why it cannot be read."""

    message: FailedMessage
    attempts: tuple[FailedAttempt, ...]
    groups: tuple[tuple[str, FailureGroup], ...]
    queue: KnownQueue | None
    table: QueueTable | None
    row: MessageDetail | None
    problem: str


def read_failure(settings: Settings, unique: UUID, *, as_hex: bool = False) -> FailureDetail | None:
    """The message of this unique id, or None; four statements, and more where its row is found to be gone, which is written then.

    The body is cut at 64 KiB; `as_hex`: as bytes, whatever it is. Raises errors of the managed database.
    """
    alias = managed_alias()
    message = FailedMessage.objects.using(alias).filter(pk=unique).first()
    if message is None:
        return None
    attempts = message.history.order_by("-failed_at", "-pk")[:ATTEMPTS_AT_MOST]
    named = {getattr(message, each.field): key for key, each in CLASSIFIERS.items()}
    groups = FailureGroup.objects.using(alias).filter(pk__in=[each for each in named if each is not None])
    queue = next((each for each in error_queues(settings) if each.name == message.queue), None)
    table = queue_table(settings.database, queue.address) if queue is not None else None
    row, problem = (None, "") if table is None else _read_row(table, message, as_hex)
    if table is not None and row is None and not problem and message.row_version is not None:
        # Somebody took it out. The look at the whole queue comes round to this row later.
        FailureRecords(alias, table, message.queue).gone([message.row_version], timezone.now())
        message.refresh_from_db(using=alias)
    ordered = sorted(((named[each.pk], each) for each in groups), key=lambda each: list(CLASSIFIERS).index(each[0]))
    return FailureDetail(message, tuple(attempts), tuple(ordered), queue, table, row, problem)


def _read_row(table: QueueTable, message: FailedMessage, as_hex: bool) -> tuple[MessageDetail | None, str]:
    if message.row_version is None:
        return None, ""
    try:
        with looking(table.alias, f"read {table.qualified}"):
            rows = table.peek(1, after=message.row_version - 1)
    except DatabaseError as error:
        return None, str(error)
    # Another message can have the number, where the table was made anew.
    if not rows or rows[0].row_version != message.row_version:
        return None, ""
    if read_error_row(message.queue, rows[0], timezone.now())[1].id != message.pk:
        return None, ""
    return detail_of(rows[0], as_hex=as_hex), ""


def traces_of(row: MessageDetail) -> tuple[str, str]:
    """The stack trace in the form of .NET, and the Python traceback below it; either may be empty."""
    trace = (row.headers or {}).get(names.EXCEPTION_STACK_TRACE) or ""
    dotnet, found, python = trace.partition(_PYTHON)
    return dotnet.rstrip(), found + python
