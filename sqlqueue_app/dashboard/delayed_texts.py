"""Tables of delayed messages, and their messages, as rows of texts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from sqlqueue_app.dashboard.formats import Number, Stamp, bounded_number, duration, stamp_of
from sqlqueue_app.dashboard.overview import Level, State
from sqlqueue_app.operations.delayed_messages import DelayedMessage, DelayedPage, DelayKind, read_delayed_page
from sqlqueue_app.operations.delayed_status import DelayedStatus
from sqlqueue_app.tables.delayed import DelayedTable

TABLE_COLUMNS: Final = ("table", "endpoint", "in_settings", "exists", "messages", "exact", "overdue", "next_due")
MESSAGE_COLUMNS: Final = (
    *("key", "due", "seconds_until_due", "kind", "destination", "types"),
    *("message_id", "endpoint", "size", "unreadable"),
)

# A worker looks every second; what is due for longer is left by all of them.
OVERDUE_SECONDS: Final = 2.0
_EXPORTED_AT_ONCE: Final = 500

KINDS = {
    DelayKind.RETRY: gettext_lazy("delayed retry"),
    DelayKind.TIMEOUT: gettext_lazy("timeout"),
    DelayKind.DEFERRED: gettext_lazy("deferred send"),
}


@dataclass(frozen=True, slots=True)
class TableRow:
    """A table of delayed messages as the list shows it. Numbers are None where nothing could be counted."""

    name: str
    url: str
    endpoint: str
    is_in_settings: bool
    table: str
    state: State
    note: str
    waiting: Number | None
    overdue: Number | None
    next_due: Stamp | None
    left: str


@dataclass(frozen=True, slots=True)
class DelayedRow:
    """A message that waits, as the list shows it."""

    key: str
    url: str
    due: Stamp | None
    due_text: str
    left: str
    is_overdue: bool
    kind: str
    destination: str
    message_type: str
    message_id: str
    unreadable: str


def table_row(each: DelayedStatus, url: str, now: datetime) -> TableRow:
    """The row of a table; `now` is the clock of the database."""
    state = _state(each, now)
    return TableRow(
        name=each.name,
        url=url if each.exists is not False else "",
        endpoint=each.endpoint,
        is_in_settings=each.is_in_settings,
        table=each.table,
        state=state,
        note=_("no worker moves them") if state.level is Level.WARNING else "",
        waiting=None if each.waiting is None else bounded_number(each.waiting, exact=each.exact),
        overdue=None if each.overdue is None else bounded_number(each.overdue, exact=each.exact),
        next_due=stamp_of(each.next_due),
        left="" if each.next_due is None else time_left((each.next_due - now).total_seconds()),
    )


def _state(each: DelayedStatus, now: datetime) -> State:
    if each.exists is False:
        return State(Level.ERROR, _("Missing"))
    if each.waiting is None or each.overdue is None:
        return State(Level.ERROR, _("Cannot be read"))
    if not each.overdue:
        return State(Level.OK, _("OK"))
    late = None if each.next_due is None else (now - each.next_due).total_seconds()
    if late is not None and late <= OVERDUE_SECONDS:
        return State(Level.OK, _("OK"))
    return State(Level.WARNING, _("Overdue"))


def time_left(seconds: float | None) -> str:
    """How long until a message is due, or since when it has been, in words."""
    if seconds is None:
        return _("never")
    if seconds > 0:
        return _("in %(time)s") % {"time": duration(timedelta(seconds=seconds))}
    if seconds >= -OVERDUE_SECONDS:
        return _("now")
    return _("overdue for %(time)s") % {"time": duration(timedelta(seconds=-seconds))}


def delayed_row(each: DelayedMessage, url: str) -> DelayedRow:
    """The row of a message."""
    row = each.row
    return DelayedRow(
        key=each.key,
        url=url,
        due=stamp_of(row.due),
        due_text=row.due_text,
        left=time_left(row.seconds),
        is_overdue=row.seconds is not None and row.seconds < -OVERDUE_SECONDS,
        kind=_("unknown") if each.kind is None else str(KINDS[each.kind]),
        destination=each.destination,
        message_type=each.message.message_type,
        message_id=each.message.message_id,
        unreadable=each.message.unreadable or "",
    )


def exported_tables(found: tuple[DelayedStatus, ...]) -> Iterator[tuple[Any, ...]]:
    """A row for each table, in the order of the page."""
    for each in found:
        name, counted = (each.name, each.endpoint, each.is_in_settings), (each.waiting, each.exact, each.overdue)
        yield (*name, each.exists, *counted, each.next_due)


def exported_delayed(table: DelayedTable, endpoint: str, first: DelayedPage) -> Iterator[tuple[Any, ...]]:
    """A row for each message from a page on to the end of the table; what is moved meanwhile may be left out."""
    found = first
    while True:
        for each in found.messages:
            row, message = each.row, each.message
            kind = None if each.kind is None else each.kind.value
            told = (row.due or row.due_text, row.seconds, kind, each.destination, list(message.types))
            yield (each.key, *told, message.message_id, endpoint, message.size, message.unreadable)
        if found.next is None:
            return
        found = read_delayed_page(table, _EXPORTED_AT_ONCE, after=found.next)
