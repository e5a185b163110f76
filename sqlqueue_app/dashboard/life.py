"""The history of a failed message: a table of its sending, each failure with the reaction, and its current place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlencode

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from sqlqueue_app.dashboard.formats import Grade, State, precise_duration
from sqlqueue_app.dashboard.lists import WIDE, HtmlTable, TableColumn, link_html, table, with_notes
from sqlqueue_app.dashboard.page import PageAdmin
from sqlqueue_app.failures.queries import FailureDetail
from sqlqueue_app.messages import headers as names
from sqlqueue_app.models import FailedAttempt, FailureStatus, Operation, Search


@dataclass(frozen=True, slots=True)
class LifeStep:
    """A step in the life of a message: when, what, where, duration, and details."""

    at: datetime | None
    state: State
    place: object = ""
    took: str = ""
    details: object = ""


def life_table(pages: PageAdmin, found: FailureDetail, state: State, location: State | None) -> HtmlTable:
    """The steps, newest first. `state` is the message's own, `location` the place of a pending retry."""
    columns: list[TableColumn[LifeStep]] = [
        TableColumn(_("When"), lambda each: each.at),
        TableColumn(_("What"), lambda each: each.state),
        TableColumn(_("Where"), lambda each: each.place),
        TableColumn(_("Duration"), lambda each: each.took),
        TableColumn(_("Details"), lambda each: each.details, WIDE),
    ]
    return table(_("What happened to the message, the newest first."), columns, _steps(pages, found, state, location))


def _steps(pages: PageAdmin, found: FailureDetail, state: State, location: State | None) -> Iterator[LifeStep]:
    yield _now(pages, found, state, location)
    for attempt in found.attempts:
        if attempt.retried_at is not None:
            what, details = _retry(pages, found, attempt)
            yield LifeStep(attempt.retried_at, State(Grade.INFO, what), details=details)
        took = precise_duration(attempt.failed_at - attempt.started_at) if attempt.started_at else ""
        exception = with_notes(attempt.exception_type, attempt.exception_message[:300])
        place = with_notes(attempt.failed_q, attempt.worker)
        yield LifeStep(attempt.failed_at, State(Grade.ERROR, _("Failed")), place, took, exception)
        if attempt.delayed_at is not None:
            delayed, last = State(Grade.INFO, _("Delayed retry")), _("the last one before it failed")
            yield LifeStep(attempt.delayed_at, delayed, attempt.failed_q, details=last)
    if found.message.sent_at is not None:
        headers = (found.row.headers if found.row else None) or {}
        yield LifeStep(found.message.sent_at, State(Grade.INFO, _("Sent")), headers.get(names.ORIGINATING_ENDPOINT))


def _now(pages: PageAdmin, found: FailureDetail, state: State, location: State | None) -> LifeStep:
    message = found.message
    if message.row_version is not None:
        return LifeStep(message.status_at, State(state.level, _("In the error queue")), message.queue, details=state.word)
    newest = next((each.copy_id for each in found.attempts if each.copy_id), "")
    details: object = location
    if message.status == FailureStatus.RESOLVED:
        details = _search(pages, newest or message.message_id, _("Search for the handled message"))
    elif message.status == FailureStatus.RETRY_ISSUED and newest in found.copies:
        details = _("Its edited copy has failed. This message is resolved when the copy is handled.")
    return LifeStep(message.status_at, state, message.retried_to, details=details)


def _retry(pages: PageAdmin, found: FailureDetail, attempt: FailedAttempt) -> tuple[str, object]:
    """The reaction to a failure, with its author or the new message."""
    if text := attempt.copy_id:
        copy = found.copies.get(text)
        link = link_html(pages.url("message", copy.pk), text) if copy else _search(pages, text, text)
        return _("Edited and retried"), format_html(_("As message {}"), link)
    operation = found.operations.get(attempt.operation) if attempt.operation else None
    if operation is None:
        return _("Retried"), ""
    by = _("Requested by %(user)s") % {"user": operation.user_name or "–"}
    return _("Retried"), format_html("{}. {}", by, link_html(pages.url_of(Operation, "operation", operation.pk), _("Results")))


def _search(pages: PageAdmin, message_id: str, text: str) -> SafeString:
    return link_html(f"{pages.url_of(Search)}?{urlencode({'q': message_id})}", text)
