"""The event log: events of queues, endpoints and operations, and actions of operators."""

from __future__ import annotations

import enum
import getpass
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from sqlqueue_app.messages.errors import DatabaseError
from sqlqueue_app.models import ActionResult, Event, Operation, OperatorAction, Severity, managed_alias
from sqlqueue_app.tables.connections import database_now, guarded_read
from sqlqueue_app.tables.rows import cut_text, without_nul

logger = logging.getLogger("sqlqueue.operations")

_WRITE_BATCH: Final = 100
_MAX_SUBJECT_LENGTH: Final = 400


class EventKind(enum.StrEnum):
    """Kinds of events; the values are stored, and must not change."""

    GROUP_NEW = "group_new"
    GROUP_BACK = "group_back"
    OPERATION_COMPLETED = "operation_completed"
    OPERATION_FAILED = "operation_failed"
    OPERATION_CANCELLED = "operation_cancelled"
    QUEUE_PURGED = "queue_purged"
    INSTANCE_LOST = "instance_lost"
    INSTANCE_BACK = "instance_back"
    INSTANCE_GONE = "instance_gone"
    ENDPOINT_BELOW = "endpoint_below_minimum"
    ENDPOINT_ENOUGH = "endpoint_above_minimum"
    ENDPOINT_PAUSED = "endpoint_paused"
    ENDPOINT_RESUMED = "endpoint_resumed"
    SCHEDULE_FAILED = "schedule_failed"
    SCHEDULE_SENDS = "schedule_sends"
    CHECK_FAILED = "check_failed"
    CHECK_PASSED = "check_passed"
    NOTIFICATION_FAILED = "notification_failed"


class SubjectKind(enum.StrEnum):
    """The kind of an event's subject, which determines its link."""

    GROUP = "group"
    OPERATION = "operation"
    QUEUE = "queue"
    ENDPOINT = "endpoint"
    SCHEDULE = "schedule"
    CHECK = "check"
    NOTIFICATION = "notification"


@dataclass(frozen=True, slots=True)
class EventDefinition:
    """The severity of a kind, its label in lists, and its text, whose placeholders name details or the `subject`.

    For a check, `check` is its label and `finding` the text of its result.
    """

    severity: Severity
    label: Promise
    text: Promise | str
    about: SubjectKind


# The text of the check, which is translated there.
_FINDING: Final = "%(finding)s"

CATALOGUE: Final[Mapping[str, EventDefinition]] = {
    EventKind.GROUP_NEW: EventDefinition(
        Severity.ERROR, _("new group of failures"), _("New failure group: %(subject)s"), SubjectKind.GROUP
    ),
    EventKind.GROUP_BACK: EventDefinition(
        Severity.ERROR, _("group of failures came back"), _("Messages fail again: %(subject)s"), SubjectKind.GROUP
    ),
    EventKind.OPERATION_COMPLETED: EventDefinition(
        Severity.INFO,
        _("operation completed"),
        _("%(what)s completed on %(subject)s: %(done)s done, %(skipped)s skipped, %(failed)s failed."),
        SubjectKind.OPERATION,
    ),
    EventKind.OPERATION_FAILED: EventDefinition(
        Severity.ERROR,
        _("operation failed"),
        _("%(what)s on %(subject)s stopped early after %(done)s messages: %(error)s"),
        SubjectKind.OPERATION,
    ),
    EventKind.OPERATION_CANCELLED: EventDefinition(
        Severity.WARNING,
        _("operation cancelled"),
        _("%(what)s on %(subject)s cancelled after %(done)s messages."),
        SubjectKind.OPERATION,
    ),
    EventKind.QUEUE_PURGED: EventDefinition(
        Severity.WARNING,
        _("queue purged"),
        _("The queue %(subject)s was purged: %(count)s messages were deleted."),
        SubjectKind.QUEUE,
    ),
    EventKind.INSTANCE_LOST: EventDefinition(Severity.ERROR, _("process lost"), _FINDING, SubjectKind.ENDPOINT),
    EventKind.INSTANCE_BACK: EventDefinition(
        Severity.INFO, _("process back"), _("The process %(subject)s sends heartbeats again."), SubjectKind.ENDPOINT
    ),
    EventKind.INSTANCE_GONE: EventDefinition(
        Severity.INFO,
        _("lost process removed"),
        _("The lost process %(subject)s is no longer registered: it was removed, or another process has replaced it."),
        SubjectKind.ENDPOINT,
    ),
    EventKind.ENDPOINT_BELOW: EventDefinition(Severity.ERROR, _("endpoint below its minimum"), _FINDING, SubjectKind.ENDPOINT),
    EventKind.ENDPOINT_ENOUGH: EventDefinition(
        Severity.INFO, _("endpoint has its minimum again"), _("%(subject)s has enough live instances again."), SubjectKind.ENDPOINT
    ),
    EventKind.ENDPOINT_PAUSED: EventDefinition(
        Severity.WARNING, _("endpoint paused"), _("%(by)s paused %(subject)s; processes: %(processes)s."), SubjectKind.ENDPOINT
    ),
    EventKind.ENDPOINT_RESUMED: EventDefinition(
        Severity.INFO, _("endpoint resumed"), _("%(by)s resumed %(subject)s; processes: %(processes)s."), SubjectKind.ENDPOINT
    ),
    EventKind.SCHEDULE_FAILED: EventDefinition(Severity.ERROR, _("recurring message not sent"), _FINDING, SubjectKind.SCHEDULE),
    EventKind.SCHEDULE_SENDS: EventDefinition(
        Severity.INFO,
        _("recurring message sent again"),
        _("The recurring message %(subject)s is sent again."),
        SubjectKind.SCHEDULE,
    ),
    EventKind.CHECK_FAILED: EventDefinition(
        Severity.ERROR, _("check failed"), _("The check “%(check)s” fails: %(finding)s"), SubjectKind.CHECK
    ),
    EventKind.CHECK_PASSED: EventDefinition(
        Severity.INFO, _("check passed again"), _("The check “%(check)s” passes again."), SubjectKind.CHECK
    ),
    EventKind.NOTIFICATION_FAILED: EventDefinition(
        Severity.ERROR,
        _("notification not sent"),
        _("A notification of the rule “%(subject)s” could not be sent: %(error)s"),
        SubjectKind.NOTIFICATION,
    ),
}


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event to be written: its kind, its subject, the values for its text and its link, and a severity other than its kind's."""

    kind: EventKind
    subject: str
    details: Mapping[str, Any]
    severity: Severity | None = None


def record_events(events: Iterable[NewEvent], *, now: datetime) -> None:
    """Write events, in the current transaction of the managed tables' database if there is one.

    Write them in the same transaction as the change itself. `now` is an instant of that database's clock. A subject of any
    length and with any characters is accepted, shortened and cleaned as the column requires. Raises the database's errors.
    """
    rows = [
        Event(
            at=now,
            severity=each.severity or CATALOGUE[each.kind].severity,
            kind=each.kind.value,
            subject=fitting_subject(each.subject),
            details=dict(each.details),
        )
        for each in events
    ]
    if rows:
        Event.objects.using(managed_alias()).bulk_create(rows, batch_size=_WRITE_BATCH)


def record_event(kind: EventKind, subject: str, details: Mapping[str, Any] | None = None, *, now: datetime) -> None:
    """Write one event; see `record_events`."""
    record_events([NewEvent(kind, subject, details or {})], now=now)


def report_event(kind: EventKind, subject: str, details: Mapping[str, Any]) -> None:
    """Write an event for an action that remains valid without it. Raises no database errors.

    A failure is logged; within a transaction of the managed tables only the event is rolled back. If the process is killed in
    between, the event is missing.
    """
    alias = managed_alias()
    try:
        with guarded_read(alias, "write an event"):
            record_event(kind, subject, details, now=database_now(alias))
    except DatabaseError as error:
        logger.warning("the event %s of %r could not be written: %s", kind, subject[:100], error, extra={"event": "event_lost"})


def fitting_subject(text: str) -> str:
    """The text as a subject column holds it in every database: no NUL, no lone surrogates, 400 characters at most."""
    return cut_text(text.encode("utf-8", "replace").decode(), _MAX_SUBJECT_LENGTH)


action_logger = logging.getLogger("sqlqueue.actions")

_MAX_NAME_LENGTH: Final = 255


@dataclass(frozen=True, slots=True)
class Actor:
    """The author of an action: a user of the site, by key and name, with the network address; or the user who runs a command."""

    name: str
    key: str = ""
    address: str = ""


def command_actor() -> Actor:
    """The user who runs this process."""
    try:
        return Actor(f"{getpass.getuser()} (command)")
    except (OSError, KeyError, ImportError):
        return Actor("unknown (command)")  # no such user on this machine, as in some containers


def record_action(
    actor: Actor,
    action: str,
    target: str,
    *,
    result: ActionResult = ActionResult.DONE,
    permission: str = "",
    count: int = 1,
    reason: str = "",
    operation: Operation | None = None,
    now: Callable[[], datetime] | None = None,
) -> OperatorAction:
    """Write the row, in the current transaction of the managed tables' database if any, and log it. Raises the database's errors.

    `action` is a word such as ``retry``, `target` its object, `count` the number of objects. `now` is the clock of the database
    unless given.
    """
    alias = managed_alias()
    at = now() if now is not None else database_now(alias)
    row = OperatorAction(
        at=at,
        user_key=actor.key[:_MAX_NAME_LENGTH],
        user_name=actor.name[:_MAX_NAME_LENGTH],
        address=actor.address[:64],
        permission=permission,
        action=action,
        target=without_nul(target),
        count=count,
        result=result,
        reason=without_nul(reason),
        operation=operation,
    )
    row.save(using=alias, force_insert=True)
    level = logging.WARNING if result in (ActionResult.DENIED, ActionResult.FAILED) else logging.INFO
    text = "%s: %s on %s (%s): %s%s"
    why = f", {reason}" if reason else ""
    action_logger.log(level, text, actor.name, action, target, count, result, why, extra={"event": "operator_action"})
    return row
