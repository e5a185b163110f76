"""The pages of what the pipeline has computed: messages, groups of failures, the map of endpoints, usage."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from functools import partial
from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import URLPattern
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from sqlqueue_app.browsing.analytics import (
    DAY,
    HOUR,
    MINUTE,
    Edge,
    Freshness,
    GroupRollup,
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
from sqlqueue_app.dashboard.charts import Chart, Points, Series, line_chart
from sqlqueue_app.dashboard.failures import CLASSIFIER_WORDS
from sqlqueue_app.dashboard.formats import (
    Scale,
    column,
    counts,
    number,
    per_second,
    percents,
    sizes,
    stamp,
    stamp_of,
    times,
)
from sqlqueue_app.dashboard.lists import export, wanted_format
from sqlqueue_app.dashboard.page import Crumb, PageAdmin, path_of
from sqlqueue_app.lake.search import INSTALL
from sqlqueue_app.lake.sketches import from_json, quantile
from sqlqueue_app.messages.failure_groups import CLASSIFIERS
from sqlqueue_app.models import Endpoint, FailedMessage, NotableKind, PipelineRun
from sqlqueue_app.receiving.instances import managed_alias
from sqlqueue_app.tables.connections import guarded_read

LONGEST: Final = 400


@dataclass(frozen=True, slots=True)
class AnalyticsPeriod:
    """A period by its name in the query string, and the length of its steps in seconds."""

    name: str
    label: str | Promise
    length: timedelta
    seconds: int


# Figures of minutes are kept for 2 days, of hours for 92, of days for ever.
PERIODS: Final = (
    AnalyticsPeriod("1h", gettext_lazy("1 hour"), timedelta(hours=1), MINUTE),
    AnalyticsPeriod("6h", gettext_lazy("6 hours"), timedelta(hours=6), MINUTE),
    AnalyticsPeriod("1d", gettext_lazy("1 day"), timedelta(days=1), MINUTE),
    AnalyticsPeriod("7d", gettext_lazy("7 days"), timedelta(days=7), HOUR),
    AnalyticsPeriod("30d", gettext_lazy("30 days"), timedelta(days=30), HOUR),
    AnalyticsPeriod("90d", gettext_lazy("90 days"), timedelta(days=90), DAY),
    AnalyticsPeriod("1y", gettext_lazy("1 year"), timedelta(days=365), DAY),
)
DEFAULT: Final = PERIODS[2]


@dataclass(frozen=True, slots=True)
class AnalyticsFilter:
    """The period, and which figures it means now."""

    period: AnalyticsPeriod
    query: RollupQuery

    @classmethod
    def read(cls, request: HttpRequest, now: datetime) -> AnalyticsFilter:
        """What the query string asks for; a day, and everything, where it does not say or cannot be read."""
        name = request.GET.get("period", "")
        period = next((each for each in PERIODS if each.name == name), DEFAULT)
        # NUL is in no name, and PostgreSQL does not take it.
        texts = [request.GET.get(key, "").replace("\0", "").strip()[:LONGEST] for key in ("endpoint", "type")]
        return cls(period, RollupQuery.until(now, period.length, period.seconds, *texts))


def period_links(request: HttpRequest, period: AnalyticsPeriod) -> list[tuple[str, str, bool]]:
    """A link for each period (label, query string, whether it is the one shown), which keeps what else is asked for."""
    links = []
    for each in PERIODS:
        query = request.GET.copy()
        query["period"] = each.name
        query.pop("format", None)
        links.append((str(each.label), query.urlencode(), each is period))
    return links


# --- Pages ------------------------------------------------------------------------------------------------------------

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
View = Callable[[HttpRequest, AnalyticsFilter, dict[str, Any]], HttpResponseBase]


def empty_lake(pages: PageAdmin) -> dict[str, Any]:
    """Template variables for why the pipeline has written nothing yet: not configured, not run, running, failed."""
    run, pipeline = newest_run(), get_settings().pipeline
    return {
        "install": INSTALL,
        "command": PIPELINE_COMMAND,
        "is_configured": bool(pipeline and pipeline.lake),
        "run": run,
        "run_started": stamp_of(run.started_at) if run else None,
        "runs_url": pages.url_of(PipelineRun),
    }


class AnalyticsAdmin(PageAdmin):
    """The pages of figures, for people with the permission `sqlqueue_app.view_queue`."""

    def pages(self) -> list[URLPattern]:
        """One page for each kind of figures."""
        return [
            self.readonly_view("", self.changelist_view),
            self.readonly_view("groups/", self._rollup_page("groups", self.groups_view), "groups"),
            self.readonly_view("map/", self._rollup_page("map", self.map_view), "map"),
            self.readonly_view("usage/", self._rollup_page("usage", self.usage_view), "usage"),
            self.readonly_view("notable/", self._rollup_page("notable", self.top_view), "notable"),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """Throughput, times and failures, over time and by endpoint and type."""
        return self._rollup_page("changelist", self.messages_view)(request)

    def _rollup_page(self, part: str, view: View) -> Callable[[HttpRequest], HttpResponseBase]:
        """The page with what all of them share; without figures it says how to begin."""

        def view_page(request: HttpRequest) -> HttpResponseBase:
            filters = AnalyticsFilter.read(request, timezone.now())
            fresh = freshness()
            head = self._head(request, part, filters, fresh)
            if fresh.committed_at is None and not wanted_format(request):
                return self._page(request, "analytics_empty", {**head, **({} if fresh.problem else empty_lake(self))})
            with guarded_read(managed_alias(), "read the figures of the pipeline"):
                return view(request, filters, head)

        return view_page

    def _head(self, request: HttpRequest, part: str, filters: AnalyticsFilter, fresh: Freshness) -> dict[str, Any]:
        query = request.GET.copy()
        for name in ("format", "by"):
            query.pop(name, None)
        return {
            "endpoints": known_endpoints() if fresh.committed_at and not wanted_format(request) else [],
            "filters": filters,
            "longest": LONGEST,
            "part": part,
            "parts": [(str(label), f"{self.url(name)}?{query.urlencode()}", name == part) for name, label in _PARTS],
            "period_links": period_links(request, filters.period),
            "fresh": stamp_of(fresh.committed_at),
            "fresh_problem": fresh.problem,
            "runs_url": self.url_of(PipelineRun),
        }

    def _page(self, request: HttpRequest, template: str, head: dict[str, Any], **context: Any) -> HttpResponse:
        label = next(str(label) for name, label in _PARTS if name == head["part"])
        crumbs = () if head["part"] == "changelist" else (Crumb(label),)
        return self.page(request, template, title=label if crumbs else "", crumbs=crumbs, **head, **context)

    def messages_view(self, request: HttpRequest, filters: AnalyticsFilter, head: dict[str, Any]) -> HttpResponseBase:
        """Messages over time, and by endpoint and type."""
        if wanted_format(request):
            return export(request, f"figures {filters.period.name}", COLUMNS, exported(filters.query))
        read = read_rollups(filters.query)
        too_many = bool(read.over_time) and read.quantile_seconds is None
        total = rollup_rows({("", ""): read.total}, self.endpoint_url)[0]
        shown = {"rows": rollup_rows(read.by_kind, self.endpoint_url), "total": total, "is_cut": read.is_cut, "too_many": too_many}
        names = [_("mean"), *(name for _part, name in QUANTILES)]
        return self._page(request, "analytics", head, charts=rollup_charts(read), names=names, **shown)

    def groups_view(self, request: HttpRequest, filters: AnalyticsFilter, head: dict[str, Any]) -> HttpResponseBase:
        """The groups with the most failures."""
        by = request.GET.get("by", "")
        key = by if by in CLASSIFIERS else next(iter(CLASSIFIERS))
        name = CLASSIFIERS[key].name
        if wanted_format(request):
            found = read_groups(filters.query, name, most=10_000, trends=0)
            rows = ((each.id, name, each.title, each.count, each.first_seen, each.last_seen) for each in found)
            return export(request, f"groups {filters.period.name}", GROUP_COLUMNS, rows)
        groups = read_groups(filters.query, name)
        url_of_group = partial(self.url_of, FailedMessage, "group")
        return self._page(
            request,
            "analytics_groups",
            head,
            by=key,
            classifiers=[(each, str(word)) for each, word in CLASSIFIER_WORDS.items()],
            chart=group_chart(groups, filters.query, max(filters.query.seconds, HOUR)),
            rows=[
                (each, number(each.count), stamp(each.first_seen), stamp(each.last_seen), url_of_group(each.id)) for each in groups
            ],
        )

    def map_view(self, request: HttpRequest, filters: AnalyticsFilter, head: dict[str, Any]) -> HttpResponseBase:
        """Who sends what to whom."""
        edges = read_edges(filters.query)
        if wanted_format(request):
            return export(request, f"map {filters.period.name}", EDGE_COLUMNS, map(_edge_line, edges))
        unknown = _("not known")
        drawn = endpoint_map([(each.sender or unknown, each.receiver or unknown, each.count) for each in edges])
        means, slow = (column([of(each) for each in edges], times) for of in (lambda each: each.critical_mean, _p95))
        rows = [
            (each, number(each.count), mean, p95, sorted(each.types)[:5])
            for each, mean, p95 in zip(edges, means, slow, strict=True)
        ]
        links = [(node, self.endpoint_url(node.name) if node.name != unknown else "") for node in drawn.nodes]
        return self._page(request, "analytics_map", head, drawn=drawn, links=links, rows=rows)

    def usage_view(self, request: HttpRequest, filters: AnalyticsFilter, head: dict[str, Any]) -> HttpResponseBase:
        """What each endpoint has handled by day, what was taken from queues, and which instances there were."""
        usage = read_usage(filters.query)
        if wanted_format(request):
            return export(request, f"usage {filters.period.name}", USAGE_COLUMNS, usage.by_endpoint)
        return self._page(
            request,
            "analytics_usage",
            head,
            chart=usage_chart(usage, filters.query),
            rows=[
                (name, self.endpoint_url(name), number(messages), number(failures), octets)
                for (name, messages, failures, _octets), octets in zip(
                    usage.by_endpoint, column([each[3] for each in usage.by_endpoint], sizes), strict=True)
            ],
            queues=[
                (each["queue"], *(number(each[f"sum_{name}"]) for name in ("taken", "copied", "expired", "unreadable")), octets)
                for each, octets in zip(usage.queues, column([each["sum_bytes"] for each in usage.queues], sizes), strict=True)
            ],
            instances=[
                (each, stamp_of(each.first_seen), stamp_of(each.last_seen), number(each.messages)) for each in usage.instances
            ],
        )  # fmt: skip

    def top_view(self, request: HttpRequest, filters: AnalyticsFilter, head: dict[str, Any]) -> HttpResponseBase:
        """The slowest and the largest messages."""
        found = {kind: read_top_messages(filters.query, kind) for kind in NotableKind.values}
        if wanted_format(request):
            lines = (
                (kind, each.value, each.at, each.endpoint, each.message_type, each.message_id, each.conversation_id)
                for kind, messages in found.items()
                for each in messages
            )
            return export(request, f"notable {filters.period.name}", NOTABLE_COLUMNS, lines)
        kinds = (
            (NotableKind.SLOWEST, _("Slowest messages"), _("Processing time"), times),
            (NotableKind.LARGEST, _("Largest messages"), _("Body"), sizes),
        )
        lists = []
        for kind, title, label, scale in kinds:
            values = column([each.value for each in found[kind]], scale)
            rows = [
                (each, value, stamp_of(each.at), self.conversation_url(each.conversation_id))
                for each, value in zip(found[kind], values, strict=True)
            ]
            lists.append((title, label, rows))
        return self._page(request, "analytics_notable", head, lists=lists)

    def endpoint_url(self, name: str) -> str:
        """The page of an endpoint; empty without a name."""
        return self.url_of(Endpoint, "endpoint", path_of(name)) if name else ""


def _p95(each: Edge) -> float | None:
    return each.critical_of(0.95)


def _edge_line(each: Edge) -> tuple[Any, ...]:
    quantiles = (each.critical_of(part) for part, _name in QUANTILES)
    return (each.sender, each.receiver, each.count, each.critical_mean, *quantiles, each.types)


# --- Rows and exports -------------------------------------------------------------------------------------------------

QUANTILES: Final = ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))
# A chart is 420 wide: with more points than this a line is a band.
MOST_POINTS: Final = 240
COLUMNS: Final = (
    "at", "seconds", "endpoint", "message_type", "processed", "failed", "retried", "delayed_retries",
    "processing_mean", "processing_p50", "processing_p95", "processing_p99",
    "critical_mean", "critical_p50", "critical_p95", "critical_p99", "critical_negative", "body_bytes",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RollupRow:
    """What was done with messages of one type by one endpoint, or with all."""

    endpoint: str
    message_type: str
    url: str
    rollup: Rollup
    failure_rate: str
    processing: tuple[str, ...]
    critical: tuple[str, ...]
    bytes: str


def rollup_rows(found: Mapping[tuple[str, str], Rollup], url_of: Callable[[str], str]) -> list[RollupRow]:
    """The rows, by endpoint and type; times are the mean and the quantiles."""
    fractions = [fraction for fraction, _name in QUANTILES]
    processing = _columns([(each.processing_mean, *map(each.processing_of, fractions)) for each in found.values()])
    critical = _columns([(each.critical_mean, *map(each.critical_of, fractions)) for each in found.values()])
    bodies = column([each.body_bytes for each in found.values()], sizes)
    return [
        RollupRow(*kind, url_of(kind[0]), each, percents([]).text(_of_hundred(each.failure_rate)), took, waited, octets)
        for (kind, each), took, waited, octets in zip(found.items(), processing, critical, bodies, strict=True)
    ]


def _columns(rows: Sequence[tuple[float | None, ...]]) -> list[tuple[str, ...]]:
    """Times by row, in each column in one unit."""
    return list(zip(*(column(values, times) for values in zip(*rows, strict=True)), strict=True))


def _of_hundred(part: float | None) -> float | None:
    return None if part is None else part * 100


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
    failing = [(at, _of_hundred(each.failure_rate)) for at, each in over_time.items()]
    charts.append(_chart(_("Failure rate"), [Series(_("of all messages"), failing)], query, seconds, percents, 1.0))
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
    """Steps without figures are nothing done, from the first step to the last one that there are figures of."""
    points: list[tuple[datetime, float | None]] = []
    at, last, step = min(over_time), max(over_time), timedelta(seconds=seconds)
    while at <= last:
        length = min(step, max(query.end - at, timedelta(seconds=1))).total_seconds()
        each = over_time.get(at)
        points.append((at, value_of(each) / length if each else 0.0))
        at += step
    return points


def exported(query: RollupQuery) -> Iterator[tuple[Any, ...]]:
    """The rows of a file, by COLUMNS; times in seconds."""
    for each in iter_rollups(query):
        found: list[Any] = [each.at, each.seconds, each.endpoint, each.message_type, each.processed, each.failed, each.retried]
        found.append(each.delayed_retries)
        for count, total, sketch in (
            (each.processing_count, each.processing_sum, from_json(each.processing_sketch)),
            (each.critical_count, each.critical_sum, from_json(each.critical_sketch)),
        ):
            found += [total / count if count else None, *(quantile(sketch, part) for part, _name in QUANTILES)]
        yield (*found, each.critical_negative, each.body_bytes)


def group_chart(groups: Sequence[GroupRollup], query: RollupQuery, seconds: int) -> Chart | None:
    """The groups with the most failures over time."""
    drawn = [each for each in groups if each.over_time]
    series = [Series(_cut(each.title), _counts(each.over_time, timedelta(seconds=seconds))) for each in drawn]
    return _chart(_("Failures"), series, query, seconds, counts, 1.0) if series else None


def _counts(found: Mapping[datetime, int], step: timedelta) -> Points:
    points: list[tuple[datetime, float | None]] = []
    at, last = min(found), max(found)
    while at <= last:
        points.append((at, float(found.get(at, 0))))
        at += step
    return points


def _cut(text: str, letters: int = 60) -> str:
    line = " ".join(text.split())
    return line if len(line) <= letters else f"{line[: letters - 1]}…"


def usage_chart(usage: UsageReport, query: RollupQuery) -> Chart | None:
    """Messages and failures by day."""
    if not usage.by_day:
        return None

    def series(name: str, place: int) -> Series:
        found = {datetime.combine(day, time(), UTC): values[place] for day, values in usage.by_day.items()}
        return Series(name, _counts(found, timedelta(days=1)))

    return _chart(_("Messages per day"), [series(_("messages"), 0), series(_("failures"), 1)], query, DAY, counts, 10.0)


# --- Map of endpoints, pure geometry ----------------------------------------------------------------------------------

RADIUS: Final = 200
# For the names, which stand outside of the circle.
MARGIN_X: Final = 230
MARGIN_Y: Final = 40
# More than so many endpoints cannot be told apart on a circle.
MOST_NODES: Final = 24
_WIDEST: Final = 7.0
_NAME_LETTERS: Final = 26


@dataclass(frozen=True, slots=True)
class Node:
    """An endpoint: its place, its name in full and cut, where the name stands."""

    name: str
    shown: str
    x: str
    y: str
    label_x: str
    label_y: str
    anchor: str


@dataclass(frozen=True, slots=True)
class MapArrow:
    """All messages from one endpoint to another; the wider, the more. Coordinates are texts, which no language puts commas into."""

    path: str
    head: str
    width: str


@dataclass(frozen=True, slots=True)
class EndpointMap:
    """The drawing."""

    nodes: tuple[Node, ...]
    arrows: tuple[MapArrow, ...]
    width: str = str(2 * (RADIUS + MARGIN_X))
    height: str = str(2 * (RADIUS + MARGIN_Y))


def endpoint_map(edges: Sequence[tuple[str, str, int]]) -> EndpointMap:
    """Draw edges (sender, receiver, count), the most frequent first: those of the first endpoints for which there is room."""
    names: list[str] = []
    for sender, receiver, _count in edges:
        for name in (sender, receiver):
            if name not in names and len(names) < MOST_NODES:
                names.append(name)
    places = {name: 2 * math.pi * number / max(len(names), 1) - math.pi / 2 for number, name in enumerate(sorted(names))}
    most = max((count for _sender, _receiver, count in edges), default=1)
    drawn = [each for each in edges if each[0] in places and each[1] in places]
    arrows = tuple(_arrow(places[sender], places[receiver], count / most) for sender, receiver, count in drawn)
    return EndpointMap(tuple(_node(name, angle) for name, angle in places.items()), arrows)


def _point(angle: float, radius: float) -> tuple[float, float]:
    return RADIUS + MARGIN_X + radius * math.cos(angle), RADIUS + MARGIN_Y + radius * math.sin(angle)


def _node(name: str, angle: float) -> Node:
    x, y = _point(angle, RADIUS)
    label_x, label_y = _point(angle, RADIUS + 16)
    anchor = "middle" if abs(math.cos(angle)) < 0.2 else "start" if math.cos(angle) > 0 else "end"
    shown = name if len(name) <= _NAME_LETTERS else f"{name[: _NAME_LETTERS - 1]}…"
    return Node(name, shown, f"{x:.1f}", f"{y:.1f}", f"{label_x:.1f}", f"{label_y + 4:.1f}", anchor)


def _arrow(begin: float, end: float, part: float) -> MapArrow:
    width = f"{1 + (_WIDEST - 1) * part:.1f}"
    if begin == end:
        # What an endpoint sends to itself goes out of the circle and back.
        x, y = _point(begin, RADIUS - 9)
        (ax, ay), (bx, by) = _point(begin - 0.25, RADIUS - 70), _point(begin + 0.25, RADIUS - 70)
        return MapArrow(f"M{x:.1f} {y:.1f}C{ax:.1f} {ay:.1f} {bx:.1f} {by:.1f} {x:.1f} {y:.1f}", _head(bx, by, x, y), width)
    (x, y), (to_x, to_y) = _point(begin, RADIUS - 9), _point(end, RADIUS - 10)
    middle_x, middle_y = RADIUS + MARGIN_X, RADIUS + MARGIN_Y
    # Both ways are drawn apart: each bends to its own side, and all of them to the middle.
    along_x, along_y = to_x - x, to_y - y
    bend_x = (x + to_x) / 2 * 0.6 + middle_x * 0.4 - along_y * 0.12
    bend_y = (y + to_y) / 2 * 0.6 + middle_y * 0.4 + along_x * 0.12
    return MapArrow(f"M{x:.1f} {y:.1f}Q{bend_x:.1f} {bend_y:.1f} {to_x:.1f} {to_y:.1f}", _head(bend_x, bend_y, to_x, to_y), width)


def _head(from_x: float, from_y: float, x: float, y: float) -> str:
    angle = math.atan2(y - from_y, x - from_x)
    (ax, ay), (bx, by) = ((x - 10 * math.cos(angle + turn), y - 10 * math.sin(angle + turn)) for turn in (0.4, -0.4))
    return f"M{x:.1f} {y:.1f}L{ax:.1f} {ay:.1f}L{bx:.1f} {by:.1f}Z"
