"""What can be done with one message: its body as a file, deleting it, moving it to another queue."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from django.http import Http404, HttpRequest, HttpResponse
from django.urls import URLPattern
from django.utils.translation import gettext as _

from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard.access import Button, Power, button, refusal, require
from sqlqueue_app.dashboard.confirming import Confirmation, Done, Field, confirm
from sqlqueue_app.dashboard.pages import Crumb
from sqlqueue_app.operations.browse import LARGEST_BODY, read_body
from sqlqueue_app.operations.known_queues import KnownQueue
from sqlqueue_app.operations.single_message import delete_message, move_message

if TYPE_CHECKING:
    from sqlqueue_app.dashboard.queue_admin import QueueAdmin


def message_action_pages(pages: QueueAdmin) -> list[URLPattern]:
    """The pages of the actions on one message."""
    return [
        pages.looks("<str:name>/<int:row_version>/body/", partial(_body_view, pages), "message_body"),
        pages.acts("<str:name>/<int:row_version>/delete/", partial(_delete_view, pages), "message_delete"),
        pages.acts("<str:name>/<int:row_version>/move/", partial(_move_view, pages), "message_move"),
    ]


def message_buttons(pages: QueueAdmin, request: HttpRequest, queue: KnownQueue, row_version: int) -> list[Button]:
    """The actions on one message, as links; those that cannot be taken say why."""

    def url(page: str) -> str:
        return pages.message_url(queue, row_version, page)

    refused = refusal(request, Power.EXPORT, Power.VIEW_BODY)
    return [
        Button(_("Save the body as a file"), url("message_body"), refused),
        button(request, Power.MOVE, _("Move to another queue"), url("message_move")),
        button(request, Power.DELETE, _("Delete"), url("message_delete"), dangerous=True),
    ]


def _body_view(pages: QueueAdmin, request: HttpRequest, name: str, row_version: int) -> HttpResponse:
    require(request, Power.EXPORT, Power.VIEW_BODY)
    body = read_body(pages.found(name)[1], row_version, LARGEST_BODY)
    if body is None:
        raise Http404(_("The message is not there."))
    # Never as what it says that it is: a browser would run some of it.
    response = HttpResponse(body, content_type="application/octet-stream")
    response["Content-Disposition"] = f'attachment; filename="message-{row_version}.body"'
    response["X-Content-Type-Options"] = "nosniff"
    return response


def _delete_view(pages: QueueAdmin, request: HttpRequest, name: str, row_version: int) -> HttpResponse:
    queue, table = pages.found(name)

    def delete() -> Done:
        delete_message(table, row_version)
        return Done(_("Message %(number)s was deleted.") % {"number": row_version}, pages.queue_url(queue))

    asked = Confirmation(
        action="delete_message",
        power=Power.DELETE,
        target=f"{queue.name} #{row_version}",
        title=_("Delete message %(number)s") % {"number": row_version},
        text=_("It cannot be brought back."),
        submit=_("Delete the message"),
        perform=delete,
        back_url=pages.message_url(queue, row_version),
        facts=((_("Queue"), queue.name),),
        is_dangerous=True,
        crumbs=_crumbs(pages, queue, row_version),
    )
    return confirm(pages, request, asked)


def _move_view(pages: QueueAdmin, request: HttpRequest, name: str, row_version: int) -> HttpResponse:
    queue, table = pages.found(name)
    to = request.POST.get("to", "").strip()

    def move() -> Done:
        moved = move_message(get_settings(), table, row_version, to)
        text = _("Message %(number)s was moved to %(queue)s.") % {"number": row_version, "queue": moved.address.table}
        return Done(text, pages.queue_url(queue))

    asked = Confirmation(
        action="move_message",
        power=Power.MOVE,
        target=f"{queue.name} #{row_version}" + (f" → {to}" if to else ""),
        title=_("Move message %(number)s") % {"number": row_version},
        text=_("It is put at the end of another queue as it is, in one transaction."),
        submit=_("Move the message"),
        perform=move,
        back_url=pages.message_url(queue, row_version),
        facts=((_("Queue"), queue.name),),
        fields=(Field("to", _("To the queue"), to, help=_("The name of its table, or an address.")),),
        errors=() if to else (_("Name the queue that the message is moved to."),),
        crumbs=_crumbs(pages, queue, row_version),
    )
    return confirm(pages, request, asked)


def _crumbs(pages: QueueAdmin, queue: KnownQueue, row_version: int) -> tuple[Crumb, ...]:
    return (Crumb(queue.name, pages.queue_url(queue)), Crumb(f"#{row_version}", pages.message_url(queue, row_version)))
