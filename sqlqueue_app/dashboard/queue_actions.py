"""What can be done with a queue: purge it, purge what has expired, remove the callback queue of a process that is gone, save it."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.urls import URLPattern
from django.utils.translation import gettext as _

from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard.access import Button, Power, button, refusal, require
from sqlqueue_app.dashboard.confirming import Confirmation, Done, Field, confirm
from sqlqueue_app.dashboard.endpoint_actions import pausing_buttons
from sqlqueue_app.dashboard.formats import bounded_number, depth_number, number
from sqlqueue_app.dashboard.operation_requests import begin_operation
from sqlqueue_app.dashboard.pages import Crumb
from sqlqueue_app.models import Endpoint
from sqlqueue_app.operations.bulk.queue_kinds import queue_scope
from sqlqueue_app.operations.callback_queues import GoneCallbackQueue, gone_callback_queues, remove_callback_queue
from sqlqueue_app.operations.instance_status import InstanceStatus
from sqlqueue_app.operations.known_queues import KnownQueue, QueueKind
from sqlqueue_app.operations.purging import purge_expired, purge_queue
from sqlqueue_app.operations.single_message import target_of
from sqlqueue_app.tables.queue import QueueTable

if TYPE_CHECKING:
    from sqlqueue_app.dashboard.queue_admin import QueueAdmin

# So many messages are read at once for a file.
_SAVED_AT_ONCE = 200


def queue_action_pages(pages: QueueAdmin) -> list[URLPattern]:
    """The pages of the actions on a queue."""
    return [
        pages.acts("<str:name>/purge/", partial(_purge_view, pages), "purge"),
        pages.acts("<str:name>/move/", partial(_move_view, pages), "move_all"),
        pages.acts("<str:name>/purge-expired/", partial(_purge_expired_view, pages), "purge_expired"),
        pages.acts("<str:name>/remove/", partial(_remove_view, pages), "remove"),
        pages.looks("<str:name>/save/", partial(_save_view, pages), "save"),
    ]


def queue_buttons(
    pages: QueueAdmin, request: HttpRequest, queue: KnownQueue, holder: InstanceStatus | None, instances: Iterable[InstanceStatus]
) -> list[Button]:
    """The actions on a queue, as links; those that cannot be taken say why."""
    found = [
        *_endpoint_buttons(pages, request, queue, instances),
        button(request, Power.MOVE, _("Move all messages"), pages.queue_url(queue, "move_all")),
        button(request, Power.PURGE, _("Purge the expired messages"), pages.queue_url(queue, "purge_expired")),
        button(request, Power.PURGE, _("Purge the queue"), pages.queue_url(queue, "purge"), dangerous=True),
    ]
    if queue.kind is QueueKind.CALLBACK:
        reason = _("A process that lives has leased it.") if holder is not None and holder.alive else ""
        remove = pages.queue_url(queue, "remove")
        found.append(button(request, Power.PURGE, _("Remove the queue"), remove, dangerous=True, reason=reason))
    refused = refusal(request, Power.EXPORT, Power.VIEW_BODY)
    found.append(Button(_("Save all messages as a file"), pages.queue_url(queue, "save"), refused))
    return found


def _endpoint_buttons(
    pages: QueueAdmin, request: HttpRequest, queue: KnownQueue, instances: Iterable[InstanceStatus]
) -> list[Button]:
    """Pausing and resuming the endpoint that receives from the queue: with it stop all its queues but those for replies."""
    if queue.kind not in (QueueKind.MAIN, QueueKind.SATELLITE) or not pages.admin_site.is_registered(Endpoint):
        return []
    labels = (_("Pause the endpoint"), _("Resume the endpoint"))
    return [
        each
        for endpoint in queue.endpoints
        for each in pausing_buttons(pages, request, endpoint, [one for one in instances if one.endpoint == endpoint], labels)
    ]


def _crumbs(pages: QueueAdmin, queue: KnownQueue) -> tuple[Crumb, ...]:
    return (Crumb(queue.name, pages.queue_url(queue)),)


def _purge_view(pages: QueueAdmin, request: HttpRequest, name: str) -> HttpResponse:
    queue, table = pages.found(name)
    depth = table.depth()
    is_long = not depth.exact

    def purge() -> Done:
        if is_long:
            return begin_operation(pages, request, "purge_queue", queue_scope(table, queue.name), pages.queue_url(queue))
        deleted = purge_queue(table)
        return Done(_("%(count)s messages were deleted.") % {"count": number(deleted)}, pages.queue_url(queue), deleted)

    waiting = depth_number(depth)
    return confirm(
        pages,
        request,
        Confirmation(
            action="purge",
            power=Power.PURGE,
            target=queue.name,
            title=_("Purge the queue %(name)s") % {"name": queue.name},
            text=_("All its messages are deleted, and cannot be brought back.")
            if is_long
            else _("All its messages are deleted, also those that arrive until then. They cannot be brought back."),
            submit=_("Delete all messages"),
            perform=purge,
            back_url=pages.queue_url(queue),
            facts=((_("Messages"), waiting.text), (_("Table"), table.qualified)),
            warnings=(_("Save them first, if they may be needed: the page of the queue has a link for it."),),
            typed=queue.name,
            is_dangerous=True,
            crumbs=_crumbs(pages, queue),
        ),
    )


def _move_view(pages: QueueAdmin, request: HttpRequest, name: str) -> HttpResponse:
    queue, table = pages.found(name)
    to = request.POST.get("to", "").strip()
    warnings = [_("Messages that others are receiving just then stay; so do those that arrive from now on.")]
    if queue.kind is QueueKind.ERROR:
        warnings.append(_("To have failed messages handled again, retry them: they are moved here as they are."))

    def move() -> Done:
        scope = queue_scope(table, queue.name, target_of(get_settings(), to))
        return begin_operation(pages, request, "move_queue", scope, pages.queue_url(queue))

    return confirm(
        pages,
        request,
        Confirmation(
            action="move_queue",
            power=Power.MOVE,
            target=queue.name + (f" → {to}" if to else ""),
            title=_("Move all messages of %(name)s") % {"name": queue.name},
            text=_("They are put at the end of another queue as they are, in their order, each exactly once."),
            submit=_("Move all messages"),
            perform=move,
            back_url=pages.queue_url(queue),
            facts=((_("Messages"), depth_number(table.depth()).text), (_("Table"), table.qualified)),
            warnings=warnings,
            fields=(Field("to", _("To the queue"), to, help=_("The name of its table, or an address.")),),
            errors=() if to else (_("Name the queue that the messages are moved to."),),
            is_dangerous=True,
            crumbs=_crumbs(pages, queue),
        ),
    )


def _purge_expired_view(pages: QueueAdmin, request: HttpRequest, name: str) -> HttpResponse:
    queue, table = pages.found(name)
    depth = table.depth()

    def purge() -> Done:
        deleted = purge_expired(table)
        return Done(_("%(count)s expired messages were deleted.") % {"count": number(deleted)}, pages.queue_url(queue), deleted)

    return confirm(
        pages,
        request,
        Confirmation(
            action="purge_expired",
            power=Power.PURGE,
            target=queue.name,
            title=_("Purge the expired messages of %(name)s") % {"name": queue.name},
            text=_("Messages whose time to be received has passed are deleted; no receiver would handle them."),
            submit=_("Delete the expired messages"),
            perform=purge,
            back_url=pages.queue_url(queue),
            facts=((_("Expired messages"), bounded_number(depth.expired, exact=depth.exact).text),),
            crumbs=_crumbs(pages, queue),
        ),
    )


def _remove_view(pages: QueueAdmin, request: HttpRequest, name: str) -> HttpResponse:
    queue, table = pages.found(name)
    gone = _gone(queue)

    def remove() -> Done:
        if gone is None or not remove_callback_queue(gone):
            raise ValueError(_("A process has leased the queue in the meantime."))
        return Done(_("The queue %(name)s was removed.") % {"name": queue.name}, pages.url())

    blocked = "" if gone is not None else _("It is not the callback queue of a process that is gone.")
    waiting = "0" if gone is None or gone.depth is None else depth_number(gone.depth).text
    return confirm(
        pages,
        request,
        Confirmation(
            action="remove_callback_queue",
            power=Power.PURGE,
            target=queue.name,
            title=_("Remove the queue %(name)s") % {"name": queue.name},
            text=_("The table is dropped with the replies in it, and the process that had leased it is forgotten."),
            submit=_("Remove the queue"),
            perform=remove,
            back_url=pages.queue_url(queue),
            facts=((_("Replies in it"), waiting), (_("Table"), table.qualified)),
            typed=queue.name,
            blocked=blocked,
            is_dangerous=True,
            crumbs=_crumbs(pages, queue),
        ),
    )


def _gone(queue: KnownQueue) -> GoneCallbackQueue | None:
    if queue.kind is not QueueKind.CALLBACK:
        return None
    found = gone_callback_queues(get_settings())
    return next((each for each in found if each.name == queue.address.table), None)


def _save_view(pages: QueueAdmin, request: HttpRequest, name: str) -> Any:
    require(request, Power.EXPORT, Power.VIEW_BODY)
    table = pages.found(name)[1]
    table.layout()  # an error of the table is a page, and not half a file
    response = StreamingHttpResponse(saved_messages(table), content_type="application/x-ndjson")
    response["Content-Disposition"] = 'attachment; filename="messages.ndjson"'
    response["X-Content-Type-Options"] = "nosniff"
    return response


def saved_messages(table: QueueTable) -> Iterator[str]:
    """Every message of a queue as a line of JSON: all columns, the body in base64. Read in parts, each as it stands then."""
    after = 0
    while rows := table.peek(_SAVED_AT_ONCE, after=after, body_limit=2**31 - 1):
        for row in rows:
            line = {
                "row_version": row.row_version,
                "id": str(row.id),
                "correlation_id": row.correlation_id,
                "reply_to_address": row.reply_to_address,
                "expires": None if row.expires is None else row.expires.isoformat(),
                "headers": row.headers,
                "body_base64": None if row.body is None else base64.b64encode(row.body).decode("ascii"),
            }
            yield json.dumps(line) + "\n"
        after = rows[-1].row_version
