"""The overview as rows of texts: one for each queue, one for each instance."""

from __future__ import annotations

import enum
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from sqlqueue_app.dashboard.formats import Number, Stamp, bounded_number, depth_number, duration, number, rate, stamp
from sqlqueue_app.operations.delayed_status import DelayedStatus
from sqlqueue_app.operations.head_age import HeadAge, NoAge
from sqlqueue_app.operations.instance_status import InstanceState, InstanceStatus
from sqlqueue_app.operations.known_queues import QueueKind
from sqlqueue_app.operations.queue_looks import QueueStatus
from sqlqueue_app.operations.queue_problems import ProblemKind, QueueProblem
from sqlqueue_app.operations.status import Status, callback_queues, working_queues

WORKER_COMMAND = "python manage.py run_sqlqueue_worker"


class Level(enum.StrEnum):
    """How good a state is; the name of its icon."""

    OK = "ok"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class State:
    """A state in a word, with its level for the icon."""

    level: Level
    word: str


@dataclass(frozen=True, slots=True)
class AgeText:
    """The age of a head, with a note on where it comes from or why there is none; `is_odd`: the note must be seen."""

    text: str
    note: str
    is_odd: bool = False


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A queue as the table shows it. Numbers are None where nothing could be counted."""

    name: str
    url: str
    table: str
    kind: str
    endpoints: str
    state: State
    depth: Number | None
    expiring: Number | None
    expired: Number | None
    age: AgeText | None
    threads: int | None
    problem: QueueProblem | None
    rates: tuple[float, float] | None = None

    @property
    def flow(self) -> tuple[str, str] | None:
        """How many messages come and go each second, as text."""
        return None if self.rates is None else (rate(self.rates[0]), rate(self.rates[1]))


@dataclass(frozen=True, slots=True)
class DelayedRow:
    """A table of delayed messages. Numbers are None where nothing could be counted."""

    endpoint: str
    table: str
    state: State
    waiting: Number | None
    overdue: Number | None
    url: str = ""


@dataclass(frozen=True, slots=True)
class InstanceRow:
    """An instance as the table shows it."""

    endpoint: str
    name: str
    host: str
    pid: int
    state: State
    heartbeat: str
    started: Stamp
    threads: tuple[tuple[str, int], ...]
    concurrency: int
    version: str
    callback_queue: str | None
    callback_url: str | None
    callback_depth: Number | None


@dataclass(frozen=True, slots=True)
class Overview:
    """Everything on the page."""

    queues: tuple[QueueRow, ...]
    others: tuple[QueueRow, ...]
    delayed: tuple[DelayedRow, ...]
    callbacks: tuple[QueueRow, ...]
    callbacks_open: bool
    instances: tuple[InstanceRow, ...]
    instances_problem: QueueProblem | None
    taken_at: Stamp
    database: str
    summary: tuple[State, ...]
    worker_command: str = WORKER_COMMAND


KINDS = {
    QueueKind.MAIN: gettext_lazy("main"),
    QueueKind.SATELLITE: gettext_lazy("satellite"),
    QueueKind.ERROR: gettext_lazy("error"),
    QueueKind.AUDIT: gettext_lazy("audit"),
    QueueKind.CALLBACK: gettext_lazy("callback"),
    QueueKind.OTHER: gettext_lazy("other"),
}
_INSTANCE_STATES = {
    InstanceState.ALIVE: (Level.OK, gettext_lazy("Alive")),
    InstanceState.PAUSING: (Level.WARNING, gettext_lazy("Pausing")),
    InstanceState.PAUSED: (Level.WARNING, gettext_lazy("Paused")),
    InstanceState.RESUMING: (Level.INFO, gettext_lazy("Resuming")),
    InstanceState.DEAD: (Level.ERROR, gettext_lazy("Dead")),
}
_PROBLEM_WORDS = {
    ProblemKind.MISSING: gettext_lazy("Missing"),
    ProblemKind.MISMATCH: gettext_lazy("Not a queue"),
    ProblemKind.UNREADABLE: gettext_lazy("Cannot be read"),
    ProblemKind.NO_EXPIRES_INDEX: gettext_lazy("No index on Expires"),
    ProblemKind.NON_UNICODE_HEADERS: gettext_lazy("Headers not in Unicode"),
    ProblemKind.DEAD_ROWS: gettext_lazy("Dead rows pile up"),
}
_AGE_NOTES = {
    NoAge.UNREADABLE_HEADERS: gettext_lazy("the headers of the first message cannot be read"),
    NoAge.NO_TIME: gettext_lazy("the headers of the first message hold no time"),
    NoAge.UNREADABLE_TIME: gettext_lazy("the time in the headers of the first message cannot be read"),
}


def overview_of(
    status: Status,
    url_of: Callable[[str], str],
    rates: Mapping[str, tuple[float, float]] | None = None,
    *,
    delayed_url: Callable[[str], str] = lambda _name: "",
) -> Overview:
    """The page of a status; `url_of` gives the address of a queue's page, `rates` how many messages come and go each second.

    `delayed_url` gives the address of the page of a table of delayed messages, empty where there is none.
    """
    alive = {instance.endpoint for instance in status.instances if instance.alive}
    held = {found.name: instance for instance in status.instances if (found := status.callback_of(instance)) is not None}

    def row(each: QueueStatus) -> QueueRow:
        found = queue_row(each, url_of, alive, held.get(each.name), threads=status.threads_of(each))
        found = replace(found, rates=(rates or {}).get(each.name))
        if each.queue.kind is QueueKind.ERROR and found.problem is None and status.error_queue_owner == "servicecontrol":
            return replace(found, state=State(Level.INFO, _("Belongs to ServiceControl")))
        return found

    callbacks = tuple(map(row, callback_queues(status)))
    return Overview(
        queues=tuple(row(each) for each in working_queues(status) if each.queue.kind is not QueueKind.OTHER),
        others=tuple(row(each) for each in status.queues if each.queue.kind is QueueKind.OTHER),
        delayed=tuple(_delayed_row(each, delayed_url) for each in status.delayed),
        callbacks=callbacks,
        # What needs a look is not hidden: replies that nobody fetches, tables that are missing.
        callbacks_open=any(each.state.level is not Level.OK for each in callbacks),
        instances=tuple(_instance_row(status, each, url_of) for each in status.instances),
        instances_problem=status.instances_problem,
        taken_at=stamp(status.taken_at),
        database=status.database,
        summary=_summary(status),
    )


def queue_row(
    each: QueueStatus,
    url_of: Callable[[str], str],
    alive: set[str],
    holder: InstanceStatus | None = None,
    *,
    threads: int | None = None,
) -> QueueRow:
    """The row of one queue; `alive` are the endpoints with a live instance, `holder` who leases a callback queue."""
    depth = each.depth
    return QueueRow(
        name=each.name,
        url=url_of(each.name),
        table=each.table,
        kind=str(KINDS[each.queue.kind]),
        endpoints=", ".join(each.queue.endpoints),
        state=_state(each, alive, holder),
        depth=None if depth is None else depth_number(depth),
        expiring=None if depth is None else bounded_number(depth.expiring, exact=each.expiry_exact),
        expired=None if depth is None else bounded_number(depth.expired, exact=each.expiry_exact),
        age=_age(each.head_age),
        threads=threads,
        problem=each.problem,
    )


def _delayed_row(each: DelayedStatus, url_of: Callable[[str], str]) -> DelayedRow:
    if each.exists is False:
        state = State(Level.ERROR, str(_PROBLEM_WORDS[ProblemKind.MISSING]))
    elif each.waiting is None or each.overdue is None:
        state = State(Level.ERROR, str(_PROBLEM_WORDS[ProblemKind.UNREADABLE]))
    else:
        state = State(Level.WARNING, _("Overdue")) if each.overdue else State(Level.OK, _("OK"))
    return DelayedRow(
        endpoint=each.endpoint,
        table=each.table,
        state=state,
        waiting=None if each.waiting is None else bounded_number(each.waiting, exact=each.exact),
        overdue=None if each.overdue is None else bounded_number(each.overdue, exact=each.exact),
        url=url_of(each.name) if each.exists else "",
    )


def send_command(queue: str) -> str:
    """The command that puts a first message into a queue."""
    return f"python manage.py sqlqueue_send {shlex.quote(queue)} --type Example.Hello --body '{{}}'"


def _state(each: QueueStatus, alive: set[str], holder: InstanceStatus | None) -> State:
    if each.problem is not None and each.problem.stops_work:
        return State(Level.ERROR, str(_PROBLEM_WORDS[each.problem.kind]))
    kind = each.queue.kind
    waiting = each.depth.waiting if each.depth is not None else 0
    if kind is QueueKind.ERROR and waiting:
        return State(Level.WARNING, _("Failed messages"))
    if kind in (QueueKind.MAIN, QueueKind.SATELLITE) and waiting and not alive.intersection(each.queue.endpoints):
        return State(Level.WARNING, _("No live worker"))
    if kind is QueueKind.CALLBACK and waiting and (holder is None or not holder.alive):
        return State(Level.WARNING, _("Nobody receives"))
    if each.problem is not None:
        level = Level.INFO if each.problem.kind is ProblemKind.NON_UNICODE_HEADERS else Level.WARNING
        return State(level, str(_PROBLEM_WORDS[each.problem.kind]))
    if kind is QueueKind.CALLBACK:
        return State(Level.OK, _("Leased")) if holder is not None else State(Level.OK, _("Free"))
    return State(Level.OK, _("OK"))


def _age(age: HeadAge | None) -> AgeText | None:
    if age is None:
        return None
    if age.age is None:
        return AgeText(_("unknown"), str(_AGE_NOTES[age.unknown]) if age.unknown is not None else "", is_odd=True)
    if age.age.total_seconds() < 0:
        note = _("from the header %(header)s: in the future by our clock") % {"header": age.header}
        return AgeText(duration(age.age), note, is_odd=True)
    return AgeText(duration(age.age), _("from the header %(header)s") % {"header": age.header})


def _instance_row(status: Status, each: InstanceStatus, url_of: Callable[[str], str]) -> InstanceRow:
    callback = status.callback_of(each)
    return InstanceRow(
        endpoint=each.endpoint,
        name=each.name,
        host=each.host,
        pid=each.pid,
        state=instance_state(each.state),
        heartbeat=duration(each.heartbeat_age),
        started=stamp(each.started_at),
        threads=tuple(each.threads.items()),
        concurrency=each.concurrency,
        version=each.version,
        callback_queue=each.callback_queue,
        callback_url=url_of(callback.name) if callback is not None else None,
        callback_depth=depth_number(callback.depth) if callback is not None and callback.depth is not None else None,
    )


def instance_state(state: InstanceState) -> State:
    """What the process does, in a word."""
    level, word = _INSTANCE_STATES[state]
    return State(level, str(word))


def _summary(status: Status) -> tuple[State, ...]:
    """The state of the whole in a few phrases."""
    broken = sum(1 for each in status.queues if each.problem is not None and each.problem.stops_work)
    failed = sum(each.depth.waiting for each in status.queues if each.queue.kind is QueueKind.ERROR and each.depth is not None)
    approximately = any(
        each.depth is not None and not each.depth.exact for each in status.queues if each.queue.kind is QueueKind.ERROR
    )
    alive = sum(1 for each in status.instances if each.alive)
    dead = len(status.instances) - alive
    phrases = [
        State(
            Level.ERROR if broken else Level.OK,
            _("tables with errors: %(count)s") % {"count": number(broken)},
        ),
        State(
            Level.OK if not failed else Level.INFO if status.error_queue_owner == "servicecontrol" else Level.WARNING,
            _("messages in error queues: %(count)s") % {"count": f"{'≈ ' if approximately else ''}{number(failed)}"},
        ),
        State(Level.OK if alive else Level.WARNING, _("live instances: %(count)s") % {"count": number(alive)}),
    ]
    if dead:
        phrases.append(State(Level.ERROR, _("dead instances: %(count)s") % {"count": number(dead)}))
    return tuple(phrases)
