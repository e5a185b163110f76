"""What all kinds of bulk operations have in common: their batches, and how a scope is kept and told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol, TypeVar

from django.utils.functional import Promise

from sqlqueue_app.conf import Settings
from sqlqueue_app.messages.errors import SqlQueueError
from sqlqueue_app.operations.bulk.outcome import Outcome

# So many bytes of bodies are in memory at once at most; one larger message goes alone.
BYTES_PER_BATCH: Final = 32 * 1024 * 1024

Row = TypeVar("Row")


class OperationRefused(SqlQueueError):
    """An operation that cannot be started, or cannot go on; the message says why."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What a batch did, how far it came, and whether nothing is left."""

    outcome: Outcome
    cursor: str
    is_last: bool


class Scope(Protocol):
    """On what an operation works."""

    def to_json(self) -> Any:
        """As it is kept in the operation's row."""
        ...

    def in_words(self) -> str:
        """For people, in the current language."""
        ...


class OperationKind(Protocol):
    """What an operation does. `permission` is the codename without which a user may not ask for it."""

    @property
    def name(self) -> str:
        """As it is kept in the operation's row."""
        ...

    @property
    def label(self) -> str | Promise:
        """For people."""
        ...

    @property
    def permission(self) -> str:
        """The codename of the permission."""
        ...

    def check(self, settings: Settings) -> None:
        """Raise OperationRefused if these settings do not allow it."""
        ...

    def scope(self, asked: Any) -> Scope:
        """The scope of what was asked for. OperationRefused for one that it cannot work on."""
        ...

    def total(self, settings: Settings, scope: object) -> int:
        """How many messages the scope of a row has now."""
        ...

    def batch(self, settings: Settings, scope: object, cursor: str, limit: int, now: datetime) -> Batch:
        """Work on the next messages behind the cursor, at most `limit`, in the transactions that the caller has begun."""
        ...

    def over_first(self, settings: Settings, scope: object, cursor: str) -> str:
        """The cursor behind the next message, which cannot be worked on."""
        ...


def fitting(rows: Sequence[Row], limit: int, size_of: Callable[[Row], int]) -> list[Row]:
    """The first rows, at most `limit`, and not more than a batch may hold in memory; at least one."""
    chosen: list[Row] = []
    held = 0
    for row in rows[:limit]:
        held += size_of(row)
        if chosen and held > BYTES_PER_BATCH:
            break
        chosen.append(row)
    return chosen
