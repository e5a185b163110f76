"""The pages of old messages in the lake: the search, and one of them."""

from __future__ import annotations

from datetime import date
from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import URLPattern
from django.utils import timezone
from django.utils.text import capfirst
from django.utils.translation import gettext as _

from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard.access import Power, may, reason_of
from sqlqueue_app.dashboard.analytics_admin import PIPELINE_COMMAND
from sqlqueue_app.dashboard.days import day_of
from sqlqueue_app.dashboard.exporting import export, wanted_format
from sqlqueue_app.dashboard.formats import stamp, stamp_of
from sqlqueue_app.dashboard.lake_requests import KINDS, LONGEST, RANGES, SearchAsked
from sqlqueue_app.dashboard.lake_rows import COLUMNS, detail_of_lake, exported_messages, lake_row, results_line, state_of
from sqlqueue_app.dashboard.messages import body_text, failure_text, flag_states, header_groups, message_row, time_texts
from sqlqueue_app.dashboard.page_admin import PageAdmin
from sqlqueue_app.dashboard.pages import Crumb
from sqlqueue_app.dashboard.paths import path_of, text_of_path
from sqlqueue_app.lake.data_files import SEARCHED
from sqlqueue_app.lake.engine import INSTALL
from sqlqueue_app.lake.errors import LakeEngineMissing, LakeError
from sqlqueue_app.lake.search import SECONDS, FoundMessage, Results, read_message, search
from sqlqueue_app.models import PipelineRun
from sqlqueue_app.operations.lake_files import KnownLake, known_lake
from sqlqueue_app.tables.queue import LAST_ROW_VERSION

PAGE_SIZE: Final = 50
# Of a file: so many messages at most, searched for so long.
EXPORTED: Final = 5_000
EXPORT_SECONDS: Final = 20.0


class LakeSearchAdmin(PageAdmin):
    """The pages about old messages, for people with the permission `sqlqueue_app.view_queue`."""

    def pages(self) -> list[URLPattern]:
        """The search, one message."""
        return [
            self.looks("", self.changelist_view),
            self.looks("<str:table>/<str:queue>/<str:day>/<int:row_version>/", self.message_view, "message"),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """The messages that fit, the newest first; those of the last six hours where nothing is asked for."""
        is_file = bool(wanted_format(request))
        asked = SearchAsked.read(request, timezone.now(), EXPORTED if is_file else PAGE_SIZE)
        begin, end = asked.asked.since, asked.asked.until
        lake = known_lake(get_settings(), since=begin and begin.date(), until=end and end.date())
        results, problem = self._search(lake, asked, EXPORT_SECONDS if is_file else SECONDS)
        if is_file:
            answer = export(request, "old messages", COLUMNS, exported_messages(results.messages))
            if results.is_partial or results.next is not None or results.problems or problem:
                answer["X-Sqlqueue-Partial"] = "true"
            return answer
        query = request.GET.copy()
        for name in ("after", "format"):
            query.pop(name, None)
        first = query.urlencode() if asked.asked.after is not None else None
        if results.next is not None:
            query["after"] = str(results.next)
        return self.page(
            request,
            "lake_search",
            title=capfirst(str(self.opts.verbose_name_plural)),
            asked=asked,
            longest=LONGEST,
            ranges=[(name, str(label)) for name, label, _length in RANGES],
            kinds=[(name, str(label)) for name, label in KINDS],
            lake=lake,
            problem=problem,
            results=results,
            line=results_line(results),
            searched_from=stamp_of(results.searched_from),
            fresh=stamp_of(lake.committed_at),
            rows=[lake_row(each, self.message_url(each), self.conversation_url(each.conversation_id)) for each in results.messages],
            first_query=first,
            next_query=query.urlencode() if results.next is not None and not results.is_partial else None,
            further_query=query.urlencode() if results.next is not None and results.is_partial else None,
            install=INSTALL,
            command=PIPELINE_COMMAND,
            runs_url=self.url_of(PipelineRun),
            **(extra_context or {}),
        )

    def _search(self, lake: KnownLake, asked: SearchAsked, seconds: float) -> tuple[Results, str]:
        if not lake.lake or lake.problem:
            return Results(), lake.problem
        try:
            return search(lake.lake, lake.files, asked.asked, seconds=seconds), ""
        except (LakeError, LakeEngineMissing) as error:
            return Results(), str(error)

    def message_view(self, request: HttpRequest, table: str, queue: str, day: str, row_version: int) -> HttpResponseBase:
        """One message in full."""
        name, on = text_of_path(queue), day_of(day)
        crumbs = (Crumb(name), Crumb(f"#{row_version}"))
        if table not in SEARCHED or on is None or not 0 < row_version <= LAST_ROW_VERSION:
            return self._gone(request, crumbs)
        found, problem = self._read(table, name, on, row_version, with_body=may(request, Power.VIEW_BODY))
        if problem:
            return self.problem(request, title=_("The message cannot be read"), text=problem, status=409, crumbs=crumbs)
        if found is None:
            return self._gone(request, crumbs)
        detail = detail_of_lake(found, as_hex="hex" in request.GET)
        return self.page(
            request,
            "lake_message",
            title=_("Old message %(row_version)s of %(queue)s") % {"row_version": row_version, "queue": name},
            crumbs=crumbs,
            found=found,
            state=state_of(found),
            at=stamp(found.counted_at),
            message=detail,
            row=message_row(detail.summary, request.path),
            flags=flag_states(detail.summary),
            groups=header_groups(detail, request.GET.get("header", "")),
            header=request.GET.get("header", ""),
            times=time_texts(detail),
            failure=failure_text(detail),
            body=body_text(detail.body) if may(request, Power.VIEW_BODY) else None,
            body_refused=reason_of(Power.VIEW_BODY),
            search_url=self.url(),
            **self.conversation_link(detail.headers),
        )

    def _read(self, table: str, queue: str, day: date, row_version: int, *, with_body: bool) -> tuple[FoundMessage | None, str]:
        lake = known_lake(get_settings(), since=day, until=day, path=f"{table}/")
        files = [each for each in lake.files if each.queue == queue]
        if not lake.lake or lake.problem or not files:
            return None, lake.problem
        try:
            return read_message(lake.lake, files, row_version, with_body=with_body), ""
        except (LakeError, LakeEngineMissing) as error:
            return None, str(error)

    def _gone(self, request: HttpRequest, crumbs: tuple[Crumb, ...]) -> HttpResponse:
        text = _("There is no such message in the lake: its retention may have removed it.")
        return self.problem(request, title=_("Message not found"), text=text, status=404, crumbs=crumbs)

    def message_url(self, each: FoundMessage) -> str:
        """The page of a message."""
        return self.url("message", each.table, path_of(each.queue), each.day.isoformat(), each.row_version)
