"""What can be done with delayed messages: delivering them now, cancelling them, for one and for those that were chosen."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from django.http import Http404, HttpRequest, HttpResponse
from django.urls import URLPattern
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard.access import Button, Power, button, may, missing, refusal, require
from sqlqueue_app.dashboard.confirming import Confirmation, Done, confirm
from sqlqueue_app.dashboard.delayed_texts import time_left
from sqlqueue_app.dashboard.formats import number
from sqlqueue_app.dashboard.pages import Crumb
from sqlqueue_app.dashboard.paths import path_of
from sqlqueue_app.messages.errors import ConnectionLost, DatabaseError
from sqlqueue_app.operations.delayed_messages import (
    MOST_CHOSEN,
    Bound,
    Delivered,
    bound_messages,
    cancel_delayed,
    deliver_now,
    read_delayed_body,
)
from sqlqueue_app.operations.known_delayed import KnownDelayed
from sqlqueue_app.tables.delayed_rows import key_of

if TYPE_CHECKING:
    from sqlqueue_app.dashboard.delayed_admin import DelayedAdmin

_REASONS_SHOWN = 20


def delayed_action_pages(pages: DelayedAdmin) -> list[URLPattern]:
    """The pages of the actions; those on messages take their keys as `ids`, from the address or the form."""
    return [
        pages.acts("<str:table>/deliver/", partial(_deliver_view, pages), "deliver"),
        pages.acts("<str:table>/cancel/", partial(_cancel_view, pages), "cancel"),
        pages.looks("<str:table>/<str:key>/body/", partial(_body_view, pages), "body"),
    ]


def delayed_buttons(pages: DelayedAdmin, request: HttpRequest, known: KnownDelayed, key: str = "") -> list[Button]:
    """The actions on one message, as links; without a key those on the chosen ones, whose form names them."""

    def to(page: str) -> str:
        return pages.url(page, path_of(known.name)) + (f"?{urlencode({'ids': key})}" if key else "")

    found = [
        button(request, Power.RETRY, _("Deliver now"), to("deliver")),
        button(request, Power.DELETE, _("Cancel"), to("cancel"), dangerous=True),
    ]
    if key:
        refused = refusal(request, Power.EXPORT, Power.VIEW_BODY)
        found.insert(0, Button(_("Save the body as a file"), pages.message_url(known, key, "body"), refused))
    return found


def _deliver_view(pages: DelayedAdmin, request: HttpRequest, table: str) -> HttpResponse:
    known, keys, bound, problem = _found(pages, request, table, Power.RETRY)
    settings = get_settings()
    ready = [each for each in bound if each.target is not None]

    def perform() -> Done:
        done = deliver_now(settings, known, keys)
        if not done.done:
            raise ValueError(_nothing(done))
        return Done(_delivered(done), pages.table_url(known.name), done.done)

    words = ngettext("Deliver %(count)s message now", "Deliver %(count)s messages now", len(ready)) % {"count": number(len(ready))}
    return confirm(
        pages,
        request,
        Confirmation(
            action="deliver_now",
            power=Power.RETRY,
            target=_target(known, keys),
            title=words,
            text=_(
                "They are put into their queues at once, in one transaction, whenever they are due. "
                "What a worker moves meanwhile is left to it."
            ),
            submit=_("Deliver now"),
            perform=perform,
            back_url=pages.table_url(known.name),
            count=len(ready),
            facts=(*_facts(known, bound, keys), *_destinations(ready)),
            warnings=[_("Stays: %(reason)s") % {"reason": each.refusal} for each in bound if each.refusal][:_REASONS_SHOWN],
            hidden=[("ids", key) for key in keys],
            blocked=problem or ("" if ready else _none(bound)),
            crumbs=_crumbs(pages, known),
        ),
    )


def _cancel_view(pages: DelayedAdmin, request: HttpRequest, table: str) -> HttpResponse:
    known, keys, bound, problem = _found(pages, request, table, Power.DELETE)
    settings = get_settings()

    def perform() -> Done:
        deleted = cancel_delayed(known.table(settings.database), keys)
        if not deleted:
            raise ValueError(_("None of them is there any more: they were delivered or cancelled, or a worker is moving them."))
        words = ngettext("%(count)s delayed message was cancelled.", "%(count)s delayed messages were cancelled.", deleted)
        return Done(words % {"count": number(deleted)}, pages.table_url(known.name), deleted)

    words = ngettext("Cancel %(count)s delayed message", "Cancel %(count)s delayed messages", len(bound))
    return confirm(
        pages,
        request,
        Confirmation(
            action="cancel_delayed",
            power=Power.DELETE,
            target=_target(known, keys),
            title=words % {"count": number(len(bound))},
            text=_("They are deleted and never delivered. They cannot be brought back; a saga may wait for its timeout for ever."),
            submit=_("Delete them"),
            perform=perform,
            back_url=pages.table_url(known.name),
            count=len(bound),
            facts=(*_facts(known, bound, keys), *_destinations(bound)),
            hidden=[("ids", key) for key in keys],
            blocked=problem or ("" if bound else _none(bound)),
            is_dangerous=True,
            crumbs=_crumbs(pages, known),
        ),
    )


def _body_view(pages: DelayedAdmin, request: HttpRequest, table: str, key: str) -> HttpResponse:
    require(request, Power.EXPORT, Power.VIEW_BODY)
    known = pages.found(table)
    delayed = known.table(get_settings().database)
    wanted = key_of(delayed, key)
    body = None if wanted is None else read_delayed_body(delayed, wanted)
    if body is None:
        raise Http404(_("The message is not there."))
    # Never as what it says that it is: a browser would run some of it.
    response = HttpResponse(body, content_type="application/octet-stream")
    response["Content-Disposition"] = f'attachment; filename="message-{wanted}.body"'
    response["X-Content-Type-Options"] = "nosniff"
    return response


def _found(pages: DelayedAdmin, request: HttpRequest, table: str, power: Power) -> tuple[KnownDelayed, list[str], list[Bound], str]:
    """The table, the keys that the address or the form name, what is there of them, and why that cannot be told.

    For who may not act nothing is read: `confirm` refuses him.
    """
    known = pages.find(table)
    if known is None:
        raise missing(request, power, _("There is no table of delayed messages “%(name)s”.") % {"name": table})
    settings = get_settings()
    delayed = known.table(settings.database)
    asked = request.POST.getlist("ids") if request.method == "POST" else []
    wanted = (key_of(delayed, text) for text in asked or request.GET.getlist("ids"))
    keys = list(dict.fromkeys(key for key in wanted if key is not None))[:MOST_CHOSEN]
    if not may(request, power):
        return known, keys, [], ""
    try:
        return known, keys, bound_messages(settings, known, keys), ""
    except ConnectionLost:
        raise
    except DatabaseError as error:
        return known, keys, [], str(error)


def _target(known: KnownDelayed, keys: Sequence[str]) -> str:
    return f"{known.name} #{keys[0]}" if len(keys) == 1 else known.name


def _facts(known: KnownDelayed, bound: Sequence[Bound], keys: Sequence[str]) -> list[tuple[str, str]]:
    found = [(_("Endpoint"), known.endpoint), (_("Messages"), number(len(bound)))]
    if len(bound) == 1:
        found.append((_("Due"), time_left(bound[0].row.seconds)))
    if len(bound) < len(keys):
        found.append((_("Not there any more"), number(len(keys) - len(bound))))
    return found


def _destinations(bound: Sequence[Bound]) -> list[tuple[str, str]]:
    counts: dict[str, int] = {}
    for each in bound:
        counts[each.to or "?"] = counts.get(each.to or "?", 0) + 1
    shown = sorted(counts.items(), key=lambda pair: -pair[1])[:_REASONS_SHOWN]
    return [(_("To the queue"), to if len(bound) == 1 else f"{to} ({number(count)})") for to, count in shown]


def _none(bound: Sequence[Bound]) -> str:
    if bound:
        return _("None of these messages can be delivered.")
    return _("None of these messages is in the table: they were delivered or cancelled, or none was chosen.")


def _nothing(done: Delivered) -> str:
    if done.refused:
        return done.refused[0].refusal
    return _("None of them is there any more: they were delivered or cancelled, or a worker is moving them.")


def _delivered(done: Delivered) -> str:
    words = [
        ngettext("%(count)s message was delivered.", "%(count)s messages were delivered.", done.done) % {"count": number(done.done)}
    ]
    if done.gone:
        gone = ngettext("%(count)s was not there any more.", "%(count)s were not there any more.", done.gone)
        words.append(gone % {"count": number(done.gone)})
    if done.refused:
        left = ngettext("%(count)s stays: %(reason)s", "%(count)s stay: %(reason)s", len(done.refused))
        words.append(left % {"count": number(len(done.refused)), "reason": done.refused[0].refusal})
    return " ".join(words)


def _crumbs(pages: DelayedAdmin, known: KnownDelayed) -> tuple[Crumb, ...]:
    return (Crumb(known.name, pages.table_url(known.name)),)
