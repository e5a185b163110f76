"""What an operation would do: with how many messages, and why not with the others. From the index, in a few statements."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from django.db.models import Case, Count, IntegerField, Value, When

from sqlqueue_app.conf import Settings
from sqlqueue_app.models import FailureStatus
from sqlqueue_app.operations.bulk.kinds import failure_kind_of
from sqlqueue_app.operations.bulk.outcome import Reason, Why, reason_in_words
from sqlqueue_app.operations.failure_selection import FailureSelection
from sqlqueue_app.operations.retry_targets import RetryTargets, Target

# So many queues are looked for; messages for others are taken for such that can be retried.
_MOST_QUEUES: Final = 50


@dataclass(slots=True)
class Preview:
    """The numbers of a dry run. `targets` are the queues that retries go to."""

    eligible: int = 0
    targets: Counter[str] = field(default_factory=Counter)
    reasons: Counter[Why] = field(default_factory=Counter)

    @property
    def not_eligible(self) -> int:
        """On how many nothing would be done."""
        return self.reasons.total()

    @property
    def total(self) -> int:
        """All of them."""
        return self.eligible + self.not_eligible

    def in_words(self) -> list[tuple[str, int]]:
        """The reasons for people, with how many messages each keeps; the most first."""
        return [(reason_in_words(*why), count) for why, count in self.reasons.most_common()]


def preview(settings: Settings, kind: str, selection: FailureSelection) -> Preview:
    """What an operation on the selection would do now. Nothing is changed or locked. Raises OperationRefused as a request does."""
    chosen = failure_kind_of(kind)
    scope = chosen.scope(selection)
    found = Preview()
    sends = chosen.name in ("retry", "redirect")
    flags = {
        "is_gone": Case(When(row_version__isnull=True, then=Value(1)), default=Value(0), output_field=IntegerField()),
        "is_poison": Case(When(poison="", then=Value(0)), default=Value(1), output_field=IntegerField()),
    }
    by = {"retry": ("status", "failed_q", *flags), "redirect": ("status", "retried_to")}.get(chosen.name, ("status",))
    rows = scope.queryset().annotate(**flags).values_list(*by).annotate(count=Count("pk")).order_by("-count")
    targets = RetryTargets(settings) if sends else None
    queues: set[str] = set()
    for status, *more, count in rows:
        if status not in chosen.statuses:
            found.reasons[Reason.STATUS, str(FailureStatus(status).label)] += count
        elif targets is None:
            found.eligible += count
        else:
            queues.add(more[0])
            known = targets if len(queues) <= _MOST_QUEUES else None
            add = _add_moves if chosen.name == "redirect" else _add_retries
            add(found, known, *more, count=count)
    return found


def _add_retries(
    found: Preview, targets: RetryTargets | None, queue: str, is_gone: int = 0, is_poison: int = 0, *, count: int
) -> None:
    if is_gone or is_poison:
        found.reasons[Reason.NOT_THERE if is_gone else Reason.NO_FAILED_QUEUE, ""] += count
        return
    target = targets.of(queue) if targets is not None else None
    if target is None or isinstance(target, Target):
        found.eligible += count
        found.targets[queue if target is None else target.text] += count
    else:
        found.reasons[target] += count


def _add_moves(found: Preview, targets: RetryTargets | None, queue: str, *, count: int) -> None:
    target = targets.of(queue) if targets is not None else None
    if isinstance(target, Target) and target.redirect is None:
        found.reasons[Reason.NO_REDIRECT, queue] += count
    else:
        _add_retries(found, targets, queue, count=count)
