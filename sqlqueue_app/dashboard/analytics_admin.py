"""The pages of what the pipeline has computed: messages, groups of failures, the map of endpoints, usage, notable messages."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import URLPattern
from django.utils import timezone
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from sqlqueue_app.dashboard.analytics_requests import LONGEST, PageAsked, period_links
from sqlqueue_app.dashboard.analytics_rows import (
    COLUMNS,
    QUANTILES,
    exported,
    figure_charts,
    figure_row,
    group_chart,
    usage_chart,
)
from sqlqueue_app.dashboard.endpoint_map import endpoint_map
from sqlqueue_app.dashboard.exporting import export, wanted_format
from sqlqueue_app.dashboard.failures import CLASSIFIER_WORDS
from sqlqueue_app.dashboard.formats import Stamp, number, precise_duration, size, stamp, stamp_of
from sqlqueue_app.dashboard.page_admin import PageAdmin
from sqlqueue_app.dashboard.pages import Crumb
from sqlqueue_app.dashboard.paths import path_of
from sqlqueue_app.instances import managed_alias
from sqlqueue_app.lake.engine import INSTALL
from sqlqueue_app.messages.failure_groups import CLASSIFIERS
from sqlqueue_app.models import Endpoint, FailedMessage, NotableKind, NotableMessage, PipelineRun
from sqlqueue_app.operations.analytics.asking import HOUR, Freshness, freshness, known_endpoints
from sqlqueue_app.operations.analytics.messages import read_figures
from sqlqueue_app.operations.analytics.others import Edge, read_edges, read_groups, read_notable, read_usage
from sqlqueue_app.operations.looking import looking

PIPELINE_COMMAND: Final = "python manage.py run_sqlqueue_pipeline --once"
_PARTS: Final = (
    ("changelist", gettext_lazy("Messages")),
    ("groups", gettext_lazy("Groups of failures")),
    ("map", gettext_lazy("Map of endpoints")),
    ("usage", gettext_lazy("Usage")),
    ("notable", gettext_lazy("Slowest and largest")),
)
GROUP_COLUMNS: Final = ("group", "classifier", "title", "failures", "first_seen", "last_seen")
EDGE_COLUMNS: Final = ("sender", "receiver", "messages", "critical_mean", "critical_p50", "critical_p95", "critical_p99", "types")
USAGE_COLUMNS: Final = ("endpoint", "messages", "failures", "bytes")
NOTABLE_COLUMNS: Final = ("kind", "value", "at", "endpoint", "message_type", "message_id", "conversation_id")
View = Callable[[HttpRequest, PageAsked, dict[str, Any]], HttpResponseBase]


class AnalyticsAdmin(PageAdmin):
    """The pages of figures, for people with the permission `sqlqueue_app.view_queue`."""

    def pages(self) -> list[URLPattern]:
        """One page for each kind of figures."""
        return [
            self.looks("", self.changelist_view),
            self.looks("groups/", self._figures("groups", self.groups_view), "groups"),
            self.looks("map/", self._figures("map", self.map_view), "map"),
            self.looks("usage/", self._figures("usage", self.usage_view), "usage"),
            self.looks("notable/", self._figures("notable", self.notable_view), "notable"),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """Throughput, times and failures, over time and by endpoint and type."""
        return self._figures("changelist", self.messages_view)(request)

    def _figures(self, part: str, view: View) -> Callable[[HttpRequest], HttpResponseBase]:
        """The page with what all of them share; without figures it says how to begin."""

        def looked_at(request: HttpRequest) -> HttpResponseBase:
            asked = PageAsked.read(request, timezone.now())
            fresh = freshness()
            head = self._head(request, part, asked, fresh)
            if fresh.committed_at is None and not wanted_format(request):
                return self._page(request, "analytics_empty", head)
            with looking(managed_alias(), "read the figures of the pipeline"):
                return view(request, asked, head)

        return looked_at

    def _head(self, request: HttpRequest, part: str, asked: PageAsked, fresh: Freshness) -> dict[str, Any]:
        query = request.GET.copy()
        for name in ("format", "by"):
            query.pop(name, None)
        return {
            "endpoints": known_endpoints() if fresh.committed_at and not wanted_format(request) else [],
            "asked": asked,
            "longest": LONGEST,
            "part": part,
            "parts": [(str(label), f"{self.url(name)}?{query.urlencode()}", name == part) for name, label in _PARTS],
            "period_links": period_links(request, asked.period),
            "fresh": stamp_of(fresh.committed_at),
            "fresh_problem": fresh.problem,
            "install": INSTALL,
            "command": PIPELINE_COMMAND,
            "runs_url": self.url_of(PipelineRun),
        }

    def _page(self, request: HttpRequest, template: str, head: dict[str, Any], **context: Any) -> HttpResponse:
        label = next(str(label) for name, label in _PARTS if name == head["part"])
        crumbs = () if head["part"] == "changelist" else (Crumb(label),)
        title = capfirst(str(self.opts.verbose_name_plural)) if not crumbs else label
        return self.page(request, template, title=title, crumbs=crumbs, **head, **context)

    # --- the pages ------------------------------------------------------------------------------------------------------------

    def messages_view(self, request: HttpRequest, asked: PageAsked, head: dict[str, Any]) -> HttpResponseBase:
        """Messages over time, and by endpoint and type."""
        if wanted_format(request):
            return export(request, f"figures {asked.period.name}", COLUMNS, exported(asked.figures))
        read = read_figures(asked.figures)
        rows = [figure_row(*kind, each, self.endpoint_url(kind[0])) for kind, each in read.by_kind.items()]
        too_many = bool(read.over_time) and read.quantile_seconds is None
        shown = {"rows": rows, "total": figure_row("", "", read.total), "is_cut": read.is_cut, "too_many": too_many}
        names = [_("mean"), *(name for _part, name in QUANTILES)]
        return self._page(request, "analytics", head, charts=figure_charts(read), names=names, **shown)

    def groups_view(self, request: HttpRequest, asked: PageAsked, head: dict[str, Any]) -> HttpResponseBase:
        """The groups with the most failures."""
        by = request.GET.get("by", "")
        key = by if by in CLASSIFIERS else next(iter(CLASSIFIERS))
        name = CLASSIFIERS[key].name
        if wanted_format(request):
            found = read_groups(asked.figures, name, most=10_000, trends=0)
            rows = ((each.id, name, each.title, each.count, each.first_seen, each.last_seen) for each in found)
            return export(request, f"groups {asked.period.name}", GROUP_COLUMNS, rows)
        groups = read_groups(asked.figures, name)
        return self._page(
            request,
            "analytics_groups",
            head,
            by=key,
            classifiers=[(each, str(word)) for each, word in CLASSIFIER_WORDS.items()],
            chart=group_chart(groups, asked.figures, max(asked.figures.seconds, HOUR)),
            rows=[
                (each, number(each.count), stamp(each.first_seen), stamp(each.last_seen), self._group_url(each.id))
                for each in groups
            ],
        )

    def map_view(self, request: HttpRequest, asked: PageAsked, head: dict[str, Any]) -> HttpResponseBase:
        """Who sends what to whom."""
        edges = read_edges(asked.figures)
        if wanted_format(request):
            return export(request, f"map {asked.period.name}", EDGE_COLUMNS, map(_edge_line, edges))
        unknown = _("not known")
        drawn = endpoint_map([(each.sender or unknown, each.receiver or unknown, each.count) for each in edges])
        rows = [
            (each, number(each.count), _length(each.critical_mean), _length(each.critical_of(0.95)), sorted(each.types)[:5])
            for each in edges
        ]
        links = [(node, self.endpoint_url(node.name) if node.name != unknown else "") for node in drawn.nodes]
        return self._page(request, "analytics_map", head, drawn=drawn, links=links, rows=rows)

    def usage_view(self, request: HttpRequest, asked: PageAsked, head: dict[str, Any]) -> HttpResponseBase:
        """What each endpoint has handled by day, what was taken from queues, and which instances there were."""
        usage = read_usage(asked.figures)
        if wanted_format(request):
            return export(request, f"usage {asked.period.name}", USAGE_COLUMNS, usage.by_endpoint)
        return self._page(
            request,
            "analytics_usage",
            head,
            chart=usage_chart(usage, asked.figures),
            rows=[
                (name, self.endpoint_url(name), number(messages), number(failures), size(octets))
                for name, messages, failures, octets in usage.by_endpoint
            ],
            queues=[
                (each["queue"], *(number(each[f"sum_{name}"]) for name in ("taken", "copied", "expired", "unreadable")),
                 size(each["sum_bytes"]))
                for each in usage.queues
            ],
            instances=[
                (each, stamp_of(each.first_seen), stamp_of(each.last_seen), number(each.messages)) for each in usage.instances
            ],
        )  # fmt: skip

    def notable_view(self, request: HttpRequest, asked: PageAsked, head: dict[str, Any]) -> HttpResponseBase:
        """The slowest and the largest messages."""
        found = {kind: read_notable(asked.figures, kind) for kind in NotableKind.values}
        if wanted_format(request):
            rows = (
                (kind, each.value, each.at, each.endpoint, each.message_type, each.message_id, each.conversation_id)
                for kind, messages in found.items()
                for each in messages
            )
            return export(request, f"notable {asked.period.name}", NOTABLE_COLUMNS, rows)
        kinds = (
            (NotableKind.SLOWEST, _("The slowest messages"), _("Processing time"), _length),
            (NotableKind.LARGEST, _("The largest messages"), _("Body"), _octets),
        )
        lists = [(title, label, [self._notable(each, text_of) for each in found[kind]]) for kind, title, label, text_of in kinds]
        return self._page(request, "analytics_notable", head, lists=lists)

    def _notable(self, each: NotableMessage, text_of: Callable[[float], str]) -> tuple[NotableMessage, str, Stamp | None, str]:
        return each, text_of(each.value), stamp_of(each.at), self.conversation_url(each.conversation_id)

    # --- addresses ------------------------------------------------------------------------------------------------------------

    def endpoint_url(self, name: str) -> str:
        """The page of an endpoint; empty without a name."""
        return self.url_of(Endpoint, "endpoint", path_of(name)) if name else ""

    def _group_url(self, group: object) -> str:
        return self.url_of(FailedMessage, "group", group)


def _length(seconds: float | None) -> str:
    return "–" if seconds is None else precise_duration(timedelta(seconds=seconds))


def _octets(value: float) -> str:
    return size(int(value))


def _edge_line(each: Edge) -> tuple[Any, ...]:
    quantiles = (each.critical_of(part) for part, _name in QUANTILES)
    return (each.sender, each.receiver, each.count, each.critical_mean, *quantiles, each.types)
