"""The overview: alerts, numbers with their scope, queues and instances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.http import HttpRequest
from django.utils.text import capfirst
from django.utils.translation import gettext as _, gettext_lazy

from sqlqueue_app import models
from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard.charts import MAX_ENDPOINTS, PERIODS, Chart, Period, Series, line_chart, period_of, traffic_table
from sqlqueue_app.dashboard.endpoints import endpoint_url, failures_url
from sqlqueue_app.dashboard.formats import Grade, ago_html, bounded_number, counts, number
from sqlqueue_app.dashboard.history import ActionAdmin, EventAdmin, severity_state
from sqlqueue_app.dashboard.lists import HtmlTable, TableColumn, table
from sqlqueue_app.dashboard.live import LIVE_SECONDS
from sqlqueue_app.dashboard.page import PageAdmin, path_of
from sqlqueue_app.failures.index import catch_up_for_page, has_new_failures
from sqlqueue_app.models import managed_alias
from sqlqueue_app.monitoring import checks
from sqlqueue_app.monitoring.check_results import CheckResults, live_alerts, read_results
from sqlqueue_app.monitoring.health import Issue, current_issues, text_of_issue
from sqlqueue_app.monitoring.snapshot import Snapshot
from sqlqueue_app.status.endpoints import failed_and_minimums
from sqlqueue_app.status.overview import Status, Total, read_status
from sqlqueue_app.status.queues import QueueKind, QueueStatus
from sqlqueue_app.status.samples import FINEST, page_sampling, resolution_for
from sqlqueue_app.status.traffic import GROWN_IN, Traffic, endpoint_queues, read_traffic
from sqlqueue_app.tables.connections import database_now, optional_read

_SHOWN = 10  # actions, and events


class DashboardAdmin(PageAdmin):
    """The overview. It needs the permission `sqlqueue_app.view_queue`."""

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """The overview; without the contents of the managed tables if they are missing."""
        status, period, alias = read_status(), period_of(request), managed_alias()
        now = status.managed_now or status.taken_at
        results, running = CheckResults(), 0
        minimums: dict[str, int] = {}
        shown: dict[str, Any] = {}
        with optional_read(alias, "read the tables of the dashboard"):
            now = status.managed_now or database_now(alias)
            _catch_up(status, now)
            failed, minimums, running = failed_and_minimums(alias, list(endpoint_queues(status, {})))
            endpoints = endpoint_queues(status, failed)
            charts, traffic = _traffic(status, dict(list(endpoints.items())[:MAX_ENDPOINTS]), period, now)
            results = read_results(alias, now)
            shown = {
                "charts": charts,
                "grown_in": number(GROWN_IN // timedelta(minutes=1)),
                "traffic": traffic_table(endpoints, traffic, failed, now, partial(failures_url, self)),
                "events": _recent(EventAdmin(models.Event, self.admin_site), request),
                "actions": _recent(ActionAdmin(models.OperatorAction, self.admin_site), request),
            }
        snapshot = Snapshot(get_settings(), now, status=status, minimums=minimums)
        issues = current_issues(snapshot, results)
        live_alerts.remember(each.name for each in issues)
        # The worst comes first.
        graded = ((each.name, severity_state(each.severity).level) for each in issues)
        of_processes = (level for name, level in graded if name in (checks.INSTANCES.name, checks.MINIMUMS.name))
        unresolved = bounded_number(snapshot.indexed_failures.count, exact=snapshot.indexed_failures.exact) if shown else None
        return self.page(
            request,
            "dashboard",
            live_seconds=LIVE_SECONDS,
            title=capfirst(str(self.opts.verbose_name)),
            counted=status,
            alert_count=len(issues),
            is_unstarted=snapshot.is_unstarted and not issues,
            is_unread=not shown,
            failure_count=unresolved,
            waiting=_tile(status.waiting, Grade.WARNING if any(map(_is_held_up, issues)) else Grade.OK),
            instances_level=next(of_processes, Grade.OK if status.alive else Grade.WARNING),
            expired=_tile(status.expired, Grade.INFO),
            delayed=_tile(status.delayed_messages, Grade.OK),
            overdue=_tile(status.overdue_at(now), Grade.WARNING),
            running=running,
            alerts=[self._alert(each, snapshot, status) for each in issues],
            period=period,
            periods=PERIODS,
            **shown,
        )

    def _alert(self, issue: Issue, snapshot: Snapshot, status: Status) -> dict[str, object]:
        """An issue with its severity, subject, cause, duration, and the page with the remedy."""
        return {
            "severity": severity_state(issue.severity),
            "subject": _subject(issue),
            "cause": text_of_issue(issue, status),
            "url": self._page_of(issue, status) or self.url_of(models.Queue),
            "since": issue.since,
            "lasting": issue.since and max(snapshot.now - issue.since, timedelta()),
        }

    def _page_of(self, issue: Issue, status: Status) -> str:
        """The page about an issue; empty if it is not on the site."""
        queue, endpoint = issue.outcome.queue, issue.outcome.endpoint
        if issue.name == checks.FAILURES.name:
            group = issue.outcome.now.get("group")
            return self.url_of(models.FailedMessage, "group", group) if group else self.url_of(models.FailedMessage)
        if issue.name == checks.BRANCHES.name:
            return self.url_of(models.DistributedTransaction)
        if issue.name == checks.PIPELINE.name:
            return self.url_of(models.PipelineRun)
        if not issue.is_live and not queue:
            return self.url_of(models.CheckResult)
        if issue.name == checks.SCHEDULES.name:
            return self.url_of(models.Schedule)
        if queue:
            # An unusable table has no page.
            is_broken = issue.name == checks.TABLES.name and issue.severity == models.Severity.ERROR
            return self.url_of(models.Queue) if is_broken else self.url_of(models.Queue, "messages", path_of(queue))
        if issue.name == checks.MOVER.name:
            table_name = next(each.name for each in status.delayed if each.endpoint == endpoint)
            return self.url_of(models.DelayedMessage, "table", path_of(table_name))
        if issue.name == checks.TABLES.name:
            return self.url_of(models.DelayedMessage)
        return endpoint_url(self, endpoint) if endpoint else self.url_of(models.Endpoint)


def _tile(total: Total, grade: Grade) -> dict[str, object]:
    """A total for a tile, with this grade above zero; a question mark if only unreadable tables may have messages."""
    text = "?" if total.unread and not total.value else total.mark + number(total.value)
    return {"value": total.value, "text": text, "level": Grade.WARNING if total.unread else grade if total.value else Grade.OK}


def _catch_up(status: Status, now: datetime) -> None:
    """Index new failures if no worker does, like the pages of failed messages."""
    is_failing = any(each.queue.kind is QueueKind.ERROR and each.depth and each.depth.waiting for each in status.queues)
    is_unindexed = is_failing and not any(each.works_for_all for each in status.instances)
    if is_unindexed and has_new_failures(get_settings()):
        catch_up_for_page(get_settings(), now)


def _recent(pages: EventAdmin | ActionAdmin, request: HttpRequest) -> HtmlTable:
    """The newest rows of this list with relative times, which this page keeps current."""
    columns: list[TableColumn[Any]] = [*pages.columns(request)]
    columns[0] = TableColumn(columns[0].label, lambda row: ago_html(row.at))
    rows: Any = pages.rows().order_by("-at", "-id")[:_SHOWN]
    return table(pages.caption, columns, rows, lambda row: f"{row._meta.model_name} {row.pk}")


def _traffic(
    status: Status, endpoints: Mapping[str, Sequence[QueueStatus]], period: Period, now: datetime
) -> tuple[list[Chart], Traffic]:
    """The depth of all queues in the period, and the traffic of these endpoints. Takes samples if no worker does."""
    drawn = {
        _("Waiting in main queues and satellites"): [each.name for each in status.queues if each.queue.is_receiving],
        _("Waiting in error queues"): [each.name for each in status.queues if each.queue.kind is QueueKind.ERROR],
    }
    groups, resolution = list(drawn.values()), resolution_for(period.length)
    queues = [each.name for found in endpoints.values() for each in found]
    traffic = read_traffic(managed_alias(), queues, groups, period.length, endpoints, now)
    taken = page_sampling.take(status.instances, traffic.newest, now, status)
    traffic.add(taken, groups if resolution is FINEST else ())
    draw = partial(line_chart, begin=now - period.length, end=now, step=timedelta(seconds=resolution.seconds), scale=counts)
    totals = zip(drawn, traffic.totals, strict=True)
    return [draw(title, [Series(_("messages"), points)]) for title, points in totals if points], traffic


_SUBJECTS = {
    checks.INSTANCES.name: gettext_lazy("Process %(name)s"),
    checks.SCHEDULES.name: gettext_lazy("Schedule %(name)s"),
    checks.BRANCHES.name: gettext_lazy("In-doubt transaction"),
    checks.SAMPLES.name: gettext_lazy("Workers"),
    checks.PIPELINE.name: checks.PIPELINE.label,
}


def _is_held_up(issue: Issue) -> bool:
    """Whether messages wait longer than they should."""
    return issue.name in {checks.PAUSED.name, checks.RECEIVERS.name, checks.GROWING.name} or bool(issue.outcome.now.get("waiting"))


def _subject(issue: Issue) -> str:
    found = issue.outcome
    if issue.check is None:
        return _("Check %(name)s") % {"name": issue.name}
    if issue.name in _SUBJECTS:
        return str(_SUBJECTS[issue.name]) % {"name": found.subject}
    if found.queue:
        return _("Queue %(name)s") % {"name": found.queue}
    if found.endpoint:
        return _("Endpoint %(name)s") % {"name": found.endpoint}
    return found.subject or str(issue.check.label)
