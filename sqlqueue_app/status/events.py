"""The event log: events of queues, endpoints and operations, and actions of operators."""

from __future__ import annotations

import enum
import getpass
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from sqlqueue_app.messages.errors import DatabaseError
from sqlqueue_app.models import ActionResult, Event, Operation, OperatorAction, Severity
from sqlqueue_app.receiving.instances import managed_alias
from sqlqueue_app.tables.connections import database_now, guarded_read
from sqlqueue_app.tables.rows import cut_text, without_nul

logger = logging.getLogger("sqlqueue.operations")

_WRITTEN_AT_ONCE: Final = 100
_LONGEST_SUBJECT: Final = 400


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


class About(enum.StrEnum):
    """What an event is about, which determines its link."""

    GROUP = "group"
    OPERATION = "operation"
    QUEUE = "queue"
    ENDPOINT = "endpoint"
    SCHEDULE = "schedule"
    CHECK = "check"
    NOTIFICATION = "notification"


@dataclass(frozen=True, slots=True)
class KindOfEvent:
    """The severity of a kind, its label in lists, and its text, whose placeholders name details or the `subject`.

    For a check, `check` is its label and `finding` the text of its result.
    """

    severity: Severity
    label: Promise
    text: Promise | str
    about: About


# The text of the check, which is translated there.
_FINDING: Final = "%(finding)s"

CATALOGUE: Final[Mapping[str, KindOfEvent]] = {
    EventKind.GROUP_NEW: KindOfEvent(Severity.ERROR, _("new group of failures"), _("New failure group: %(subject)s"), About.GROUP),
    EventKind.GROUP_BACK: KindOfEvent(
        Severity.ERROR, _("group of failures came back"), _("Messages fail again: %(subject)s"), About.GROUP
    ),
    EventKind.OPERATION_COMPLETED: KindOfEvent(
        Severity.INFO,
        _("operation completed"),
        _("Operation completed on %(subject)s: %(done)s done, %(skipped)s skipped, %(failed)s failed."),
        About.OPERATION,
    ),
    EventKind.OPERATION_FAILED: KindOfEvent(
        Severity.ERROR,
        _("operation failed"),
        _("Operation on %(subject)s stopped early after %(done)s messages: %(error)s"),
        About.OPERATION,
    ),
    EventKind.OPERATION_CANCELLED: KindOfEvent(
        Severity.WARNING,
        _("operation cancelled"),
        _("Operation on %(subject)s cancelled after %(done)s messages."),
        About.OPERATION,
    ),
    EventKind.QUEUE_PURGED: KindOfEvent(
        Severity.WARNING, _("queue purged"), _("The queue %(subject)s was purged: %(count)s messages were deleted."), About.QUEUE
    ),
    EventKind.INSTANCE_LOST: KindOfEvent(Severity.ERROR, _("process lost"), _FINDING, About.ENDPOINT),
    EventKind.INSTANCE_BACK: KindOfEvent(
        Severity.INFO, _("process back"), _("The process %(subject)s sends heartbeats again."), About.ENDPOINT
    ),
    EventKind.INSTANCE_GONE: KindOfEvent(
        Severity.INFO,
        _("lost process removed"),
        _("The process %(subject)s, which was lost, is not registered any more: it was removed, or another has taken its place."),
        About.ENDPOINT,
    ),
    EventKind.ENDPOINT_BELOW: KindOfEvent(Severity.ERROR, _("endpoint below its minimum"), _FINDING, About.ENDPOINT),
    EventKind.ENDPOINT_ENOUGH: KindOfEvent(
        Severity.INFO, _("endpoint has its minimum again"), _("%(subject)s has enough live instances again."), About.ENDPOINT
    ),
    EventKind.ENDPOINT_PAUSED: KindOfEvent(
        Severity.WARNING, _("endpoint paused"), _("%(by)s paused %(subject)s; processes: %(processes)s."), About.ENDPOINT
    ),
    EventKind.ENDPOINT_RESUMED: KindOfEvent(
        Severity.INFO, _("endpoint resumed"), _("%(by)s resumed %(subject)s; processes: %(processes)s."), About.ENDPOINT
    ),
    EventKind.SCHEDULE_FAILED: KindOfEvent(Severity.ERROR, _("recurring message not sent"), _FINDING, About.SCHEDULE),
    EventKind.SCHEDULE_SENDS: KindOfEvent(
        Severity.INFO, _("recurring message sent again"), _("The recurring message %(subject)s is sent again."), About.SCHEDULE
    ),
    EventKind.CHECK_FAILED: KindOfEvent(
        Severity.ERROR, _("check failed"), _("The check “%(check)s” fails: %(finding)s"), About.CHECK
    ),
    EventKind.CHECK_PASSED: KindOfEvent(
        Severity.INFO, _("check passed again"), _("The check “%(check)s” passes again."), About.CHECK
    ),
    EventKind.NOTIFICATION_FAILED: KindOfEvent(
        Severity.ERROR,
        _("notification not sent"),
        _("A notification of the rule “%(subject)s” could not be sent: %(error)s"),
        About.NOTIFICATION,
    ),
}


@dataclass(frozen=True, slots=True)
class Happening:
    """An event to be written: its kind, its subject, and the values for its text and its link."""

    kind: EventKind
    subject: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)


def record_events(happenings: Iterable[Happening], *, now: datetime) -> None:
    """Write events, in the current transaction of the managed tables' database if there is one.

    Write them in the same transaction as the change itself. `now` is an instant of that database's clock. A subject of any
    length and with any characters is accepted, shortened and cleaned as the column requires. Raises the database's errors.
    """
    rows = [
        Event(
            at=now,
            severity=CATALOGUE[each.kind].severity,
            kind=each.kind.value,
            subject=fitting_subject(each.subject),
            details=dict(each.details),
        )
        for each in happenings
    ]
    if rows:
        Event.objects.using(managed_alias()).bulk_create(rows, batch_size=_WRITTEN_AT_ONCE)


def record_event(kind: EventKind, subject: str = "", details: Mapping[str, Any] | None = None, *, now: datetime) -> None:
    """Write one event; see `record_events`."""
    record_events([Happening(kind, subject, details or {})], now=now)


def report_event(kind: EventKind, subject: str = "", details: Mapping[str, Any] | None = None) -> None:
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
    return cut_text(text.encode("utf-8", "replace").decode(), _LONGEST_SUBJECT)


action_logger = logging.getLogger("sqlqueue.actions")

_LONGEST_NAME: Final = 255


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
        user_key=actor.key[:_LONGEST_NAME],
        user_name=actor.name[:_LONGEST_NAME],
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
