"""The overview: what needs a person first, the numbers with their scope, how it went, what was done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.db.models import Count, Value
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern
from django.utils.text import capfirst
from django.utils.translation import gettext as _

from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard.attention import Links, concerns, tiles
from sqlqueue_app.dashboard.charts import Chart, Series, line_chart
from sqlqueue_app.dashboard.event_rows import EventRow, event_row
from sqlqueue_app.dashboard.failure_admin import QUEUES_OF_A_PAGE, READ_BY_A_PAGE
from sqlqueue_app.dashboard.formats import Number, Stamp, bounded_number, stamp, whole
from sqlqueue_app.dashboard.live import LIVE_SECONDS
from sqlqueue_app.dashboard.overview import overview_of
from sqlqueue_app.dashboard.page_admin import PageAdmin
from sqlqueue_app.dashboard.paths import path_of
from sqlqueue_app.dashboard.periods import PERIODS, Period, period_of
from sqlqueue_app.instances import managed_alias
from sqlqueue_app.messages.errors import ConnectionLost, DatabaseError
from sqlqueue_app.models import (
    CheckResult,
    DelayedMessage,
    Endpoint,
    EndpointExpectation,
    Event,
    FailedMessage,
    FailureStatus,
    Operation,
    OperatorAction,
    Queue,
    Schedule,
)
from sqlqueue_app.operations.bulk.engine import OPEN
from sqlqueue_app.operations.failure_index import catch_up, has_new_failures
from sqlqueue_app.operations.failure_lists import count_failures
from sqlqueue_app.operations.known_queues import KnownQueue, QueueKind
from sqlqueue_app.operations.looking import looking
from sqlqueue_app.operations.sample_storage import read_totals, resolution_for
from sqlqueue_app.operations.status import Status, read_status
from sqlqueue_app.operations.watching.results import failing_checks
from sqlqueue_app.tables.clock import database_now

# Of actions and of events.
_SHOWN = 10


@dataclass(frozen=True, slots=True)
class _Managed:
    """Unresolved failures (None: not known), running operations, minimums of processes, and so on."""

    failed: Number | None = None
    running: int = 0
    minimums: Mapping[str, int] = field(default_factory=dict)
    actions: Sequence[tuple[OperatorAction, Stamp]] = ()
    events: Sequence[EventRow] = ()
    checks: Sequence[CheckResult] = ()
    charts: Sequence[Chart] = ()


class DashboardAdmin(PageAdmin):
    """The overview, for people with the permission `sqlqueue_app.view_queue`."""

    def pages(self) -> list[URLPattern]:
        """The one page."""
        return [self.looks("", self.overview_view)]

    def overview_view(self, request: HttpRequest) -> HttpResponse:
        """The overview."""
        status = read_status()
        links = Links(
            queues=self.url_of(Queue),
            queue_of=lambda name: self.url_of(Queue, "messages", path_of(name)),
            endpoints=self.url_of(Endpoint) or self.url_of(Queue),
            endpoint_of=lambda name: self.url_of(Endpoint, "endpoint", path_of(name)) or self.url_of(Queue),
            failures=self.url_of(FailedMessage) or self.url_of(Queue),
            operations=self.url_of(Operation),
            delayed=self.url_of(DelayedMessage) or self.url_of(Queue),
            delayed_of=lambda name: self.url_of(DelayedMessage, "table", path_of(name)) or self.url_of(Queue),
            schedules=self.url_of(Schedule) or self.url_of(Queue),
            checks=self.url_of(CheckResult),
        )
        overview = overview_of(status, links.queue_of)
        managed = self._read(status, period_of(request))
        return self.page(
            request,
            "dashboard",
            live_seconds=LIVE_SECONDS,
            title=capfirst(str(self.opts.verbose_name)),
            overview=overview,
            tiles=tiles(status, links, failed=managed.failed, running=managed.running, failing=len(managed.checks)),
            concerns=concerns(status, overview, managed.checks, links, managed.minimums),
            charts=managed.charts,
            period=period_of(request),
            periods=PERIODS,
            events=managed.events,
            events_url=self.url_of(Event),
            actions=managed.actions,
            actions_url=self.url_of(OperatorAction),
        )

    def _read(self, status: Status, period: Period) -> _Managed:
        """What the managed tables say; nothing of it where they are missing."""
        alias = managed_alias()
        try:
            with looking(alias, "read the tables of the dashboard"):
                now = status.managed_now or database_now(alias)
                # Right also where no worker is alive, as the pages of the failed messages, which look closer.
                if not any(each.works_for_all for each in status.instances) and has_new_failures(get_settings(), QUEUES_OF_A_PAGE):
                    catch_up(get_settings(), limit=READ_BY_A_PAGE, now=now, queues_at_most=QUEUES_OF_A_PAGE)
                unresolved = FailedMessage.objects.using(alias).filter(status=FailureStatus.UNRESOLVED)
                count, exact = count_failures(unresolved)
                running, minimums = _running_and_minimums(alias)
                rows = list(OperatorAction.objects.using(alias).order_by("-at", "-id")[:_SHOWN])
                checks = failing_checks(alias, now)
                events = list(Event.objects.using(alias).order_by("-at", "-id")[:_SHOWN])
                wanted = [each.queue for each in status.queues if each.queue.kind is not QueueKind.CALLBACK]
                charts = _charts(alias, wanted, period, now)
        except ConnectionLost:
            raise
        except DatabaseError:
            return _Managed()
        return _Managed(
            bounded_number(count, exact=exact),
            running,
            minimums,
            [(row, stamp(row.at)) for row in rows if row.at],
            [event_row(self, each) for each in events],
            checks,
            charts,
        )


def _running_and_minimums(alias: str) -> tuple[int, dict[str, int]]:
    """How many operations are open, and the minimums of processes by endpoint: by one statement, for the page has many."""
    open_ones = Operation.objects.using(alias).filter(state__in=OPEN).order_by().annotate(what=Value("running"))
    running = open_ones.values("what", "state").annotate(number=Count("pk")).values_list("what", "state", "number")
    minimums = EndpointExpectation.objects.using(alias).annotate(what=Value("minimum"))
    rows = list(running.union(minimums.values_list("what", "endpoint", "minimum"), all=True))
    found = {name: count for what, name, count in rows if what == "minimum"}
    return sum(count for what, _name, count in rows if what == "running"), found


def _charts(alias: str, queues: Sequence[KnownQueue], period: Period, now: datetime) -> list[Chart]:
    """How much waited in the queues of endpoints, and in the error queues."""
    begin, step = now - period.length, timedelta(seconds=resolution_for(period.length).seconds)
    titles = (
        (_("Waiting in main queues and satellites"), (QueueKind.MAIN, QueueKind.SATELLITE)),
        (_("In the error queues"), (QueueKind.ERROR,)),
    )
    groups = [[queue.name for queue in queues if queue.kind in kinds] for _title, kinds in titles]
    return [
        line_chart(title, [Series(_("messages"), points)], begin=begin, end=now, step=step, text_of=whole)
        for (title, _kinds), points in zip(titles, read_totals(alias, groups, period.length, now), strict=True)
        if points
    ]
