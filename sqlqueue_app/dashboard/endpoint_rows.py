"""Endpoints, their processes and what they did as rows of texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from django.utils.translation import gettext as _

from sqlqueue_app.dashboard.access import Button
from sqlqueue_app.dashboard.formats import Number, Stamp, depth_number, duration, number, precise_duration, rate, stamp
from sqlqueue_app.dashboard.overview import Level, State, instance_state
from sqlqueue_app.instances import HEARTBEAT_SECONDS
from sqlqueue_app.operations.endpoint_measures import Measured
from sqlqueue_app.operations.endpoint_status import Endpoints, EndpointStatus
from sqlqueue_app.operations.instance_status import InstanceState, InstanceStatus

COLUMNS: Final = (
    "endpoint", "in_settings", "messages", "exact", "handled_per_second", "processing_seconds", "critical_seconds",
    "retries_per_second", "failures_per_second", "failed_messages", "alive", "dead", "busy_threads", "limit", "versions", "minimum",
)  # fmt: skip

TYPE_COLUMNS: Final = (
    "message_type", "handled", "handled_per_second", "processing_seconds", "processing_max", "critical_seconds", "critical_max",
    "failures", "immediate_retries", "delayed_retries", "moved_to_error",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Time:
    """A time as text; `is_negative` where a sender's clock is ahead."""

    text: str
    is_negative: bool = False


@dataclass(frozen=True, slots=True)
class MeasureRow:
    """What was done in a time. Times are None where no message has one."""

    name: str
    handled: str
    throughput: str
    failures: str
    immediate: str
    delayed: str
    moved: str
    retries_rate: str
    failures_rate: str
    processing: Time | None
    processing_max: Time | None
    critical: Time | None
    critical_max: Time | None


@dataclass(frozen=True, slots=True)
class EndpointRow:
    """An endpoint as the table shows it."""

    name: str
    url: str
    is_in_settings: bool
    state: State
    depth: Number | None
    measured: MeasureRow | None
    failed: Number | None
    alive: int
    dead: int
    busy: str
    versions: str
    minimum: int = 0
    is_below: bool = False


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """A process of an endpoint; `threads` are queue, busy and live threads; `note` says what it will follow."""

    instance: InstanceStatus
    state: State
    note: str
    heartbeat: str
    started: Stamp
    threads: tuple[tuple[str, int, int], ...]
    callback_url: str
    callback_depth: Number | None
    buttons: tuple[Button, ...]


def time_of(seconds: float | None) -> Time | None:
    """A time in words."""
    return None if seconds is None else Time(precise_duration(timedelta(seconds=seconds)), seconds < 0)


def measure_row(name: str, measured: Measured) -> MeasureRow:
    """What was measured, in words."""
    return MeasureRow(
        name=name,
        handled=number(measured.handled),
        throughput=rate(measured.throughput),
        failures=number(measured.failures),
        immediate=number(measured.immediate_retries),
        delayed=number(measured.delayed_retries),
        moved=number(measured.moved_to_error),
        retries_rate=rate(measured.retries / measured.length),
        failures_rate=rate(measured.failures / measured.length),
        processing=time_of(measured.processing_mean),
        processing_max=time_of(measured.processing_max) if measured.handled else None,
        critical=time_of(measured.critical_mean),
        critical_max=time_of(measured.critical_max),
    )


def endpoint_row(each: EndpointStatus, url: str) -> EndpointRow:
    """One endpoint."""
    return EndpointRow(
        name=each.name,
        url=url,
        is_in_settings=each.is_in_settings,
        state=_state(each),
        depth=None if each.depth is None else depth_number(each.depth),
        measured=None if each.measured is None else measure_row(each.name, each.measured),
        failed=None if each.failed is None else Number(each.failed, number(each.failed)),
        alive=len(each.alive),
        dead=each.dead,
        busy=f"{number(each.busy_threads)} / {number(each.limit)}" if each.alive else "",
        versions=", ".join(sorted({instance.version for instance in each.alive if instance.version})),
        minimum=each.minimum,
        is_below=each.is_below_minimum,
    )


def _state(each: EndpointStatus) -> State:
    if each.is_below_minimum:
        return State(Level.ERROR, _("Below minimum"))
    if each.alive and all(instance.state is InstanceState.PAUSED for instance in each.alive):
        return State(Level.WARNING, _("Paused"))
    if any(instance.paused for instance in each.alive):
        return State(Level.WARNING, _("Partly paused"))
    if not each.alive and each.dead:
        return State(Level.ERROR, _("Dead"))
    if not each.alive:
        waiting = each.depth is not None and each.depth.waiting
        return State(Level.WARNING if waiting else Level.INFO, _("No live worker"))
    if each.dead:
        return State(Level.WARNING, _("Dead processes: %(count)s") % {"count": number(each.dead)})
    return State(Level.OK, _("Alive"))


def process_row(
    each: InstanceStatus, depths: Mapping[str, Number], url_of_queue: Callable[[str], str], buttons: tuple[Button, ...]
) -> ProcessRow:
    """One process; `depths` by the name of the callback queue."""
    queue = each.callback_queue or ""
    return ProcessRow(
        instance=each,
        state=instance_state(each.state),
        note=_note(each),
        heartbeat=duration(each.heartbeat_age),
        started=stamp(each.started_at),
        threads=tuple((name, each.busy.get(name, 0), live) for name, live in each.threads.items()),
        callback_url=url_of_queue(queue) if queue in depths else "",
        callback_depth=depths.get(queue),
        buttons=buttons,
    )


def _note(each: InstanceStatus) -> str:
    """What a process was asked and has not followed yet; when it will."""
    asked = "" if each.asked_ago is None else _("asked %(age)s ago") % {"age": duration(max(each.asked_ago, timedelta()))}
    if each.state not in (InstanceState.PAUSING, InstanceState.RESUMING):
        # What is asked for by the row's other columns, as another concurrency, is in them at once.
        return asked + " " + _("and has not followed yet") if asked and each.alive else ""
    left = min(max(0.0, HEARTBEAT_SECONDS - each.heartbeat_age.total_seconds()), HEARTBEAT_SECONDS)
    text = _("asked to pause; follows at its next heartbeat, within %(seconds)s s")
    if each.state is InstanceState.RESUMING:
        text = _("asked to receive again; follows at its next heartbeat, within %(seconds)s s")
    words = text % {"seconds": number(round(left + 0.5))}
    return f"{words} ({asked})" if asked else words


def exported_endpoints(found: Endpoints) -> Iterator[tuple[Any, ...]]:
    """A row for each endpoint, in the order of the page."""
    for each in found.endpoints:
        depth, measured = each.depth, each.measured
        yield (
            each.name,
            each.is_in_settings,
            None if depth is None else depth.waiting,
            None if depth is None else depth.exact,
            None if measured is None else measured.throughput,
            None if measured is None else measured.processing_mean,
            None if measured is None else measured.critical_mean,
            None if measured is None else measured.retries / measured.length,
            None if measured is None else measured.failures / measured.length,
            each.failed,
            len(each.alive),
            each.dead,
            each.busy_threads,
            each.limit,
            sorted({instance.version for instance in each.alive}),
            each.minimum or None,
        )


def exported_types(found: Mapping[str, Measured]) -> Iterator[tuple[Any, ...]]:
    """A row for each message type of an endpoint; times are means and maxima in seconds."""
    for message_type, each in found.items():
        yield (
            message_type,
            each.handled,
            each.throughput,
            each.processing_mean,
            each.processing_max,
            each.critical_mean,
            each.critical_max,
            each.failures,
            each.immediate_retries,
            each.delayed_retries,
            each.moved_to_error,
        )
