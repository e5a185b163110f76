"""Output of `sqlqueue_status` and `sqlqueue_health`: text, JSON, and one line for monitoring plugins."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from django.utils import timezone

from sqlqueue_app.management.command_line import columns, duration_text
from sqlqueue_app.messages.errors import terminal_line
from sqlqueue_app.monitoring.health import Bounds, Health, HealthFinding, Level, Measure
from sqlqueue_app.status.delayed import DelayedStatus
from sqlqueue_app.status.instances import InstanceStatus
from sqlqueue_app.status.overview import Status
from sqlqueue_app.status.queues import QueueProblem, QueueStatus
from sqlqueue_app.status.schedules import ScheduleStatus
from sqlqueue_app.status.texts import FEW

_QUEUE_HEAD = ("QUEUE", "KIND", "ENDPOINT", "MESSAGES", "EXPIRING", "EXPIRED", "HEAD AGE", "THREADS", "STATE")
_SCHEDULE_HEAD = ("SCHEDULE", "WHEN", "SENDS", "NEXT", "LAST", "AS")
_DELAYED_HEAD = ("DELAYED BY", "MESSAGES", "OVERDUE", "STATE")
_INSTANCE_HEAD = (
    "ENDPOINT",
    "INSTANCE",
    "MACHINE",
    "PID",
    "STATE",
    "HEARTBEAT",
    "THREADS",
    "BUSY",
    "AT ONCE",
    "CALLBACK QUEUE",
    "MESSAGES",
)


def status_document(status: Status) -> dict[str, Any]:
    """The status as JSON; docs/reference/commands.md documents the keys, which do not change."""
    return {
        "database": status.database,
        "taken_at": status.taken_at.isoformat(),
        "queues": [_queue(status, each) for each in status.queues],
        "delayed": [_delayed(each) for each in status.delayed],
        "instances": [_instance(status, each) for each in status.instances],
        "instances_problem": _problem(status.instances_problem),
        "schedules": [_schedule(each) for each in status.schedules],
    }


def _queue(status: Status, each: QueueStatus) -> dict[str, Any]:
    depth, age = each.depth, each.head_age
    return {
        "name": each.name,
        "table": each.table,
        "kind": each.queue.kind.value,
        "endpoints": list(each.queue.endpoints),
        "exists": each.exists,
        "messages": None if depth is None else depth.waiting,
        "messages_exact": None if depth is None else depth.exact,
        "expiring": None if depth is None else depth.expiring,
        "expired": None if depth is None else depth.expired,
        "expiry_exact": None if depth is None else each.expiry_exact,
        "head_age_seconds": None if age is None or age.age is None else age.age.total_seconds(),
        "head_age_header": None if age is None else age.header,
        "head_age_unknown": None if age is None or age.unknown is None else age.unknown.value,
        "threads": status.threads_of(each),
        "problem": _problem(each.problem),
    }


def _delayed(each: DelayedStatus) -> dict[str, Any]:
    return {
        "endpoint": each.endpoint,
        "table": each.table,
        "exists": each.exists,
        "waiting": each.waiting,
        "overdue": each.overdue,
        "exact": each.exact,
    }


def _instance(status: Status, each: InstanceStatus) -> dict[str, Any]:
    depth = status.depth_of_callback(each)
    return {
        "endpoint": each.endpoint,
        "name": each.name,
        "host": each.host,
        "pid": each.pid,
        "alive": each.alive,
        "state": each.state.value,
        "heartbeat_age_seconds": each.heartbeat_age.total_seconds(),
        "started_at": each.started_at.isoformat(),
        "threads": dict(each.threads),
        "busy": dict(each.busy),
        "concurrency": each.concurrency,
        "paused_since": _iso(each.paused_since),
        "version": each.version,
        "callback_queue": each.callback_queue,
        "callback_messages": None if depth is None else depth.waiting,
        "callback_messages_exact": None if depth is None else depth.exact,
    }


def _schedule(each: ScheduleStatus) -> dict[str, Any]:
    return {
        "name": each.name,
        "cron": each.cron,
        "when": each.when,
        "defined_in": each.origin.value,
        "send": each.send,
        "next_tick": _iso(each.next_tick),
        "last_tick": _iso(each.last_tick),
        "last_sent_at": _iso(each.last_sent_at),
        "last_message_id": each.last_message_id,
        "last_endpoint": each.last_endpoint,
        "enabled": each.is_enabled,
        "late_since": _iso(each.late_since),
        "error": each.error,
    }


def _iso(instant: datetime | None) -> str | None:
    return None if instant is None else instant.isoformat()


def _problem(problem: QueueProblem | None) -> dict[str, Any] | None:
    if problem is None:
        return None
    return {"kind": problem.kind.value, "text": problem.text, "command": problem.command or None, "sql": problem.sql or None}


def status_lines(status: Status) -> Iterator[str]:
    """Tables of queues, delayed messages, instances and schedules, then problems with their remedies."""
    if not status.queues:
        yield 'The settings name no endpoint: add one to SQLQUEUE["ENDPOINTS"].'
    else:
        cells = [_queue_cells(status, each) for each in status.queues]
        yield from columns([_QUEUE_HEAD, *cells], right=frozenset({3, 4, 5, 6, 7}))
    if status.delayed:
        yield ""
        yield from columns([_DELAYED_HEAD, *map(_delayed_cells, status.delayed)], right=frozenset({1, 2}))
    yield ""
    if status.instances:
        rows = [_instance_cells(status, each) for each in status.instances]
        yield from columns([_INSTANCE_HEAD, *rows], right=frozenset({3, 5, 6, 7, 8, 10}))
    elif status.instances_problem is None:
        yield "No instance has registered: start a worker with python manage.py run_sqlqueue_worker."
    if status.schedules:
        yield ""
        yield from columns([_SCHEDULE_HEAD, *map(_schedule_cells, status.schedules)])
    problems = [(each.name, each.problem) for each in status.queues if each.problem is not None]
    if status.instances_problem is not None:
        problems.append(("instances", status.instances_problem))
    for name, problem in problems:
        yield ""
        yield from _problem_lines(name, problem)


def _queue_cells(status: Status, each: QueueStatus) -> tuple[str, ...]:
    depth = each.depth
    numbers = ("-", "-", "-")
    if depth is not None:
        least = "" if each.expiry_exact else "≥"
        numbers = (f"{'' if depth.exact else '≈'}{depth.waiting}", f"{least}{depth.expiring}", f"{least}{depth.expired}")
    age = "-"
    if each.head_age is not None:
        age = "unknown" if each.head_age.age is None else duration_text(each.head_age.age)
    state = "ok" if each.problem is None else each.problem.kind.value.replace("_", " ")
    threads = status.threads_of(each)
    of = each.queue.endpoints
    cells = (each.name, each.queue.kind.value, ", ".join(of) if len(of) <= FEW else f"{len(of)} endpoints", *numbers, age)
    return (*cells, "-" if threads is None else str(threads), state)


def _delayed_cells(each: DelayedStatus) -> tuple[str, ...]:
    if each.waiting is None or each.overdue is None:
        return each.endpoint, "-", "-", "missing" if each.exists is False else "unreadable"
    least = "" if each.exact else "≥"
    return each.endpoint, f"{least}{each.waiting}", f"{'' if each.overdue_exact else '≥'}{each.overdue}", "ok"


def _instance_cells(status: Status, each: InstanceStatus) -> tuple[str, ...]:
    depth = status.depth_of_callback(each)
    return (
        each.endpoint,
        each.name,
        each.host,
        str(each.pid),
        each.state.value,
        duration_text(each.heartbeat_age),
        str(each.live_threads),
        str(each.busy_threads),
        str(each.concurrency),
        each.callback_queue or "-",
        "-" if depth is None else f"{'' if depth.exact else '≈'}{depth.waiting}",
    )


def _schedule_cells(each: ScheduleStatus) -> tuple[str, ...]:
    times = (each.next_tick, each.last_tick)
    next_tick, last_tick = ("-" if instant is None else f"{timezone.localtime(instant):%Y-%m-%d %H:%M}" for instant in times)
    return (
        each.name,
        each.when or "-",
        each.send,
        next_tick if each.is_enabled else "disabled",
        last_tick,
        each.last_endpoint or "-",
    )


def _problem_lines(name: str, problem: QueueProblem) -> Iterator[str]:
    yield f"{terminal_line(name)}: {terminal_line(' '.join(problem.text.split()))}"
    if problem.command:
        yield f"  fix it with: {problem.command}"
    if problem.sql:
        yield f"  {'or run this SQL' if problem.command else 'fix it with this SQL'}:"
        yield from (f"    {line}" for line in problem.sql.splitlines())


def health_document(health: Health) -> dict[str, Any]:
    """The health as JSON; docs/reference/commands.md documents the keys, which do not change."""
    return {
        "status": health.level.name.lower(),
        "exit_code": int(health.level),
        "taken_at": None if health.taken_at is None else health.taken_at.isoformat(),
        "findings": [
            {"status": each.level.name.lower(), "check": each.check, "subject": each.subject, "text": each.text}
            for each in health.findings
        ],
        "measures": [
            {
                "subject": each.subject,
                "name": each.name,
                "value": each.value,
                "unit": each.unit,
                "exact": each.exact,
                "warning": each.bounds.warning,
                "critical": each.bounds.critical,
            }
            for each in health.measures
        ],
    }


def health_lines(health: Health) -> Iterator[str]:
    """The level, then the findings."""
    yield f"{health.level.name}: {_summary(health)}" if not health.findings else health.level.name
    for each in health.findings:
        yield terminal_line(f"{each.level.name.lower()}: {' '.join(each.text.split())}")


def nagios_line(health: Health) -> str:
    """One line in the format of Nagios and Icinga plugins: level, findings, and performance data."""
    text_of_findings = "; ".join(each.text for each in health.findings) or _summary(health)
    text = terminal_line(" ".join(text_of_findings.split())).replace("|", "/")
    data = " ".join(_performance(each) for each in health.measures)
    return f"SQLQUEUE {health.level.name} - {text}" + (f" | {data}" if data else "")


def _summary(health: Health) -> str:
    queues = len({each.subject for each in health.measures if each.name == "length"})
    return f"{queues} {'queue is' if queues == 1 else 'queues are'} well"


def _performance(measure: Measure) -> str:
    """`'label'=value[unit];warning;critical;least`. A label has no equals sign, and its quotes are doubled."""
    label = " ".join(terminal_line(f"{measure.subject} {measure.name}").replace("=", "_").replace("|", "/").split())
    bounds = measure.bounds
    least = "" if measure.unit else "0"
    return (
        f"'{label.replace(chr(39), chr(39) * 2)}'={_number(measure.value)}{measure.unit};"
        f"{_range(bounds, bounds.warning)};{_range(bounds, bounds.critical)};{least}"
    )


def _range(bounds: Bounds, bound: float | None) -> str:
    if bound is None:
        return ""
    return f"{_number(bound)}:" if bounds.least else _number(bound)


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:.3f}"


def unknown(text: str) -> Health:
    """The health if it could not be determined."""
    return Health((HealthFinding(Level.UNKNOWN, "unknown", "", text),))
