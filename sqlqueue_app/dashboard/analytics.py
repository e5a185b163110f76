"""The pages of the pipeline: its runs, and its rollups of messages, failure groups, endpoints, usage, top messages."""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from operator import attrgetter
from typing import Any, Final, NamedTuple

from django import forms
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import URLPattern
from django.utils import timezone
from django.utils.text import Truncator
from django.utils.translation import gettext as _, gettext_lazy

from sqlqueue_app.browsing import analytics
from sqlqueue_app.browsing.analytics import DAY, HOUR, QUANTILES, Rollup, RollupQuery, RollupResult
from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard.charts import LONG_PERIODS, Chart, Points, Series, line_chart, period_of
from sqlqueue_app.dashboard.failures import CLASSIFIER_WORDS
from sqlqueue_app.dashboard.formats import Grade, Scale, State, counts, per_second, percents, size_of, times
from sqlqueue_app.dashboard.lists import NUMBER, WIDE, ListAdmin, ListFilter, TableColumn, export, wanted_format, with_notes
from sqlqueue_app.dashboard.page import Crumb, PageAdmin, label_of_page
from sqlqueue_app.lake.search import INSTALL
from sqlqueue_app.lake.sketches import from_json
from sqlqueue_app.messages.failure_groups import CLASSIFIERS
from sqlqueue_app.models import Analytics, NotableKind, PipelineRun, RunState, managed_alias
from sqlqueue_app.status.texts import PLAIN_INPUT
from sqlqueue_app.tables.connections import database_now, guarded_read

MAX_LENGTH: Final = 400


def empty_lake(pages: PageAdmin) -> dict[str, Any]:
    """Template variables with the reason for empty rollups: not configured, not run, running, failed."""
    pipeline = get_settings().pipeline
    return {
        "install": INSTALL,
        "command": "python manage.py run_sqlqueue_pipeline --once",
        "is_configured": bool(pipeline and pipeline.lake),
        "run": analytics.newest_run(),
        "runs_url": pages.url_of(PipelineRun),
    }


class AnalyticsFilter(ListFilter):
    """The filter of the rollups; links choose the period."""

    period = forms.CharField(widget=forms.HiddenInput)
    endpoint = forms.CharField(
        label=gettext_lazy("Endpoint"), max_length=MAX_LENGTH, widget=forms.TextInput({**PLAIN_INPUT, "list": "sq-endpoints"})
    )
    type = forms.CharField(label=gettext_lazy("Message type"), max_length=MAX_LENGTH, widget=forms.TextInput(PLAIN_INPUT))


class AnalyticsAdmin(PageAdmin):
    """The pages of rollups, for users with the permission `sqlqueue_app.view_queue`."""

    def pages(self) -> list[URLPattern]:
        """One page for each kind of rollup."""
        return [
            self.readonly_view("" if part.page == "changelist" else f"{part.page}/", partial(self._view, part), part.page)
            for part in PARTS
        ]

    def _view(self, part: Part, request: HttpRequest) -> HttpResponseBase:
        """One kind of rollup, as a page or as a file; without data, the page shows the first steps."""
        period = period_of(request, LONG_PERIODS, "1d")
        chosen = AnalyticsFilter(request)
        fresh = analytics.freshness()
        for name in {"endpoint", "type"} - set(part.filters):
            del chosen.fields[name]
        chosen.is_valid()
        by = request.GET.get("by", "")
        by = by if by in CLASSIFIERS else next(iter(CLASSIFIERS))
        query = RollupQuery.until(
            timezone.now(),
            period.length,
            period.figure_seconds,
            endpoint=chosen.cleaned_data.get("endpoint", ""),
            message_type=chosen.cleaned_data.get("type", ""),
            classifier=CLASSIFIERS[by].name,
            counted_until=fresh.read_until,
        )
        template = "analytics" if part.page == "changelist" else f"analytics_{part.page}"
        shown = {}
        with guarded_read(managed_alias(), "read the figures of the pipeline"):
            if wanted_format(request):
                file_name = "figures" if part.page == "changelist" else part.page
                return export(request, f"{file_name} {period.name}", part.columns, part.rows(query))
            if fresh.read_until is not None:
                shown = {"endpoints": analytics.known_endpoints(), **part.shown(query)}
            else:
                template = "analytics_empty"
                shown = {} if fresh.problem else empty_lake(self)
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
            by=by,
            classifiers=CLASSIFIER_WORDS.items(),
            **{"runs_url": self.url_of(PipelineRun), **shown},
        )


# A chart is 420 wide: with more points than this a line becomes a band.
MAX_POINTS: Final = 240


def _messages(query: RollupQuery) -> dict[str, Any]:
    read = analytics.read_rollups(query)
    shown = (read.total, *read.by_kind.values())
    return {
        "read": read,
        "charts": rollup_charts(read),
        "critical": times(value for each in shown for value in each.critical_times.values()),
        "processing": times(value for each in shown for value in each.processing_times.values()),
    }


def rollup_charts(read: RollupResult) -> list[Chart]:
    """Throughput, critical time, processing time, failure rate; empty without rollups."""
    if not read.over_time:
        return []
    drawn = _drawn(read.query, read.query.seconds)
    over_time = analytics.resample(read.over_time, read.query.begin, drawn.step)
    flow = [
        Series(_("processed"), _per_second(over_time, drawn, lambda each: each.processed)),
        Series(_("failed"), _per_second(over_time, drawn, lambda each: each.failed)),
    ]
    charts = [_chart(_("Processed and failed"), flow, drawn, per_second, 1.0 if drawn.seconds < DAY else 0.1)]
    if read.quantile_seconds is not None:
        wide = _drawn(read.query, read.quantile_seconds)
        # Their steps may be longer than those of the query, and then begin before it.
        quantiles = analytics.resample(read.quantiles, read.query.resample(read.quantile_seconds).begin, wide.step)
        for title, name in ((_("Critical time"), "critical_times"), (_("Processing time"), "processing_times")):
            measured = {at: getattr(each, name) for at, each in quantiles.items()}
            series = [Series(part, [(at, found[part]) for at, found in measured.items()]) for part in QUANTILES]
            charts.append(_chart(title, series, wide, times, 0.01))
    failing = Series(_("of all messages"), [(at, each.failure_rate) for at, each in over_time.items()])
    return [*charts, _chart(_("Failure rate"), [failing], drawn, percents, 0.01)]


def _drawn(query: RollupQuery, seconds: int) -> RollupQuery:
    """The query with the steps of a chart: a multiple of the stored steps, and no more than can be distinguished."""
    steps = (query.end - query.begin).total_seconds() / seconds
    return query.resample(seconds * max(1, math.ceil(steps / MAX_POINTS)))


def _chart(title: str, lines: Sequence[Series], drawn: RollupQuery, scale: Callable[[Sequence[float]], Scale], top: float) -> Chart:
    begin, end, step = drawn.begin, drawn.end, drawn.step
    return line_chart(title, lines, begin=begin, end=end, step=step, scale=scale, least_top=top, source="figures")


def _per_second(over_time: Mapping[datetime, Rollup], query: RollupQuery, value_of: Callable[[Rollup], int]) -> Points:
    end = query.counted_until or query.end  # in the last step; a clock ahead may have filled later ones
    lengths = {at: min(query.step, max(end - at, timedelta(seconds=1))) if at < end else query.step for at in over_time}
    return _filled({at: value_of(each) / lengths[at].total_seconds() for at, each in over_time.items()}, query.step)


def _filled(found: Mapping[datetime, float], step: timedelta) -> Points:
    """Fill missing steps with zero, from the first step to the last one with rollups."""
    begin = min(found)
    return [(at, found.get(at, 0.0)) for at in (begin + n * step for n in range((max(found) - begin) // step + 1))]


_TIMES: Final = ("mean", *QUANTILES)
_SUMS: Final = ("at", "seconds", "endpoint", "message_type", "processed", "failed", "retried", "delayed_retries")
_MORE_SUMS: Final = ("critical_negative", "body_bytes")
COLUMNS: Final = (*_SUMS, *(f"{kind}_{name}" for kind in ("processing", "critical") for name in _TIMES), *_MORE_SUMS)


def exported(query: RollupQuery) -> Iterator[tuple[Any, ...]]:
    """The rows of a file, in the order of COLUMNS; times in seconds."""
    for each in analytics.iter_rollups(query):
        processing = analytics.durations(each.processing_count, each.processing_sum, from_json(each.processing_sketch))
        critical = analytics.durations(each.critical_count, each.critical_sum, from_json(each.critical_sketch))
        sums, more = ([getattr(each, name) for name in names] for names in (_SUMS, _MORE_SUMS))
        yield (*sums, *processing.values(), *critical.values(), *more)


def _groups(query: RollupQuery) -> dict[str, Any]:
    groups = analytics.read_groups(query)
    hourly = query.resample(max(query.seconds, HOUR))
    series = [
        Series(Truncator(" ".join(each.title.split())).chars(60), _filled(each.over_time, hourly.step))
        for each in groups
        if each.over_time
    ]
    return {"groups": groups, "charts": [_chart(_("Failures"), series, hourly, counts, 1.0)] if series else []}


def _group_rows(query: RollupQuery) -> Iterator[tuple[Any, ...]]:
    for each in analytics.read_groups(query, limit=None, trends=0):
        yield each.id, query.classifier, each.title, each.count, each.first_seen, each.last_seen


def _usage(query: RollupQuery) -> dict[str, Any]:
    usage = analytics.read_usage(query)
    daily = query.resample(DAY)
    series = [
        Series(name, _filled({day: values[place] for day, values in usage.by_day.items()}, daily.step))
        for place, name in enumerate((_("messages"), _("failures")))
        if usage.by_day
    ]
    charts = [_chart(_("Messages per day"), series, daily, counts, 10.0)] if series else []
    return {"usage": usage, "most": analytics.MAX_ROWS, "charts": charts}


def _notable(query: RollupQuery) -> dict[str, Any]:
    return {kind: analytics.read_top_messages(query, kind) for kind in NotableKind.values}


_NOTABLE_COLUMNS: Final = ("kind", "value", "at", "endpoint", "message_type", "message_id", "conversation_id")


def _notable_rows(query: RollupQuery) -> Iterator[tuple[Any, ...]]:
    for kind in NotableKind.values:
        yield from map(attrgetter(*_NOTABLE_COLUMNS), analytics.read_top_messages(query, kind, limit=None))


# More endpoints cannot be distinguished on a circle.
MAX_NODES: Final = 24
RADIUS: Final = 200
_WIDEST: Final = 7.0
_HEAD: Final = 15


class EndpointMap(NamedTuple):
    """A circle around 0, 0.

    `nodes` are the name of each endpoint, empty if unknown, its position, the offset and the anchor of its name.
    `arrows` are the data of a path, which ends in its head, and its width, which grows with the number of messages.
    """

    nodes: list[tuple[str, str, str, str]]
    arrows: list[tuple[str, float]]


def _map(query: RollupQuery) -> dict[str, Any]:
    edges = analytics.read_edges(query)
    drawn = endpoint_map([(each.sender, each.receiver, each.count) for each in edges])
    rows = [(each, each.critical_times, sorted(each.types)) for each in edges]
    unit = times(critical[name] for _edge, critical, _types in rows for name in ("mean", "p95"))
    return {"drawn": drawn, "edges": rows, "unit": unit, "is_cut": len(edges) == analytics.MAX_EDGES}


def _edge_rows(query: RollupQuery) -> Iterator[tuple[Any, ...]]:
    for each in analytics.read_edges(query, limit=None):
        yield each.sender, each.receiver, each.count, *each.critical_times.values(), each.types


def endpoint_map(edges: Sequence[tuple[str, str, int]]) -> EndpointMap:
    """Draw edges (sender, receiver, count), most frequent first: those of the first endpoints that fit."""
    names = list(dict.fromkeys(name for *ends, _count in edges for name in ends))[:MAX_NODES]
    places = {name: cmath.rect(1, math.tau * place / len(names) - math.tau / 4) for place, name in enumerate(sorted(names))}
    highest = max((count for _sender, _receiver, count in edges), default=1)
    arrows = [
        (_arrow(places[sender], places[receiver]), round(1 + (_WIDEST - 1) * count / highest, 1))
        for sender, receiver, count in edges
        if sender in places and receiver in places
    ]
    return EndpointMap([(name, _xy(RADIUS * at), _xy(16 * at + 4j), _anchor(at)) for name, at in places.items()], arrows)


def _anchor(at: complex) -> str:
    return "middle" if abs(at.real) < 0.2 else "start" if at.real > 0 else "end"


def _xy(point: complex) -> str:
    return f"{point.real:.1f} {point.imag:.1f}"


def _arrow(begin: complex, end: complex) -> str:
    """An arrow from one endpoint to another, given as directions from the center."""
    first, tip = (RADIUS - 9) * begin, (RADIUS - 10) * end
    if begin == end:
        # Messages that an endpoint sends to itself leave the circle and return.
        out, bend = (begin * cmath.rect(RADIUS - 70, angle) for angle in (-0.25, 0.25))
        curve = f"C{_xy(out)} {_xy(bend)}"
    else:
        # Both directions are drawn apart: each bends to its own side, and all toward the center.
        bend = 0.3 * (first + tip) + 0.12j * (tip - first)
        curve = f"Q{_xy(bend)}"
    return f"M{_xy(first)}{curve} {_xy(tip - _HEAD * (tip - bend) / abs(tip - bend))}"


class Part(NamedTuple):
    """A page: its name and variables, its file, filters, and its title if the navigation has none."""

    page: str
    shown: Callable[[RollupQuery], dict[str, Any]]
    columns: Sequence[str]
    rows: Callable[[RollupQuery], Iterable[Any]]
    filters: Sequence[str] = ("endpoint", "type")
    label: object = ""


_GROUP_COLUMNS: Final = ("group", "classifier", "title", "failures", "first_seen", "last_seen")
_USAGE_COLUMNS: Final = ("endpoint", "messages", "failures", "bytes")
_EDGE_COLUMNS: Final = ("sender", "receiver", "messages", *(f"critical_{name}" for name in _TIMES), "types")
PARTS: Final = (
    Part("changelist", _messages, COLUMNS, exported),
    Part("groups", _groups, _GROUP_COLUMNS, _group_rows, (), gettext_lazy("Groups of failures")),
    Part("map", _map, _EDGE_COLUMNS, _edge_rows),
    Part("usage", _usage, _USAGE_COLUMNS, lambda query: analytics.read_usage(query, limit=None).by_endpoint, ("endpoint",)),
    Part("notable", _notable, _NOTABLE_COLUMNS, _notable_rows, label=gettext_lazy("Slowest and largest")),
)


_GRADES: Final[Mapping[str, Grade]] = {RunState.ENDED: Grade.OK, RunState.FAILED: Grade.ERROR}


class PipelineAdmin(ListAdmin[PipelineRun]):
    """The page of pipeline runs. It needs the permission `sqlqueue_app.view_queue`."""

    caption = gettext_lazy("Pipeline runs, newest first: messages taken from audit queues, failures copied from error queues")
    instant = "started_at"
    list_template = "pipeline_runs"
    live_seconds = None
    file_name, nothing = "pipeline runs", ""
    file_columns = (
        "started_at", "ended_at", "heartbeat_at", "state", "batches", "messages", "failures", "unreadable", "bytes", "host", "pid",
        "master", "lake", "error",
    )  # fmt: skip

    def columns(self, request: HttpRequest) -> list[TableColumn[PipelineRun]]:
        now = database_now(managed_alias())
        return [
            TableColumn(_("Started"), lambda run: run.started_at),
            TableColumn(_("State"), lambda run: with_notes(_run_state(run, now), Truncator(run.error).chars(500)), WIDE),
            TableColumn(_("Duration"), lambda run: run.duration(now)),
            TableColumn(_("Messages"), lambda run: run.messages, NUMBER),
            TableColumn(_("Failures"), lambda run: run.failures, NUMBER),
            TableColumn(_("Unreadable"), lambda run: run.unreadable, NUMBER),
            TableColumn(_("Batches"), lambda run: run.batches, NUMBER),
            TableColumn(_("Written"), lambda run: size_of(run.bytes), NUMBER),
            TableColumn(_("Host"), lambda run: with_notes(run.host, f"{run.pid}, {run.master}", run.lake), "sq-medium"),
        ]

    def more(self, request: HttpRequest, rows: Sequence[PipelineRun]) -> dict[str, Any]:
        url = self.url_of(Analytics)
        links = [(url, _("Results of the pipeline"))] if url else []
        return {"links": links, **({} if rows else empty_lake(self))}


def _run_state(run: PipelineRun, now: datetime) -> State:
    if run.is_silent(now):
        return State(Grade.WARNING, _("no heartbeat"))
    return State(_GRADES.get(run.state, Grade.INFO), run.get_state_display())
