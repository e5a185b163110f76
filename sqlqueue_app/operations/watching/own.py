"""The checks of which each process knows for itself: the clock of its machine, the size of its connection pools.

A process that finds nothing writes nothing, unless something stands in the results of its machine.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from django.db import connections

from sqlqueue_app.models import CheckResult
from sqlqueue_app.operations.watching.catalogue import CLOCKS, POOLS, CheckKind
from sqlqueue_app.operations.watching.results import Details, Report

# The database tells whole seconds, and the answer takes its way; delays and times to be received are reckoned in seconds.
DRIFT_SECONDS: Final = 5
# As psycopg_pool does.
_POOL_DEFAULT: Final = 4
# Heartbeats, samples and the like, which share four threads, and the mover of delayed messages.
BACKGROUND_CONNECTIONS: Final = 5


@dataclass(slots=True)
class OwnChecks:
    """What one process reports of itself. `connections_needed`: how many connections of the alias its threads have, at most."""

    alias: str
    connections_needed: int = 0
    host: str = field(default_factory=lambda: platform.node() or "unknown")
    _last: dict[str, tuple[datetime, bool]] = field(default_factory=dict)

    def reports(self, managed: str, now: datetime, local: datetime) -> list[Report]:
        """What is to be written: what fails, as often as the check is run, and what passes again. A statement at the first time.

        `now` is the clock of the managed tables' database, `local` that of the machine.
        """
        found = {CLOCKS: self._clock(managed, now, local), POOLS: self._pool()}
        if not self._last:
            mine = CheckResult.objects.using(managed).filter(
                subject=self.host, failing=True, name__in=[each.name for each in found]
            )
            self._last = dict.fromkeys(mine.values_list("name", flat=True), (now, True))
            self._last.setdefault("", (now, False))
            due = {kind for kind, details in found.items() if details is not None or kind.name in self._last}
        else:
            due = {kind for kind, details in found.items() if self._is_due(kind, details, now)}
        for kind in due:
            self._last[kind.name] = (now, found[kind] is not None)
        return [_report(kind, self.host, found[kind]) for kind in found if kind in due]

    def _is_due(self, kind: CheckKind, details: Details | None, now: datetime) -> bool:
        told = self._last.get(kind.name)
        if told is None:
            return details is not None
        at, failed = told
        if (details is not None) != failed:
            return True
        return details is not None and (now - at).total_seconds() >= kind.every_seconds

    def _clock(self, managed: str, now: datetime, local: datetime) -> Details | None:
        drift = round((local - now).total_seconds())
        if connections[managed].vendor == "sqlite" or abs(drift) <= DRIFT_SECONDS:
            return None
        return {"seconds": drift}

    def _pool(self) -> Details | None:
        most = pool_size(connections.settings[self.alias])
        if most is None or most >= self.connections_needed:
            return None
        return {"most": most, "needed": self.connections_needed, "alias": self.alias}


def _report(kind: CheckKind, host: str, details: Details | None) -> Report:
    if details is None:
        return Report(kind.name, kind.every_seconds, {}, frozenset({host}))
    return Report(kind.name, kind.every_seconds, {host: details})


def pool_size(entry: Mapping[str, Any]) -> int | None:
    """How many connections the pool of an entry of DATABASES has at most; None without a pool, or where that cannot be read."""
    pool = entry.get("OPTIONS", {}).get("pool")
    if not pool or entry.get("ENGINE") != "django.db.backends.postgresql":
        return None
    options = pool if isinstance(pool, dict) else {}
    size = options.get("max_size") or options.get("min_size", _POOL_DEFAULT)
    return size if isinstance(size, int) else None


def connections_needed(threads: Iterable[tuple[int, bool]]) -> int:
    """How many connections a worker has at most: those of its receive threads and its background work.

    Each pair is a number of threads, and whether each of them sends on a second connection.
    """
    return sum(number * (2 if second else 1) for number, second in threads) + BACKGROUND_CONNECTIONS
