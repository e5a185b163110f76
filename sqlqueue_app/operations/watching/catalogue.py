"""The checks that sqlqueue brings, in words: what each looks at, what it says when it fails, and what to do then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from sqlqueue_app.health_checks import OWN_PREFIX
from sqlqueue_app.operations.events import EventKind
from sqlqueue_app.operations.words import Words


@dataclass(frozen=True, slots=True)
class CheckKind:
    """A check that sqlqueue brings. Texts have placeholders for the `subject` and the details of a result.

    `failed`, `passed` and `gone` are the events of its subjects; `gone` is that of a failing subject that is no more, None: no
    event. `covers_all`: one run sees every subject that any process sees. `overview_says_so`, `health_says_so`: overview and
    `sqlqueue_health` say the same by what they look at themselves.
    """

    name: str
    every_seconds: int
    label: Promise
    finding: Promise | str
    advice: Promise
    failed: EventKind = EventKind.CHECK_FAILED
    passed: EventKind = EventKind.CHECK_PASSED
    gone: EventKind | None = None
    covers_all: bool = False
    overview_says_so: bool = False
    health_says_so: bool = False
    is_critical: bool = False


# What must be noticed soon; the rest changes slowly, or has been so for minutes before it is said.
SOON: Final = 20
USUAL: Final = 60
SELDOM: Final = 300

INSTANCES: Final = CheckKind(
    f"{OWN_PREFIX}instances",
    SOON,
    gettext_lazy("Processes"),
    gettext_lazy("Nothing was heard of the process %(subject)s for %(seconds)s seconds."),
    gettext_lazy("Start it again; if it shall not come back, remove it on the page of its endpoint."),
    failed=EventKind.INSTANCE_LOST,
    passed=EventKind.INSTANCE_BACK,
    gone=EventKind.INSTANCE_GONE,
    covers_all=True,
    overview_says_so=True,
    health_says_so=True,
)
MINIMUMS: Final = CheckKind(
    f"{OWN_PREFIX}minimums",
    SOON,
    gettext_lazy("Live instances"),
    gettext_lazy("Live instances of %(subject)s: %(alive)s, expected at least %(minimum)s."),
    gettext_lazy("Start workers of the endpoint, or change its minimum."),
    failed=EventKind.ENDPOINT_BELOW,
    passed=EventKind.ENDPOINT_ENOUGH,
    covers_all=True,
    overview_says_so=True,
    health_says_so=True,
    is_critical=True,
)
RECEIVERS: Final = CheckKind(
    f"{OWN_PREFIX}receivers",
    USUAL,
    gettext_lazy("Receivers"),
    gettext_lazy("Messages that wait in %(subject)s: %(waiting)s, and no live process has received from it for a minute."),
    gettext_lazy("Start a worker of the endpoint: python manage.py run_sqlqueue_worker"),
    overview_says_so=True,
    health_says_so=True,
    is_critical=True,
)
MOVER: Final = CheckKind(
    f"{OWN_PREFIX}mover",
    USUAL,
    gettext_lazy("Delayed messages"),
    gettext_lazy("Delayed messages of %(subject)s that are due and were not moved for a minute: %(overdue)s."),
    gettext_lazy("Every worker moves them: see in the logs of the workers why none does."),
    overview_says_so=True,
    health_says_so=True,
)
PURGING: Final = CheckKind(
    f"{OWN_PREFIX}purging",
    USUAL,
    gettext_lazy("Purge of expired messages"),
    gettext_lazy("More than %(limit)s expired messages have been lying in %(subject)s for %(minutes)s minutes."),
    gettext_lazy("See in the logs of the workers why they do not purge, or purge them on the page of the queue."),
)
SCHEDULES: Final = CheckKind(
    f"{OWN_PREFIX}schedules",
    USUAL,
    gettext_lazy("Recurring messages"),
    gettext_lazy("The recurring message %(subject)s that was due at %(tick)s was not sent. %(error)s"),
    gettext_lazy("The logs of the workers say why, as schedule_failed; often its type has no route."),
    failed=EventKind.SCHEDULE_FAILED,
    passed=EventKind.SCHEDULE_SENDS,
    overview_says_so=True,
    is_critical=True,
)
TABLES: Final = CheckKind(
    f"{OWN_PREFIX}tables",
    SELDOM,
    gettext_lazy("Tables"),
    "%(text)s",
    gettext_lazy("python manage.py sqlqueue_install --check lists what is missing, with the SQL that adds it."),
    overview_says_so=True,
    health_says_so=True,
)
CLOCKS: Final = CheckKind(
    f"{OWN_PREFIX}clocks",
    USUAL,
    gettext_lazy("Clocks"),
    gettext_lazy("The clock of the machine %(subject)s differs from that of the database by %(seconds)s seconds."),
    gettext_lazy("Set both by NTP: times in the headers of messages are wrong meanwhile."),
)
POOLS: Final = CheckKind(
    f"{OWN_PREFIX}pools",
    SELDOM,
    gettext_lazy("Connection pools"),
    gettext_lazy("The connection pool of %(subject)s has at most %(most)s connections, and the worker needs %(needed)s."),
    gettext_lazy('Raise "max_size" of "pool" in the OPTIONS of the database %(alias)s, or receive with fewer threads.'),
)

BRANCHES: Final = CheckKind(
    f"{OWN_PREFIX}branches",
    USUAL,
    gettext_lazy("Branches in doubt"),
    gettext_lazy("A transaction has been prepared in the database %(alias)s since %(prepared)s and keeps its locks: %(subject)s."),
    gettext_lazy("Workers commit it or roll it back as the log says: see in their logs why they cannot, as branch_in_doubt."),
    covers_all=True,
    is_critical=True,
)

BUILT_IN: Final[Mapping[str, CheckKind]] = {
    each.name: each for each in (INSTANCES, MINIMUMS, RECEIVERS, MOVER, PURGING, SCHEDULES, TABLES, CLOCKS, POOLS, BRANCHES)
}


def label_of(name: str) -> str:
    """What a check is called: its name, if it is one of the project's."""
    return str(BUILT_IN[name].label) if name in BUILT_IN else name


def finding_in_words(name: str, subject: str, details: object) -> str:
    """What a failing check says, in the language of who reads it. Never raises, whatever stands in the row."""
    words = Words(subject, details)
    return (str(BUILT_IN[name].finding) % words).strip() if name in BUILT_IN else words["text"]


def advice_in_words(name: str, subject: str, details: object) -> str:
    """What to do about it."""
    if name in BUILT_IN:
        return str(BUILT_IN[name].advice) % Words(subject, details)
    return _("It is a check of this project: who has written it knows what to do.")
