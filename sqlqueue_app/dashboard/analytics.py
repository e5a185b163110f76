"""The pages of what the pipeline has computed: messages, groups of failures, the map of endpoints, usage, notable messages."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from functools import partial
from itertools import chain
from typing import Any, Final, NamedTuple

from django import forms
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import URLPattern
from django.utils import timezone
from django.utils.text import Truncator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from sqlqueue_app.browsing.analytics import (
    DAY,
    HOUR,
    Rollup,
    RollupQuery,
    RollupResult,
    UsageReport,
    freshness,
    iter_rollups,
    known_endpoints,
    newest_run,
    read_edges,
    read_groups,
    read_rollups,
    read_top_messages,
    read_usage,
    resample,
)
from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard.actions import PLAIN_INPUT
from sqlqueue_app.dashboard.charts import LONG_PERIODS, Chart, Points, Series, line_chart, period_of
from sqlqueue_app.dashboard.failures import CLASSIFIER_WORDS
from sqlqueue_app.dashboard.formats import Scale, counts, per_second, percents, times
from sqlqueue_app.dashboard.lists import ListFilter, export, wanted_format
from sqlqueue_app.dashboard.page import Crumb, PageAdmin, label_of_page
from sqlqueue_app.lake.search import INSTALL
from sqlqueue_app.lake.sketches import from_json, quantile
from sqlqueue_app.messages.failure_groups import CLASSIFIERS
from sqlqueue_app.models import NotableKind, PipelineRun
from sqlqueue_app.receiving.instances import managed_alias
from sqlqueue_app.tables.connections import guarded_read

LONGEST: Final = 400
PIPELINE_COMMAND: Final = "python manage.py run_sqlqueue_pipeline --once"


def empty_lake(pages: PageAdmin) -> dict[str, Any]:
    """Template variables for why the pipeline has written nothing yet: not configured, not run, running, failed."""
    pipeline = get_settings().pipeline
    return {
        "install": INSTALL,
        "command": PIPELINE_COMMAND,
        "is_configured": bool(pipeline and pipeline.lake),
        "run": newest_run(),
        "runs_url": pages.url_of(PipelineRun),
    }


class AnalyticsFilter(ListFilter):
    """The filter of the figures; the period is chosen by links."""

    period = forms.CharField(widget=forms.HiddenInput)
    endpoint = forms.CharField(
        label=gettext_lazy("Endpoint"), max_length=LONGEST, widget=forms.TextInput({**PLAIN_INPUT, "list": "sq-endpoints"})
    )
    type = forms.CharField(label=gettext_lazy("Message type"), max_length=LONGEST, widget=forms.TextInput(PLAIN_INPUT))


class AnalyticsAdmin(PageAdmin):
    """The pages of figures, for people with the permission `sqlqueue_app.view_queue`."""

    def pages(self) -> list[URLPattern]:
        """One page for each kind of figures."""
        return [
            self.readonly_view("" if part.page == "changelist" else f"{part.page}/", partial(self._view, part), part.page)
            for part in PARTS
        ]

    def _view(self, part: Part, request: HttpRequest) -> HttpResponseBase:
        """One kind of figures, as a page or as a file; without figures the page says how to begin."""
        period, chosen, fresh = period_of(request, LONG_PERIODS, "1d"), AnalyticsFilter(request), freshness()
        for name in {"endpoint", "type"} - set(part.filters):
            del chosen.fields[name]
        chosen.is_valid()
        by = request.GET.get("by", "")
        wanted = FiguresQuery(
            RollupQuery.until(
                timezone.now(),
                period.length,
                period.figure_seconds,
                chosen.cleaned_data.get("endpoint", ""),
                chosen.cleaned_data.get("type", ""),
            ),
            by if by in CLASSIFIERS else next(iter(CLASSIFIERS)),
        )
        template, shown = part.template, {}
        with guarded_read(managed_alias(), "read the figures of the pipeline"):
            if wanted_format(request):
                return export(request, f"{part.file_name} {period.name}", part.columns, part.lines(wanted))
            if fresh.committed_at is not None:
                shown = {"endpoints": known_endpoints(), **part.shown(wanted)}
            else:
                template, shown = "analytics_empty", {} if fresh.problem else empty_lake(self)
        labels = {each.page: label_of_page(self.model, each.page) or str(each.label) for each in PARTS}
        title = labels[part.page]
        return self.page(
            request,
            template,
            title=title,
            crumbs=() if part.page == "changelist" else (Crumb(title),),
            parts=[(label, self.url(page), page == part.page) for page, label in labels.items()],
            filter=chosen if part.filters else None,
            fresh=fresh,
            period=period,
            periods=LONG_PERIODS,
            **{"runs_url": self.url_of(PipelineRun), **shown},
        )


# --- Messages ---------------------------------------------------------------------------------------------------------

QUANTILES: Final = ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))
# A chart is 420 wide: with more points than this a line is a band.
MOST_POINTS: Final = 240
COLUMNS: Final = (
    "at", "seconds", "endpoint", "message_type", "processed", "failed", "retried", "delayed_retries",
    "processing_mean", "processing_p50", "processing_p95", "processing_p99",
    "critical_mean", "critical_p50", "critical_p95", "critical_p99", "critical_negative", "body_bytes",
)  # fmt: skip


def _messages(wanted: FiguresQuery) -> dict[str, Any]:
    read = read_rollups(wanted.query)
    critical, processing = _times(read.total)
    total = [(_("Critical time"), critical), (_("Processing time"), processing)]
    rows = [(*kind, each, *_times(each)) for kind, each in read.by_kind.items()]
    return {"read": read, "charts": rollup_charts(read), "rows": rows, "total_times": total}


def _times(each: Rollup) -> tuple[list[tuple[str, float | None]], list[tuple[str, float | None]]]:
    """The mean and the quantiles of critical time and of processing time, with their names."""
    critical = [(name, each.critical_of(part)) for part, name in QUANTILES]
    processing = [(name, each.processing_of(part)) for part, name in QUANTILES]
    return [(_("mean"), each.critical_mean), *critical], [(_("mean"), each.processing_mean), *processing]


def rollup_charts(read: RollupResult) -> list[Chart]:
    """Throughput, critical time, processing time, failure rate; nothing where there are no figures."""
    if not read.over_time:
        return []
    query = read.query
    seconds = _drawn_seconds(query, query.seconds)
    over_time = resample(read.over_time, query.begin, timedelta(seconds=seconds))
    flow = [
        Series(_("processed"), _per_second(over_time, query, seconds, lambda each: each.processed)),
        Series(_("failed"), _per_second(over_time, query, seconds, lambda each: each.failed)),
    ]
    charts = [_chart(_("Processed and failed"), flow, query, seconds, per_second, 1.0 if seconds < DAY else 0.1)]
    if read.quantile_seconds is not None:
        wide = _drawn_seconds(query, read.quantile_seconds)
        quantiles = resample(read.quantiles, query.begin, timedelta(seconds=wide))
        for title, of in ((_("Critical time"), Rollup.critical_of), (_("Processing time"), Rollup.processing_of)):
            series = [Series(name, [(at, of(each, part)) for at, each in quantiles.items()]) for part, name in QUANTILES]
            charts.append(_chart(title, series, query, wide, times, 0.01))
    failing = [(at, each.failure_rate) for at, each in over_time.items()]
    charts.append(_chart(_("Failure rate"), [Series(_("of all messages"), failing)], query, seconds, percents, 0.01))
    return charts


def _drawn_seconds(query: RollupQuery, seconds: int) -> int:
    """The length of the steps of a chart, a multiple of those that there are figures of: no more than can be told apart."""
    steps = (query.end - query.begin).total_seconds() / seconds
    return seconds * max(1, math.ceil(steps / MOST_POINTS))


def _chart(
    title: str, series: Sequence[Series], query: RollupQuery, seconds: int, scale: Callable[[Sequence[float]], Scale], top: float
) -> Chart:
    wide, figures = query.resample(seconds), "figures"
    return line_chart(title, series, begin=wide.begin, end=wide.end, step=wide.step, scale=scale, least_top=top, source=figures)


def _per_second(
    over_time: Mapping[datetime, Rollup], query: RollupQuery, seconds: int, value_of: Callable[[Rollup], int]
) -> Points:
    step = timedelta(seconds=seconds)
    # The last step has just begun.
    lengths = {at: min(step, max(query.end - at, timedelta(seconds=1))).total_seconds() for at in over_time}
    return _filled({at: value_of(each) / lengths[at] for at, each in over_time.items()}, step)


def _filled(found: Mapping[datetime, float], step: timedelta) -> Points:
    """Steps without figures are nothing done, from the first step to the last one that there are figures of."""
    begin = min(found)
    return [(at, found.get(at, 0.0)) for at in (begin + n * step for n in range((max(found) - begin) // step + 1))]


def exported(wanted: FiguresQuery) -> Iterator[tuple[Any, ...]]:
    """The rows of a file, by COLUMNS; times in seconds."""
    for each in iter_rollups(wanted.query):
        found: list[Any] = [each.at, each.seconds, each.endpoint, each.message_type, each.processed, each.failed, each.retried]
        found.append(each.delayed_retries)
        for count, total, sketch in (
            (each.processing_count, each.processing_sum, from_json(each.processing_sketch)),
            (each.critical_count, each.critical_sum, from_json(each.critical_sketch)),
        ):
            found += [total / count if count else None, *(quantile(sketch, part) for part, _name in QUANTILES)]
        yield (*found, each.critical_negative, each.body_bytes)


# --- Groups of failures, usage, the slowest and the largest messages --------------------------------------------------

NOTABLE_COLUMNS: Final = ("kind", "value", "at", "endpoint", "message_type", "message_id", "conversation_id")


def _groups(wanted: FiguresQuery) -> dict[str, Any]:
    groups, step = read_groups(wanted.query, CLASSIFIERS[wanted.by].name), max(wanted.query.seconds, HOUR)
    series = [
        Series(Truncator(" ".join(each.title.split())).chars(60), _filled(each.over_time, timedelta(seconds=step)))
        for each in groups
        if each.over_time
    ]
    charts = [_chart(_("Failures"), series, wanted.query, step, counts, 1.0)] if series else []
    return {"by": wanted.by, "classifiers": CLASSIFIER_WORDS.items(), "charts": charts, "groups": groups}


def _group_lines(wanted: FiguresQuery) -> Iterator[tuple[Any, ...]]:
    name = CLASSIFIERS[wanted.by].name
    for each in read_groups(wanted.query, name, most=10_000, trends=0):
        yield each.id, name, each.title, each.count, each.first_seen, each.last_seen


def _usage(wanted: FiguresQuery) -> dict[str, Any]:
    usage = read_usage(wanted.query)
    return {"usage": usage, "charts": usage_charts(usage, wanted.query)}


def _usage_lines(wanted: FiguresQuery) -> list[tuple[str, int, int, int]]:
    return read_usage(wanted.query).by_endpoint


def usage_charts(usage: UsageReport, query: RollupQuery) -> list[Chart]:
    """Messages and failures by day."""
    days = {datetime.combine(day, time(), UTC): values for day, values in usage.by_day.items()}
    series = [
        Series(name, _filled({at: values[place] for at, values in days.items()}, timedelta(days=1)))
        for place, name in enumerate((_("messages"), _("failures")))
        if days
    ]
    return [_chart(_("Messages per day"), series, query, DAY, counts, 10.0)] if series else []


def _notable(wanted: FiguresQuery) -> dict[str, Any]:
    return {kind: read_top_messages(wanted.query, kind) for kind in NotableKind.values}


def _notable_lines(wanted: FiguresQuery) -> Iterator[tuple[Any, ...]]:
    for each in chain.from_iterable(_notable(wanted).values()):
        yield tuple(getattr(each, name) for name in NOTABLE_COLUMNS)


# --- Map of endpoints -------------------------------------------------------------------------------------------------

EDGE_COLUMNS: Final = ("sender", "receiver", "messages", "critical_mean", "critical_p50", "critical_p95", "critical_p99", "types")
RADIUS: Final = 200
# For the names, which stand outside of the circle.
MARGIN_X: Final = 230
MARGIN_Y: Final = 40
# More than so many endpoints cannot be told apart on a circle.
MOST_NODES: Final = 24
_WIDEST: Final = 7.0
_HEAD: Final = 15


def _map(wanted: FiguresQuery) -> dict[str, Any]:
    edges = read_edges(wanted.query)
    drawn = endpoint_map([(each.sender, each.receiver, each.count) for each in edges])
    return {"drawn": drawn, "edges": [(each, each.critical_of(0.95), sorted(each.types)) for each in edges]}


def _edge_lines(wanted: FiguresQuery) -> Iterator[tuple[Any, ...]]:
    for each in read_edges(wanted.query):
        quantiles = (each.critical_of(part) for part, _name in QUANTILES)
        yield (each.sender, each.receiver, each.count, each.critical_mean, *quantiles, each.types)


class MapNode(NamedTuple):
    """An endpoint, its place, and that of its name; the name is empty where the endpoint is not known."""

    name: str
    x: float
    y: float
    label_x: float
    label_y: float
    anchor: str


@dataclass(frozen=True, slots=True)
class EndpointMap:
    """The endpoints, and for each edge the data of a path with its width: the more messages, the wider."""

    nodes: list[MapNode]
    arrows: list[tuple[str, float]]
    width: int = 2 * (RADIUS + MARGIN_X)
    height: int = 2 * (RADIUS + MARGIN_Y)


def endpoint_map(edges: Sequence[tuple[str, str, int]]) -> EndpointMap:
    """Draw edges (sender, receiver, count), the most frequent first: those of the first endpoints for which there is room."""
    names = list(dict.fromkeys(name for *ends, _count in edges for name in ends))[:MOST_NODES]
    places = {name: 2 * math.pi * place / len(names) - math.pi / 2 for place, name in enumerate(sorted(names))}
    most = max((count for _sender, _receiver, count in edges), default=1)
    arrows = [
        (_way(places[sender], places[receiver]), round(1 + (_WIDEST - 1) * count / most, 1))
        for sender, receiver, count in edges
        if sender in places and receiver in places
    ]
    return EndpointMap([_node(name, angle) for name, angle in places.items()], arrows)


def _point(angle: float, radius: float) -> tuple[float, float]:
    return round(RADIUS + MARGIN_X + radius * math.cos(angle), 1), round(RADIUS + MARGIN_Y + radius * math.sin(angle), 1)


def _node(name: str, angle: float) -> MapNode:
    label_x, label_y = _point(angle, RADIUS + 16)
    anchor = "middle" if abs(math.cos(angle)) < 0.2 else "start" if math.cos(angle) > 0 else "end"
    return MapNode(name, *_point(angle, RADIUS), label_x, label_y + 4, anchor)


def _way(begin: float, end: float) -> str:
    (x, y), (to_x, to_y) = _point(begin, RADIUS - 9), _point(end, RADIUS - 10)
    if begin == end:
        # What an endpoint sends to itself goes out of the circle and back.
        (ax, ay), (bx, by) = _point(begin - 0.25, RADIUS - 70), _point(begin + 0.25, RADIUS - 70)
        return f"M{x} {y}C{ax} {ay} {bx} {by} {_before_head(bx, by, to_x, to_y)}"
    # Both ways are drawn apart: each bends to its own side, and all of them to the middle.
    bend_x = (x + to_x) / 2 * 0.6 + (RADIUS + MARGIN_X) * 0.4 - (to_y - y) * 0.12
    bend_y = (y + to_y) / 2 * 0.6 + (RADIUS + MARGIN_Y) * 0.4 + (to_x - x) * 0.12
    return f"M{x} {y}Q{bend_x:.1f} {bend_y:.1f} {_before_head(bend_x, bend_y, to_x, to_y)}"


def _before_head(from_x: float, from_y: float, x: float, y: float) -> str:
    """Where a line ends that an arrow head continues to a point."""
    part = _HEAD / math.hypot(x - from_x, y - from_y)
    return f"{x - (x - from_x) * part:.1f} {y - (y - from_y) * part:.1f}"


# --- The pages --------------------------------------------------------------------------------------------------------


class FiguresQuery(NamedTuple):
    """Which figures are wanted, and by which classifier failures are grouped."""

    query: RollupQuery
    by: str


class Part(NamedTuple):
    """A page: its name, its template and variables, its file, what it is filtered by, and its title if the navigation has none."""

    page: str
    template: str
    shown: Callable[[FiguresQuery], dict[str, Any]]
    file_name: str
    columns: Sequence[str]
    lines: Callable[[FiguresQuery], Iterable[Sequence[Any]]]
    filters: Sequence[str] = ("endpoint", "type")
    label: object = ""


_GROUP_COLUMNS: Final = ("group", "classifier", "title", "failures", "first_seen", "last_seen")
_USAGE_COLUMNS: Final = ("endpoint", "messages", "failures", "bytes")
_GROUPS, _NOTABLE = gettext_lazy("Groups of failures"), gettext_lazy("Slowest and largest")
PARTS: Final = (
    Part("changelist", "analytics", _messages, "figures", COLUMNS, exported),
    Part("groups", "analytics_groups", _groups, "groups", _GROUP_COLUMNS, _group_lines, (), _GROUPS),
    Part("map", "analytics_map", _map, "map", EDGE_COLUMNS, _edge_lines),
    Part("usage", "analytics_usage", _usage, "usage", _USAGE_COLUMNS, _usage_lines, ("endpoint",)),
    Part("notable", "analytics_notable", _notable, "notable", NOTABLE_COLUMNS, _notable_lines, label=_NOTABLE),
)
