"""The page of the runs of the pipeline: when, where, how much, and what ended them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import URLPattern
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from sqlqueue_app.dashboard.analytics_admin import PIPELINE_COMMAND
from sqlqueue_app.dashboard.exporting import export, wanted_format
from sqlqueue_app.dashboard.formats import Stamp, duration, number, size, stamp_of
from sqlqueue_app.dashboard.overview import Level, State
from sqlqueue_app.dashboard.page_admin import PageAdmin
from sqlqueue_app.dashboard.paging import newest_first
from sqlqueue_app.instances import managed_alias
from sqlqueue_app.lake.engine import INSTALL
from sqlqueue_app.models import Analytics, PipelineRun, RunState
from sqlqueue_app.tables.clock import database_now

PAGE_SIZE: Final = 50
# A run that is alive tells it every 10 seconds.
SILENT: Final = timedelta(seconds=60)
COLUMNS: Final = (
    "started_at", "ended_at", "heartbeat_at", "state", "batches", "messages", "failures", "unreadable", "bytes", "host", "pid",
    "master", "lake", "error",
)  # fmt: skip
_STATES: Final = {
    RunState.RUNNING: (Level.INFO, gettext_lazy("running")),
    RunState.ENDED: (Level.OK, gettext_lazy("ended")),
    RunState.FAILED: (Level.ERROR, gettext_lazy("failed")),
    RunState.STOPPED: (Level.INFO, gettext_lazy("stopped")),
}


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run as the page shows it."""

    run: PipelineRun
    state: State
    started: Stamp | None
    took: str
    batches: str
    messages: str
    failures: str
    unreadable: str
    bytes: str


class PipelineAdmin(PageAdmin):
    """The page about runs of the pipeline, for people with the permission `sqlqueue_app.view_queue`."""

    def pages(self) -> list[URLPattern]:
        """The list."""
        return [self.looks("", self.changelist_view)]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """The runs, the newest first; as a file all of them."""
        alias = managed_alias()
        found = PipelineRun.objects.using(alias).order_by("-started_at", "-pk")
        if wanted_format(request):
            return export(request, "pipeline runs", COLUMNS, _lines(found))
        now = database_now(alias)
        portion = newest_first(request, found, "started_at", size=PAGE_SIZE)
        return self.page(
            request,
            "pipeline_runs",
            title=capfirst(str(self.opts.verbose_name_plural)),
            rows=[_row(each, now) for each in portion.rows],
            install=INSTALL,
            command=PIPELINE_COMMAND,
            analytics_url=self.url_of(Analytics),
            **portion.links(),
            **(extra_context or {}),
        )


def _row(run: PipelineRun, now: datetime) -> RunRow:
    level, word = _STATES.get(RunState(run.state), (Level.INFO, run.state))
    is_silent = run.state == RunState.RUNNING and (run.heartbeat_at is None or now - run.heartbeat_at > SILENT)
    state = State(Level.WARNING, _("nothing heard of it")) if is_silent else State(level, str(word))
    end = run.ended_at or (run.heartbeat_at if is_silent else now)
    took = duration(max(end - run.started_at, timedelta())) if end is not None and run.started_at is not None else "–"
    batches, messages, failures, unreadable = (number(each) for each in (run.batches, run.messages, run.failures, run.unreadable))
    return RunRow(run, state, stamp_of(run.started_at), took, batches, messages, failures, unreadable, size(run.bytes))


def _lines(found: QuerySet[PipelineRun]) -> Iterator[tuple[object, ...]]:
    for each in found.iterator(chunk_size=1_000):
        yield tuple(getattr(each, name) for name in COLUMNS)
