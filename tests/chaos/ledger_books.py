"""Accounting of the ledger: it and the database of the queues have the same units, each once, and nothing is undecided."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from django.db import connections

from sqlqueue_app.models import DistributedTransaction
from tests.chaos.ledger import ALIAS, RESOLVED, is_for_ledger
from tests.chaos.workers import worker
from tests.support.bench import Bench
from tests.support.other_databases import OtherDatabase, made_beside
from tests.support.provisioning import PostgresqlProvider
from tests.support.waiting import poll_until
from tests.support.worker_processes import wait_until_released

# Workers check every 5 s.
SECONDS_TO_SETTLE = 60.0


@dataclass
class LedgerAccount:
    """The outcome of the units that must have one effect in each of the two databases."""

    in_both: int = 0
    """Once in each."""
    lost: list[str] = field(default_factory=list)
    """Only in the database of the queues."""
    twice: list[str] = field(default_factory=list)
    """More than once in the ledger."""
    strangers: list[str] = field(default_factory=list)
    """Only in the ledger."""
    undecided: list[str] = field(default_factory=list)
    """Prepared transactions and remaining log entries after all work has ended."""
    resolved: dict[str, int] = field(default_factory=dict)
    """The number of branches that were in doubt during the run, by outcome."""

    @property
    def faults(self) -> dict[str, list[str]]:
        """All violations by kind; empty if there are none."""
        found = {
            "lost in the ledger": self.lost,
            "twice in the ledger": self.twice,
            "strangers in the ledger": self.strangers,
            "undecided": self.undecided,
        }
        return {name: units for name, units in found.items() if units}


@contextmanager
def ledger_beside(provider: PostgresqlProvider) -> Iterator[OtherDatabase]:
    """Create the ledger on the provider's server, without a key, so that a wrong row is not refused."""
    with made_beside(provider, ALIAS, unique=False) as made:
        yield made


def undecided(bench: Bench, ledger: OtherDatabase) -> list[str]:
    """The transactions that two-phase commit has not finished."""
    recorded = DistributedTransaction.objects.using(bench.database.alias).values_list("id", flat=True)
    return [f"prepared {name}" for name in ledger.prepared()] + [f"recorded {each}" for each in recorded]


def settle(bench: Bench, ledger: OtherDatabase, log: Path) -> None:
    """Let a worker that is not killed resolve the branches of dead ones and remove their log entries."""
    if not undecided(bench, ledger):
        return
    with worker(bench, log, "--log-level", "error") as process:
        with suppress(AssertionError):
            poll_until(lambda: not undecided(bench, ledger), SECONDS_TO_SETTLE)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()[-4_000:]
    wait_until_released(bench)


def ledger_account(bench: Bench, ledger: OtherDatabase, log: Path | None = None) -> LedgerAccount:
    """Compare the two databases; call it when no message is in progress. `log` has the output of the workers."""
    with connections[bench.database.alias].cursor() as cursor:
        cursor.execute("SELECT id FROM effects")
        here = {str(name) for (name,) in cursor.fetchall() if is_for_ledger(str(name))}
    there = Counter(ledger.effects())
    text = log.read_text(errors="replace") if log else ""
    return LedgerAccount(
        in_both=sum(1 for unit in here if there[unit] == 1),
        lost=sorted(here - set(there)),
        twice=sorted(unit for unit, count in there.items() if count > 1),
        strangers=sorted(set(there) - here),
        undecided=undecided(bench, ledger),
        resolved={how: text.count(line) for how, line in (("committed", RESOLVED[True]), ("rolled back", RESOLVED[False]))},
    )
