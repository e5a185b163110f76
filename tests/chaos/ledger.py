"""The ledger: another database that gets a fifth of the units of work by two-phase commit, if its alias is configured."""

from __future__ import annotations

import os
import sys
import zlib
from types import ModuleType
from typing import Any, Final

from django.conf import settings
from django.db import connections

from sqlqueue_app.status import in_doubt
from sqlqueue_app.tables import two_phase

ALIAS: Final = "ledger"
ONE_IN: Final = 5
# Lines in a worker's output: it has resolved a branch that a dead process left.
RESOLVED: Final = {True: "was in doubt: committed", False: "was in doubt: rolled back"}


def is_for_ledger(unit: str) -> bool:
    """Whether a unit is written to both databases. Derived from its id, so bodies and books need not store it."""
    return zlib.crc32(unit.encode()) % ONE_IN == 0


def write(unit: str) -> None:
    """Write the effect to the ledger, in the transaction of the message."""
    if ALIAS in connections.settings and is_for_ledger(unit):
        with connections[ALIAS].cursor() as cursor:
            cursor.execute("INSERT INTO effects (name) VALUES (%s)", [unit])


def _record_resolved(module: ModuleType) -> None:
    end_in_doubt = module.end_in_doubt

    def record_outcome(branch: Any, *, committed: bool) -> bool:
        ended: bool = end_in_doubt(branch, committed=committed)
        if ended:
            # A single write, because other processes write to the same file.
            os.write(sys.__stderr__.fileno(), f"{RESOLVED[committed]}\n".encode())  # type: ignore[union-attr]
        return ended

    module.end_in_doubt = record_outcome  # type: ignore[attr-defined]


if ALIAS in settings.DATABASES:
    _record_resolved(in_doubt)
    _record_resolved(two_phase)
