"""What needs a person first, and the tiles of the overview: from a status, in words that say of what each number is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from sqlqueue_app.dashboard.formats import Number, duration, number
from sqlqueue_app.dashboard.overview import Level, Overview, QueueRow
from sqlqueue_app.models import CheckResult
from sqlqueue_app.operations.known_queues import QueueKind
from sqlqueue_app.operations.status import Status
from sqlqueue_app.operations.watching.catalogue import BUILT_IN, finding_in_words


@dataclass(frozen=True, slots=True)
class Tile:
    """A number with the scope that it counts, in words; its page; how good it is."""

    label: str
    value: str
    scope: str
    url: str
    level: Level


@dataclass(frozen=True, slots=True)
class Concern:
    """Something to look at: what, and where."""

    level: Level
    text: str
    url: str


@dataclass(frozen=True, slots=True)
class Links:
    """Where the tiles lead to; empty where the part is not on this site."""

    queues: str
    queue_of: Callable[[str], str]
    endpoints: str
    endpoint_of: Callable[[str], str]
    failures: str
    operations: str
    delayed: str
    delayed_of: Callable[[str], str]
    schedules: str
    checks: str


def tiles(status: Status, links: Links, *, failed: Number | None, running: int, failing: int) -> list[Tile]:
    """The tiles; elsewhere are counted `failed` unresolved messages (None: not known), `running` operations, `failing` checks."""
    main = [each for each in status.queues if each.queue.kind in (QueueKind.MAIN, QueueKind.SATELLITE) and each.depth]
    waiting = sum(each.depth.waiting for each in main if each.depth)
    exact = all(each.depth.exact for each in main if each.depth)
    expired = sum(each.depth.expired for each in status.queues if each.depth)
    overdue = sum(each.overdue or 0 for each in status.delayed)
    delayed = sum(each.waiting or 0 for each in status.delayed)
    alive = sum(1 for each in status.instances if each.alive)
    dead = len(status.instances) - alive
    ours = status.error_queue_owner == "sqlqueue"
    return [
        Tile(
            _("Failed messages"),
            "?" if failed is None else failed.text,
            _("unresolved, in the error queues") if ours else _("in the error queues, which belong to ServiceControl"),
            links.failures,
            Level.WARNING if failed is not None and failed.value and ours else Level.OK,
        ),
        Tile(_("Waiting"), f"{'' if exact else '≈ '}{number(waiting)}", _("in main queues and satellites"), links.queues, Level.OK),
        Tile(
            _("Expired"),
            number(expired),
            _("over their time and not purged yet, in all queues"),
            links.queues,
            Level.INFO if expired else Level.OK,
        ),
        Tile(
            _("Delayed"),
            number(delayed),
            ngettext("of them %(count)s overdue", "of them %(count)s overdue", overdue) % {"count": number(overdue)},
            links.delayed,
            Level.WARNING if overdue else Level.OK,
        ),
        Tile(
            _("Instances"),
            number(alive),
            ngettext("alive; %(count)s dead", "alive; %(count)s dead", dead) % {"count": number(dead)},
            links.endpoints,
            Level.ERROR if dead else Level.OK if alive else Level.WARNING,
        ),
        Tile(
            _("Checks"),
            number(failing),
            _("that fail and are not muted"),
            links.checks,
            Level.ERROR if failing else Level.OK,
        ),
        Tile(_("Operations"), number(running), _("that are not done yet"), links.operations, Level.INFO if running else Level.OK),
    ]


def concerns(
    status: Status,
    overview: Overview,
    checks: Sequence[CheckResult],
    links: Links,
    minimums: Mapping[str, int] | None = None,
) -> list[Concern]:
    """What needs a person, the worst first; nothing where all is well. `checks` are those that fail and are not muted.

    `minimums` are those of live processes, by endpoint.
    """
    found = [
        *_of_instances(status, links),
        *_of_minimums(status, links, minimums or {}),
        *_of_queues(status, overview, links),
        *_of_delayed(status, links),
        *_of_schedules(status, links),
        *_of_checks(checks, links),
    ]
    order = {Level.ERROR: 0, Level.WARNING: 1, Level.INFO: 2, Level.OK: 3}
    return sorted(found, key=lambda each: order[each.level])


def _of_instances(status: Status, links: Links) -> Iterator[Concern]:
    if status.instances_problem is not None:
        yield Concern(Level.ERROR, status.instances_problem.text, links.endpoints)
    for each in status.instances:
        if not each.alive:
            words = {"endpoint": each.endpoint, "name": each.name, "age": duration(each.heartbeat_age)}
            text = _("The process of %(endpoint)s on %(name)s is dead: nothing was heard of it for %(age)s.") % words
            yield Concern(Level.ERROR, text, links.endpoints)


def _of_minimums(status: Status, links: Links, minimums: Mapping[str, int]) -> Iterator[Concern]:
    for endpoint, minimum in sorted(minimums.items()):
        alive = sum(each.alive and each.endpoint == endpoint for each in status.instances)
        if alive < minimum and status.instances_problem is None:
            words = {"endpoint": endpoint, "alive": number(alive), "minimum": number(minimum)}
            text = _("%(endpoint)s is below its minimum: %(alive)s of %(minimum)s expected processes are alive.") % words
            yield Concern(Level.ERROR, text, links.endpoint_of(endpoint))


def _of_queues(status: Status, overview: Overview, links: Links) -> Iterator[Concern]:
    rows: dict[str, QueueRow] = {row.name: row for row in (*overview.queues, *overview.callbacks)}
    for each in status.queues:
        row = rows.get(each.name)
        if row is None or row.state.level in (Level.OK, Level.INFO):
            continue
        age = ""
        if row.age is not None and not row.age.is_odd:
            age = ", " + _("the first is %(age)s old") % {"age": row.age.text}
        words = {"queue": each.name, "state": row.state.word, "count": row.depth.text if row.depth else "?", "age": age}
        if each.problem is not None and each.problem.stops_work:
            yield Concern(row.state.level, f"{each.name}: {each.problem.text}", links.queues)
        else:
            text = _("Queue %(queue)s: %(state)s; messages: %(count)s%(age)s.") % words
            yield Concern(row.state.level, text, links.queue_of(each.name))


def _of_delayed(status: Status, links: Links) -> Iterator[Concern]:
    for each in status.delayed:
        if each.overdue and each.endpoint in {name for queue in status.queues for name in queue.queue.endpoints}:
            words = {"count": number(each.overdue), "endpoint": each.endpoint}
            text = _("%(count)s delayed messages of %(endpoint)s are overdue: no worker moves them.") % words
            yield Concern(Level.WARNING, text, links.delayed_of(each.name))


def _of_schedules(status: Status, links: Links) -> Iterator[Concern]:
    for each in status.schedules:
        if each.error:
            text = _("The recurring message %(name)s cannot be sent: %(error)s")
            yield Concern(Level.ERROR, text % {"name": each.name, "error": each.error}, links.schedules)
        elif each.late_since is not None:
            age = duration(max(status.taken_at - each.late_since, timedelta()))
            text = _("The recurring message %(name)s is %(age)s late: no worker has sent it.") % {"name": each.name, "age": age}
            yield Concern(Level.WARNING, text, links.schedules)


def _of_checks(checks: Sequence[CheckResult], links: Links) -> Iterator[Concern]:
    for each in checks:
        kind = BUILT_IN.get(each.name)
        if kind is not None and kind.overview_says_so:
            continue
        finding = finding_in_words(each.name, each.subject, each.details)
        text = finding if kind is not None else _("Check “%(check)s”: %(finding)s") % {"check": each.name, "finding": finding}
        yield Concern(Level.ERROR if kind is None or kind.is_critical else Level.WARNING, text, links.checks)
