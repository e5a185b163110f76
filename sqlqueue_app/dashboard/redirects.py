"""The pages of redirects, which send retries to a queue other than the one where messages failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.http import HttpRequest
from django.utils.translation import gettext as _, gettext_lazy

from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard.access import Button, Permission, actor_of, button, may
from sqlqueue_app.dashboard.actions import Action, ActionOutcome
from sqlqueue_app.dashboard.formats import Grade, State
from sqlqueue_app.dashboard.lists import NUMBER, WIDE, ListAdmin, TableColumn, link_html, with_notes
from sqlqueue_app.dashboard.page import PageAdmin, found_or_404
from sqlqueue_app.failures.retrying import change_redirect, create_redirect, remove_redirect
from sqlqueue_app.failures.selection import FailureSelection
from sqlqueue_app.messages.errors import AddressError
from sqlqueue_app.models import FailedMessage, FailureStatus, Redirect, managed_alias
from sqlqueue_app.status.queues import address_book_of
from sqlqueue_app.status.texts import PLAIN_INPUT
from sqlqueue_app.tables.queue import queue_table


class RedirectAction(Action):
    """An action on a redirect, or one that creates it."""

    permission = Permission.REDIRECT
    text = gettext_lazy("Redirects apply only to retries of failed messages.")
    redirect: Redirect

    def find(self, **key: Any) -> None:
        text = _("There is no such redirect: it was removed.")
        self.redirect = found = found_or_404(Redirect.objects.using(managed_alias()).filter(**key), text)
        self.target = f"{found.from_address} → {found.to_address}"
        self.back_url = self.pages.url()

    def redirected(self, source: str, target: str) -> ActionOutcome:
        """The outcome; it leads to applying the redirect to pending retries, if there are any."""
        summary = _("Retries to %(from)s go to %(to)s now.") % {"from": source, "to": target}
        pending = _pending_urls(self.pages).get(source) if may(self.request, Permission.RETRY) else None
        if pending:
            summary += " " + _("Some retries to it are pending: apply the redirect to them too?")
        return ActionOutcome(summary, pending or self.back_url)


class TargetForm(forms.Form):
    """The queue that retries go to."""

    to = forms.CharField(label=gettext_lazy("Queue that retries go to"), widget=forms.TextInput(PLAIN_INPUT))


_FROM = forms.CharField(
    label=gettext_lazy("Queue in which messages failed"),
    help_text=gettext_lazy("Its address, as messages have it in NServiceBus.FailedQ."),
    widget=forms.TextInput(PLAIN_INPUT),
)
# The name of the field is a keyword.
RedirectForm = type("RedirectForm", (TargetForm,), {"from": _FROM, "field_order": ("from", "to")})


class MakeRedirect(RedirectAction):
    name, page, route = "make redirect", "make", "make/"
    label = gettext_lazy("Create a redirect")
    submit = gettext_lazy("Create the redirect")
    form_class = RedirectForm

    def find(self, **key: Any) -> None:
        self.target = " → ".join(filter(None, (self.request.POST.get(name, "").strip() for name in ("from", "to"))))
        self.back_url = self.pages.url()

    def run(self, data: Mapping[str, Any]) -> ActionOutcome:
        made = create_redirect(get_settings(), data["from"], data["to"], by=actor_of(self.request).name)
        return self.redirected(made.from_address, made.to_address)


class ChangeRedirect(RedirectAction):
    name, page, route = "change redirect", "edit", "<uuid:pk>/change/"
    label = gettext_lazy("Change")
    title, submit = gettext_lazy("Change a redirect"), gettext_lazy("Change the redirect")
    form_class = TargetForm

    def find(self, **key: Any) -> None:
        super().find(**key)
        self.start_with(to=self.redirect.to_address)
        self.target = f"{self.redirect.from_address} → {self.request.POST.get('to', self.redirect.to_address).strip()}"
        self.facts = ((_("Queue in which messages failed"), self.redirect.from_address),)

    def run(self, data: Mapping[str, Any]) -> ActionOutcome:
        change_redirect(get_settings(), self.redirect, data["to"])
        return self.redirected(self.redirect.from_address, data["to"])


class RemoveRedirect(RedirectAction):
    name, page, route = "remove redirect", "remove", "<uuid:pk>/remove/"
    label = gettext_lazy("Remove")
    title, submit = gettext_lazy("Remove a redirect"), gettext_lazy("Remove the redirect")
    is_dangerous = True

    def find(self, **key: Any) -> None:
        super().find(**key)
        self.facts = ((_("From"), self.redirect.from_address), (_("To"), self.redirect.to_address))

    def run(self, data: Mapping[str, Any]) -> ActionOutcome:
        remove_redirect(self.redirect)
        return ActionOutcome(_("The redirect is removed."), self.back_url)


class RedirectAdmin(ListAdmin[Redirect]):
    """The pages of redirects. They need the permission `sqlqueue_app.view_queue`."""

    caption = gettext_lazy("Redirects of retries")
    nothing = gettext_lazy("There is no redirect: retries go to the queues in which the messages failed.")
    instant = "created_at"
    live_seconds = None
    file_name, file_columns = "redirects", ("from_address", "to_address", "used", "created_by", "created_at")

    action_classes = (MakeRedirect, ChangeRedirect, RemoveRedirect)

    def columns(self, request: HttpRequest) -> list[TableColumn[Redirect]]:
        listed = self.url_of(FailedMessage, "messages")
        exists, pending = cache(_exists), cache(partial(_pending_urls, self))
        missing = State(Grade.ERROR, _("does not exist"))

        def source(each: Redirect) -> object:
            query = FailureSelection(queue=each.from_address).to_query()
            return link_html(f"{listed}?{query}" if listed else "", each.from_address)

        def target(each: Redirect) -> object:
            return with_notes(each.to_address, not exists(each.to_address) and missing)

        def buttons(each: Redirect) -> list[Button]:
            found = [action.button(self, request, each.pk) for action in (ChangeRedirect, RemoveRedirect)]
            if url := pending().get(each.from_address):
                found.insert(0, button(request, Permission.RETRY, _("Apply to pending retries"), url))
            return found

        return [
            TableColumn(_("Messages that failed in"), source),
            TableColumn(_("are retried in"), target, WIDE),
            TableColumn(_("Used"), lambda each: each.used, NUMBER),
            TableColumn(_("Created"), lambda each: with_notes(each.created_at, each.created_by)),
            TableColumn(_("Actions"), buttons),
        ]

    def more(self, request: HttpRequest, rows: Sequence[Redirect]) -> dict[str, Any]:
        return {"buttons": [MakeRedirect.button(self, request)]}


def _pending_urls(pages: PageAdmin) -> dict[str, str]:
    """Pages that apply a redirect to pending retries, by its source queue, if there are any."""
    applying = pages.url_of(FailedMessage, "redirect")
    if not applying:
        return {}
    sources = Redirect.objects.values("from_address")
    waiting = FailureSelection(statuses=(FailureStatus.RETRY_ISSUED,))
    found = waiting.queryset().filter(retried_to__in=sources).order_by().values_list("retried_to", flat=True).distinct()
    back = urlencode({"back": pages.url_of(FailedMessage, "pending")})
    return {each: f"{applying}?{FailureSelection(retried_to=each, statuses=waiting.statuses).to_query()}&{back}" for each in found}


def _exists(address: str) -> bool:
    settings = get_settings()
    try:
        return queue_table(settings.database, address_book_of(settings).parse(address)).exists()
    except AddressError:
        return False
