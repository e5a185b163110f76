"""Issues: what is wrong now. `sqlqueue_health` and the overview show the same ones, each in its own words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.utils.translation import gettext as _

from sqlqueue_app.models import CheckResult, Severity
from sqlqueue_app.monitoring.check_results import Results
from sqlqueue_app.monitoring.checks import CHECKS, Check, Outcome, Reader, finding_in_words
from sqlqueue_app.monitoring.snapshot import Snapshot
from sqlqueue_app.status.events import fitting_subject
from sqlqueue_app.status.texts import Words

_URGENCY: Final = (Severity.ERROR, Severity.WARNING, Severity.INFO)


@dataclass(frozen=True, slots=True)
class Issue:
    """What the check of this name found, and `since` when, where a worker has noticed it.

    `is_live`: the snapshot shows it; else it is what a worker, or the process itself, found last.
    """

    name: str
    outcome: Outcome
    since: datetime | None = None
    is_live: bool = False

    @property
    def check(self) -> Check | None:
        """The check; None for one of the project."""
        return CHECKS.get(self.name)

    @property
    def severity(self) -> Severity:
        """How urgent it is."""
        return self.outcome.severity or (Severity.ERROR if self.check is None else self.check.severity)

    @property
    def code(self) -> str:
        """Its id in `sqlqueue_health`."""
        return self.outcome.code or (self.check.code if self.check is not None and self.is_live else "check")

    @property
    def line(self) -> str:
        """The issue as `sqlqueue_health` prints it."""
        check = self.check
        if check is not None and self.is_live and check.line:
            return str(check.line % {**self.outcome.now, **(self.outcome.details or {}), "subject": self.outcome.subject})
        return self._finding() if check is not None else f"check {self.name}: {self._finding()}"

    def text(self, words: Mapping[str, str]) -> str:
        """The issue in the language of the reader; `words` for the placeholders that the details do not fill."""
        check = self.check
        if check is None:
            return _("Check “%(check)s”: %(finding)s") % {"check": self.name, "finding": self._finding()}
        known = Words(self.outcome.subject, self.outcome.details)
        for name, word in words.items():
            known.setdefault(name, word)
        return (str((self.is_live and check.now) or check.finding) % known).strip()

    def _finding(self) -> str:
        return finding_in_words(self.name, self.outcome.subject, self.outcome.details)


def current_issues(snapshot: Snapshot, results: Results) -> list[Issue]:
    """The issues that nobody has muted, the most urgent first, else in the order of the checks.

    What the snapshot shows is true now. Of what it does not show, a result counts. Raises the errors of the database.
    """
    found: list[Issue] = []
    answered: set[tuple[str, str]] = set()
    since = {(each.name, each.subject): each.since for each in results.failing}
    for check in CHECKS.values():
        if check.probe is None or Reader.STATUS not in check.read_by:
            continue
        for outcome in check.probe(snapshot):
            key = check.name, fitting_subject(outcome.subject)
            answered.add(key)
            if outcome.details is not None and key not in results.muted:
                found.append(Issue(check.name, outcome, since.get(key), is_live=True))
    kept = (each for each in results.failing if not _is_answered(each, answered))
    found += [Issue(each.name, Outcome(each.subject, each.details), each.since) for each in kept]
    return sorted(found, key=lambda each: _URGENCY.index(each.severity))


def _is_answered(result: CheckResult, answered: set[tuple[str, str]]) -> bool:
    check = CHECKS.get(result.name)
    is_all_seen = check is not None and check.covers_all and Reader.STATUS in check.read_by
    return is_all_seen or (result.name, result.subject) in answered
