"""Notes of groups: what somebody knows of a failure, for the next one who looks at it."""

from __future__ import annotations

from typing import Final

from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.translation import gettext as _

from sqlqueue_app.dashboard.access import Power, actor_of
from sqlqueue_app.dashboard.confirming import CONFIRMED, Confirmation, Done, Field, confirm
from sqlqueue_app.dashboard.page_admin import PageAdmin
from sqlqueue_app.dashboard.pages import Crumb
from sqlqueue_app.instances import managed_alias
from sqlqueue_app.models import FailureGroup

LONGEST_NOTE: Final = 4_000


def note_page(pages: PageAdmin, request: HttpRequest, group: FailureGroup) -> HttpResponse:
    """Asks for the note of a group and writes it, with the name of the user and the time; an empty one takes it away."""
    said = request.POST.get("note", "").replace("\r\n", "\n").replace("\0", "\N{REPLACEMENT CHARACTER}").strip()
    text = said if CONFIRMED in request.POST else group.note
    too_long = _("A note has %(most)d characters at most.") % {"most": LONGEST_NOTE}
    back = pages.url("group", group.pk)

    def write() -> Done:
        FailureGroup.objects.using(managed_alias()).filter(pk=group.pk).update(
            note=text,
            noted_by=actor_of(request).name[:255] if text else "",
            noted_at=timezone.now() if text else None,
        )
        return Done(_("The note is written.") if text else _("The note is taken away."), back)

    asked = Confirmation(
        action="note",
        power=Power.SETTINGS,
        target=f"group {group.pk} “{group.title}”",
        title=_("Note"),
        text=_("Everybody who sees this group sees the note, with your name and the time. An empty note takes it away."),
        submit=_("Write the note"),
        perform=write,
        back_url=back,
        facts=((_("Group"), group.title),),
        fields=(Field("note", _("Note"), text, "textarea", is_required=False),),
        errors=(too_long,) if len(text) > LONGEST_NOTE else (),
        crumbs=(Crumb(group.title, back),),
    )
    return confirm(pages, request, asked)
