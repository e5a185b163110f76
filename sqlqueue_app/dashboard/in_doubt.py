"""The page of in-doubt transactions: prepared in other databases and not finished."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.http import HttpRequest
from django.utils.translation import gettext as _

from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard.formats import Grade, State
from sqlqueue_app.dashboard.lists import WIDE, TableColumn, link_html, table, with_notes
from sqlqueue_app.dashboard.page import PageAdmin, path_of
from sqlqueue_app.models import CheckResult, Queue
from sqlqueue_app.status.in_doubt import InDoubt, PendingTransaction
from sqlqueue_app.tables.connections import guarded_read


class InDoubtAdmin(PageAdmin):
    """The page of in-doubt transactions, for users with the permission `sqlqueue_app.view_queue`."""

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """The transactions, oldest first. Reads the other databases that a handler may write to."""
        alias = get_settings().database
        with guarded_read(alias, "read the log of distributed transactions"):
            found = InDoubt(alias).pending()
        queue = partial(self.url_of, Queue, "messages")
        columns: list[TableColumn[PendingTransaction]] = [
            TableColumn(_("Transaction"), lambda each: str(each.id), WIDE),
            TableColumn(_("Since"), lambda each: each.since),
            TableColumn(_("Outcome"), _outcome),
            TableColumn(_("Queue"), lambda each: each.queue and link_html(queue(path_of(each.queue)), each.queue)),
            TableColumn(_("Databases"), _databases),
        ]
        return self.page(
            request,
            "list",
            links=[(self.url_of(CheckResult), _("Checks"))],
            table=table(_("In-doubt transactions, oldest first"), columns, found, lambda each: each.id),
            nothing=_("No transactions are in doubt."),
            note=_("Workers commit or roll back each branch. Until then it keeps its locks in its database."),
            **(extra_context or {}),
        )


def _outcome(each: PendingTransaction) -> State:
    if each.queue:
        return State(Grade.WARNING, _("To be committed"))
    return State(Grade.INFO, _("Its message is being handled, or it will be rolled back"))


def _databases(each: PendingTransaction) -> object:
    prepared = ", ".join(sorted({branch.alias for branch in each.prepared}))
    unavailable = ", ".join(each.unavailable)
    return with_notes(prepared, unavailable and _("Not available: %(names)s") % {"names": unavailable})
