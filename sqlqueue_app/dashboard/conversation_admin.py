"""The pages of conversations in the admin: finding one, and all of its messages in diagrams and a table."""

from __future__ import annotations

from typing import Any, Final

from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import URLPattern
from django.utils import timezone
from django.utils.text import capfirst
from django.utils.translation import gettext as _

from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard.conversations import COLUMNS, exported_talk, flow_of, looked_at, sequence_of, summary_of, talk_rows
from sqlqueue_app.dashboard.exporting import export, wanted_format
from sqlqueue_app.dashboard.failure_admin import READ_BY_A_PAGE
from sqlqueue_app.dashboard.formats import number, stamp
from sqlqueue_app.dashboard.page_admin import PageAdmin
from sqlqueue_app.dashboard.pages import Crumb
from sqlqueue_app.dashboard.paths import path_of, text_of_path
from sqlqueue_app.models import Conversation, DelayedMessage, FailedMessage, LakeSearch, Queue
from sqlqueue_app.operations.conversations.message import Fate, TalkMessage
from sqlqueue_app.operations.conversations.newest import newest_conversations
from sqlqueue_app.operations.conversations.reading import MOST_MESSAGES, conversation_of, read_conversation
from sqlqueue_app.operations.conversations.tree import Forest, cut, forest
from sqlqueue_app.operations.failure_index import catch_up

# So many messages are drawn, and stand on one page of the table.
MOST_DRAWN: Final = 200
LONGEST_ID: Final = 400


class ConversationAdmin(PageAdmin):
    """The pages about conversations, for people with the permission `sqlqueue_app.view_queue`."""

    def pages(self) -> list[URLPattern]:
        """Where one is looked for, and one of them."""
        return [
            self.looks("", self.changelist_view),
            self.looks("<str:name>/", self.conversation_view, "conversation"),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """Asks for an id, leads to the conversation that it means; and the newest conversations in which something has failed."""
        wanted = request.GET.get("id", "").strip()[:LONGEST_ID]
        looked: list[str] = []
        if wanted:
            found, how_far = conversation_of(get_settings(), wanted)
            if found is not None:
                return HttpResponseRedirect(self.conversation_url(found))
            looked = looked_at(how_far)
        else:
            # The list is right also where no worker is alive.
            catch_up(get_settings(), limit=READ_BY_A_PAGE, now=timezone.now(), queues_at_most=1)
        newest = newest_conversations()
        return self.page(
            request,
            "conversations",
            title=capfirst(str(Conversation._meta.verbose_name_plural)),
            wanted=wanted,
            looked=looked,
            longest=LONGEST_ID,
            newest=[(each, self.conversation_url(each.id), number(each.failed), stamp(each.last)) for each in newest],
            **(extra_context or {}),
        )

    def conversation_view(self, request: HttpRequest, name: str) -> HttpResponseBase:
        """All messages of one conversation that can be found."""
        conversation = text_of_path(name)
        read = read_conversation(get_settings(), conversation)
        whole = forest(read.messages)
        if wanted_format(request):
            return export(request, f"conversation {conversation}"[:100], COLUMNS, exported_talk(whole))
        title = _("Conversation %(id)s") % {"id": conversation}
        crumbs = (Crumb(conversation),)
        shown = self._drawn(request, whole) if read.messages else {}
        looked, most = looked_at(read.looked), number(MOST_MESSAGES)
        return self.page(request, "conversation", title=title, crumbs=crumbs, read=read, looked=looked, most=most, **shown)

    def _drawn(self, request: HttpRequest, whole: Forest) -> dict[str, Any]:
        urgent = [place for place, each in enumerate(whole.branches) if each.message.fate not in (Fate.HANDLED, Fate.GONE)]
        drawn = cut(whole, MOST_DRAWN, first=urgent)
        count = len(whole.branches)
        begin = _first_row(request, count)
        return {
            "summary": summary_of([each.message for each in whole.branches]),
            "flow": flow_of(drawn, self._message_url),
            "sequence": sequence_of(drawn, self._message_url),
            "left_out": number(count - len(drawn.branches)) if drawn is not whole else "",
            "drawn": number(len(drawn.branches)),
            "rows": talk_rows(whole, self._message_url, range(begin, min(begin + MOST_DRAWN, count))),
            "previous_url": f"?from={max(begin - MOST_DRAWN, 0) + 1}" if begin else "",
            "next_url": f"?from={begin + MOST_DRAWN + 1}" if begin + MOST_DRAWN < count else "",
        }

    def _message_url(self, message: TalkMessage) -> str:
        """The page of a message, as far as it has one: that of the failed message, of its row, or of the delayed message."""
        if message.failure is not None:
            return self.url_of(FailedMessage, "message", message.failure)
        if message.lake and message.day is not None:
            place = (message.lake, path_of(message.queue), message.day.isoformat(), message.row_version)
            return self.url_of(LakeSearch, "message", *place)
        if message.fate is Fate.DELAYED:
            return self.url_of(DelayedMessage, "message", path_of(message.queue), message.delayed)
        if message.row_version is None:
            return ""
        return self.url_of(Queue, "message", path_of(message.queue), message.row_version)


def _first_row(request: HttpRequest, count: int) -> int:
    asked = request.GET.get("from", "")
    return min(max(int(asked) - 1, 0), count - 1) if asked.isascii() and asked.isdigit() and len(asked) < 7 else 0
