"""The pages of redirects, which send retries to another queue than the one where messages failed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern
from django.utils.translation import gettext as _

from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard.access import Button, Permission, actor_of, button
from sqlqueue_app.dashboard.actions import ActionOutcome, Confirmation, Field, typed_text
from sqlqueue_app.dashboard.exporting import export, wanted_format
from sqlqueue_app.dashboard.formats import Stamp, stamp_of
from sqlqueue_app.dashboard.page import PageAdmin
from sqlqueue_app.failures.retrying import change_redirect, make_redirect, remove_redirect
from sqlqueue_app.failures.selection import FailureSelection
from sqlqueue_app.messages.errors import AddressError
from sqlqueue_app.models import FailedMessage, FailureStatus, Redirect
from sqlqueue_app.receiving.instances import managed_alias
from sqlqueue_app.status.queues import address_book_of
from sqlqueue_app.tables.queue import queue_table

COLUMNS: Final = ("from_address", "to_address", "used", "created_by", "created_at")


@dataclass(frozen=True, slots=True)
class RedirectRow:
    """A row of the list; `is_missing` if the target does not exist. `messages_url` lists the messages that failed there."""

    redirect: Redirect
    made: Stamp | None
    is_missing: bool
    messages_url: str
    buttons: list[Button]


class RedirectAdmin(PageAdmin):
    """The pages of redirects. They need the permission `sqlqueue_app.view_queue`."""

    def pages(self) -> list[URLPattern]:
        """The list, making one, changing and removing one."""
        return [
            self.readonly_view("", self.changelist_view),
            self.action_view("make/", self.make_view, "make"),
            self.action_view("<uuid:pk>/change/", self.change_redirect_view, "edit"),
            self.action_view("<uuid:pk>/remove/", self.remove_view, "remove"),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """All redirects; there are few."""
        found = Redirect.objects.using(managed_alias()).order_by("from_address")
        if wanted_format(request):
            return export(request, "redirects", COLUMNS, found.values_list(*COLUMNS).iterator(chunk_size=1_000))
        exist: dict[str, bool] = {}
        rows = []
        shown = list(found[:500])
        pending = self._pending_urls([each.from_address for each in shown])
        for each in shown:
            if each.to_address not in exist:
                exist[each.to_address] = _exists(each.to_address)
            rows.append(self._row(request, each, pending.get(each.from_address, ""), is_missing=not exist[each.to_address]))
        return self.page(
            request,
            "redirects",
            rows=rows,
            buttons=[button(request, Permission.REDIRECT, _("Make a redirect"), self.url("make"))],
            **(extra_context or {}),
        )

    def make_view(self, request: HttpRequest) -> HttpResponse:
        """Ask for both queues and create the redirect."""
        source, target = typed_text(request, "from"), typed_text(request, "to")

        def perform() -> ActionOutcome:
            made = make_redirect(get_settings(), source, target, by=actor_of(request).name)
            return self._redirected(made.from_address, made.to_address)

        fields = (
            Field(
                "from",
                _("Queue in which messages failed"),
                source,
                help=_("Its address, as messages have it in NServiceBus.FailedQ."),
            ),
            Field("to", _("Queue that retries go to"), target),
        )
        summary = f"{source} → {target}" if source or target else ""
        return self._confirm(
            request, "make redirect", summary, _("Make a redirect"), perform, _("Make the redirect"), fields=fields
        )

    def change_redirect_view(self, request: HttpRequest, pk: UUID) -> HttpResponse:
        """Ask for another target."""
        redirect = Redirect.objects.using(managed_alias()).filter(pk=pk).first()
        if redirect is None:
            return self._unknown(request)
        target = typed_text(request, "to") or redirect.to_address

        def perform() -> ActionOutcome:
            change_redirect(get_settings(), redirect, target)
            return self._redirected(redirect.from_address, target)

        fields = (Field("to", _("Queue that retries go to"), target),)
        summary = f"{redirect.from_address} → {target}"
        facts = ((_("Queue in which messages failed"), redirect.from_address),)
        title, submit = _("Change a redirect"), _("Change the redirect")
        return self._confirm(request, "change redirect", summary, title, perform, submit, fields=fields, facts=facts)

    def remove_view(self, request: HttpRequest, pk: UUID) -> HttpResponse:
        """Confirm, then remove the redirect."""
        redirect = Redirect.objects.using(managed_alias()).filter(pk=pk).first()
        if redirect is None:
            return self._unknown(request)

        def perform() -> ActionOutcome:
            remove_redirect(redirect)
            return ActionOutcome(_("The redirect is removed."), self.url())

        summary = f"{redirect.from_address} → {redirect.to_address}"
        facts = ((_("From"), redirect.from_address), (_("To"), redirect.to_address))
        title, submit = _("Remove a redirect"), _("Remove the redirect")
        return self._confirm(request, "remove redirect", summary, title, perform, submit, facts=facts, is_dangerous=True)

    def _redirected(self, source: str, target: str) -> ActionOutcome:
        """The outcome; it leads to applying the redirect to pending retries, if there are any."""
        summary = _("Retries to %(from)s go to %(to)s now.") % {"from": source, "to": target}
        pending = self._pending_urls([source]).get(source)
        if pending is None:
            return ActionOutcome(summary, self.url())
        return ActionOutcome(f"{summary} " + _("Some were retried before, and are pending: apply it to them, too?"), pending)

    def _pending_urls(self, addresses: list[str]) -> dict[str, str]:
        """Pages that apply redirects, for those of these queues that have pending retries."""
        pages = self.url_of(FailedMessage, "redirect")
        if not pages:
            return {}
        pending = FailedMessage.objects.using(managed_alias()).filter(status=FailureStatus.RETRY_ISSUED, retried_to__in=addresses)
        found = pending.order_by().values_list("retried_to", flat=True).distinct()
        statuses = (FailureStatus.RETRY_ISSUED,)
        return {each: f"{pages}?{FailureSelection(retried_to=each, statuses=statuses).to_query()}" for each in found}

    def _confirm(
        self, request: HttpRequest, action: str, target: str, title: str, perform: Any, submit: str, **more: Any
    ) -> HttpResponse:
        text = _("A redirect is used when a failed message is retried, and for nothing else.")
        return Confirmation(
            action=action,
            permission=Permission.REDIRECT,
            target=target,
            title=title,
            text=text,
            submit=submit,
            perform=perform,
            back_url=self.url(),
            **more,
        ).answer(self, request)

    def _row(self, request: HttpRequest, redirect: Redirect, pending_url: str, *, is_missing: bool) -> RedirectRow:
        buttons = [
            button(request, Permission.REDIRECT, _("Change"), self.url("edit", redirect.pk)),
            button(request, Permission.REDIRECT, _("Remove"), self.url("remove", redirect.pk), dangerous=True),
        ]
        if pending_url:
            buttons.insert(0, button(request, Permission.RETRY, _("Apply to pending retries"), pending_url))
        listed = self.url_of(FailedMessage, "messages")
        query = FailureSelection(queue=redirect.from_address).to_query()
        messages_url = f"{listed}?{query}" if listed else ""
        return RedirectRow(redirect, stamp_of(redirect.created_at), is_missing, messages_url, buttons)

    def _unknown(self, request: HttpRequest) -> HttpResponse:
        return self.missing(request, _("Redirect not found"), _("There is no such redirect: it was removed."))


def _exists(address: str) -> bool:
    settings = get_settings()
    try:
        return queue_table(settings.database, address_book_of(settings).parse(address)).exists()
    except AddressError:
        return False
