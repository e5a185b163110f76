"""Asking for a bulk operation from a page: what was done at once, and where one that goes on is watched."""

from __future__ import annotations

from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard.access import actor_of
from sqlqueue_app.dashboard.confirming import Done
from sqlqueue_app.dashboard.formats import number
from sqlqueue_app.dashboard.page_admin import PageAdmin
from sqlqueue_app.models import Operation, OperationState
from sqlqueue_app.operations.bulk.batches import Scope
from sqlqueue_app.operations.bulk.engine import OPEN
from sqlqueue_app.operations.bulk.requesting import request_operation


def begin_operation(admin: PageAdmin, request: HttpRequest, kind: str, scope: Scope, back_url: str) -> Done:
    """Start it, and lead to its page unless all of it is done; raises as `request_operation`."""
    operation = request_operation(get_settings(), kind, scope, actor=actor_of(request))
    page = admin.url_of(Operation, "operation", operation.pk) or back_url
    done = operation.state == OperationState.COMPLETED and not operation.skipped and not operation.failed
    count = operation.total if operation.state in OPEN else operation.done
    return Done(_said(operation), back_url if done else page, count, operation)


def _said(operation: Operation) -> str:
    if operation.state in OPEN:
        return _("The operation has begun: a worker goes on with it.")
    done = ngettext("Done with %(count)s message.", "Done with %(count)s messages.", operation.done)
    text = done % {"count": number(operation.done)}
    left = operation.skipped + operation.failed
    if left:
        stayed = ngettext("%(count)s stayed as it was.", "%(count)s stayed as they were.", left)
        text = f"{text} {stayed % {'count': number(left)}}"
    return f"{text} {operation.error}".strip()
