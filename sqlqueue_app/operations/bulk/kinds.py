"""The kinds of bulk operations: what each does with a batch, in which statuses messages must be, and which permission it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeVar
from uuid import UUID

from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from sqlqueue_app.conf import Settings
from sqlqueue_app.messages.errors import ConfigurationError
from sqlqueue_app.models import FailureStatus
from sqlqueue_app.operations.bulk.batches import Batch, OperationKind, OperationRefused
from sqlqueue_app.operations.bulk.changing import ARCHIVABLE, COMPLETABLE, DELETABLE, UNARCHIVABLE, change_status, delete_batch
from sqlqueue_app.operations.bulk.failure_rows import choose
from sqlqueue_app.operations.bulk.outcome import Outcome
from sqlqueue_app.operations.bulk.queue_kinds import QUEUE_KINDS
from sqlqueue_app.operations.bulk.redirecting import REDIRECTABLE, redirect_batch
from sqlqueue_app.operations.bulk.retrying import RETRIABLE, RetryBatch
from sqlqueue_app.operations.failure_selection import FailureSelection

Kind = TypeVar("Kind", bound=OperationKind)


@dataclass(frozen=True, slots=True)
class FailureKind:
    """A kind of operation on failed messages; its scope is a FailureSelection. Immutable.

    `permission` is the codename without which a user may not; `takes` says that it takes messages out of error queues. `work` is
    called in the transactions of the batch, with the ids of its messages.
    """

    name: str
    label: str | Promise
    permission: str
    statuses: tuple[FailureStatus, ...]
    work: Callable[[Settings, Sequence[UUID], datetime], Outcome]
    takes: bool = False

    def check(self, settings: Settings) -> None:
        """Raise OperationRefused if these settings leave the error queue to somebody else."""
        if self.takes and (reason := not_ours(settings)):
            raise OperationRefused(reason)

    def scope(self, selection: FailureSelection) -> FailureSelection:
        """The selection with the statuses that can be worked on, where it says none. OperationRefused for one with problems."""
        if selection.problems:
            raise OperationRefused(" ".join(selection.problems))
        return selection.or_statuses(*self.statuses)

    def read(self, scope: object) -> FailureSelection:
        """The selection of an operation's row. OperationRefused for what cannot be read."""
        return self.scope(FailureSelection.from_json(scope))

    def total(self, settings: Settings, scope: object) -> int:
        """How many messages the scope has now."""
        return self.read(scope).queryset().count()

    def batch(self, settings: Settings, scope: object, cursor: str, limit: int, now: datetime) -> Batch:
        """Work on the next messages behind the cursor, at most `limit`, in the transactions that the caller has begun."""
        chosen = choose(self.read(scope), cursor, limit)
        outcome = self.work(settings, chosen.ids, now) if chosen.ids else Outcome()
        return Batch(outcome, str(chosen.ids[-1]) if chosen.ids else cursor, chosen.is_last)

    def over_first(self, settings: Settings, scope: object, cursor: str) -> str:
        """The cursor behind the next message, which cannot be worked on."""
        chosen = choose(self.read(scope), cursor, 1)
        return str(chosen.ids[0]) if chosen.ids else cursor


def not_ours(settings: Settings) -> str:
    """Why nothing is taken out of the error queues under these settings; empty if it may be."""
    if settings.error_queue_owner == "sqlqueue":
        return ""
    return _("The error queue belongs to ServiceControl (ERROR_QUEUE_OWNER): retry and delete messages there.")


def _status(before: Sequence[FailureStatus], after: FailureStatus) -> Callable[[Settings, Sequence[UUID], datetime], Outcome]:
    return lambda _settings, ids, now: change_status(ids, before, after, now)


def _retry(settings: Settings, ids: Sequence[UUID], now: datetime) -> Outcome:
    return RetryBatch(settings, now).run(ids)


def _redirect(settings: Settings, ids: Sequence[UUID], _now: datetime) -> Outcome:
    return redirect_batch(settings, ids)


_FAILURE_KINDS: Final = (
    FailureKind("retry", gettext_lazy("Retry"), "retry", RETRIABLE, _retry, takes=True),
    FailureKind("archive", gettext_lazy("Archive"), "archive", ARCHIVABLE, _status(ARCHIVABLE, FailureStatus.ARCHIVED)),
    FailureKind("unarchive", gettext_lazy("Unarchive"), "archive", UNARCHIVABLE, _status(UNARCHIVABLE, FailureStatus.UNRESOLVED)),
    FailureKind("complete", gettext_lazy("Mark as resolved"), "retry", COMPLETABLE, _status(COMPLETABLE, FailureStatus.RESOLVED)),
    FailureKind("redirect", gettext_lazy("Apply redirects"), "retry", REDIRECTABLE, _redirect),
    FailureKind("delete", gettext_lazy("Delete"), "delete_message", DELETABLE, delete_batch, takes=True),
)
FAILURE_KINDS: Final[Mapping[str, FailureKind]] = {kind.name: kind for kind in _FAILURE_KINDS}
KINDS: Final[Mapping[str, OperationKind]] = {**FAILURE_KINDS, **{kind.name: kind for kind in QUEUE_KINDS}}


def kind_of(name: str) -> OperationKind:
    """The kind of this name; ConfigurationError names those there are."""
    return _named(KINDS, name)


def failure_kind_of(name: str) -> FailureKind:
    """As `kind_of`, of the kinds that work on failed messages."""
    return _named(FAILURE_KINDS, name)


def _named(kinds: Mapping[str, Kind], name: str) -> Kind:
    kind = kinds.get(name)
    if kind is None:
        raise ConfigurationError(f"unknown kind of operation {name!r}: expected one of {', '.join(kinds)}")
    return kind
