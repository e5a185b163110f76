"""What became of the messages of a batch, and the reasons, each once with how often."""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from django.utils.translation import gettext_lazy

# Errors may name what differs from message to message: what is beyond these is counted together.
MOST_REASONS: Final = 100
_LONGEST_DETAIL: Final = 500


class Reason(enum.StrEnum):
    """Why nothing was done with a message."""

    STATUS = "status"
    NOT_THERE = "not there"
    IN_HANDS = "in hands"
    POISON = "poison"
    NO_FAILED_QUEUE = "no failed queue"
    BAD_ADDRESS = "bad address"
    NO_QUEUE = "no queue"
    ERROR_QUEUE = "error queue"
    NOT_ALLOWED = "not allowed"
    NO_REDIRECT = "no redirect"
    RECEIVED = "received"
    ERROR = "error"
    OTHER = "other"


_TEXTS: Final = {
    Reason.STATUS: gettext_lazy("Its status is: %(detail)s."),
    Reason.NOT_THERE: gettext_lazy("It is not in the error queue any more, or somebody else is at work on it."),
    Reason.IN_HANDS: gettext_lazy("It was received in the meantime, or somebody is at work on it."),
    Reason.POISON: gettext_lazy("Its headers cannot be read."),
    Reason.NO_FAILED_QUEUE: gettext_lazy(
        "It does not say in which queue it failed: it has no header NServiceBus.FailedQ, or none of its headers can be read."
    ),
    Reason.BAD_ADDRESS: gettext_lazy("The address of the queue in which it failed cannot be read: %(detail)s"),
    Reason.NO_QUEUE: gettext_lazy("The queue %(detail)s does not exist: make it, or redirect retries to another one."),
    Reason.ERROR_QUEUE: gettext_lazy("It would go back to an error queue: %(detail)s."),
    Reason.NOT_ALLOWED: gettext_lazy("The setting ALLOWED_DESTINATIONS does not allow the queue %(detail)s."),
    Reason.NO_REDIRECT: gettext_lazy("Retries to the queue %(detail)s are not redirected."),
    Reason.RECEIVED: gettext_lazy("It is not in the queue any more: sent again, it might be handled twice."),
    Reason.ERROR: gettext_lazy("The database refused it: %(detail)s"),
    Reason.OTHER: gettext_lazy("Other reasons."),
}

Why = tuple[Reason, str]


def reason_in_words(reason: str, detail: str = "") -> str:
    """A reason for people, in the current language; what is none is shown as it is."""
    try:
        return str(_TEXTS[Reason(reason)]) % {"detail": detail}
    except ValueError:
        return f"{reason} {detail}".strip()


@dataclass(slots=True)
class Outcome:
    """The numbers of a batch: `done`, and how many were skipped or have failed for each reason."""

    done: int = 0
    skipped: Counter[Why] = field(default_factory=Counter)
    failed: Counter[Why] = field(default_factory=Counter)

    def skip(self, reason: Reason, detail: str = "", count: int = 1) -> None:
        """So many were left as they are."""
        self.skipped[reason, detail[:_LONGEST_DETAIL]] += count

    def fail(self, reason: Reason, detail: str = "", count: int = 1) -> None:
        """So many could not be worked on."""
        self.failed[reason, detail[:_LONGEST_DETAIL]] += count

    @property
    def total(self) -> int:
        """All of them."""
        return self.done + self.skipped.total() + self.failed.total()


def merged_log(log: object, outcome: Outcome) -> list[dict[str, Any]]:
    """The log of an operation with the reasons of one batch more: each once, with its number, in the order of their first time."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for entry in log if isinstance(log, list) else []:
        if isinstance(entry, dict) and isinstance(entry.get("count"), int):
            counts[str(entry.get("what")), str(entry.get("reason")), str(entry.get("detail") or "")] += entry["count"]
    for what, reasons in (("skipped", outcome.skipped), ("failed", outcome.failed)):
        for (reason, detail), count in reasons.items():
            key = (what, str(reason), detail)
            counts[key if key in counts or len(counts) < MOST_REASONS else (what, str(Reason.OTHER), "")] += count
    return [{"what": what, "reason": reason, "detail": detail, "count": count} for (what, reason, detail), count in counts.items()]
