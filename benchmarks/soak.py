"""Mixed load with kills for a given time, then a comparison of all message ids: `python -m benchmarks.soak --help`.

Two senders commit and roll back transactions of plain, delayed, failing and published messages; a requester sends requests and
waits for replies. A supervisor with two worker processes and one separate worker, which receives batches, handle them. Workers are
killed with `kill -9` at random moments and at named steps, and so are their supervisor and the main process of the PostgreSQL
server. Every message writes one row in its receive transaction; a fifth of them also write one to a second PostgreSQL database,
the ledger, by two-phase commit. With queues on SQLite, the server holds only the ledger. Load and accounting come from tests/chaos.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import django

from benchmarks.report import aligned, machine
from benchmarks.spark_kills import database_of

if TYPE_CHECKING:
    from benchmarks.soak_parts import Workers
    from tests.chaos.books import Account
    from tests.chaos.ledger_books import LedgerAccount
    from tests.chaos.load import Senders

RESULTS = Path(__file__).resolve().parent / "results"
SECONDS_BETWEEN_LINES = 30.0
SECONDS_TO_DRAIN = 600.0
OF_THE_LEDGER = ("lost in the ledger", "twice in the ledger", "strangers in the ledger", "undecided")
FAULTS = ("lost", "twice", "strangers", "wrongly handled", *OF_THE_LEDGER, "without a reply", "left behind", "still waiting")


@dataclass
class Played:
    """The activity and results of a run."""

    kills: dict[str, int]
    account: Account
    ledger: LedgerAccount
    rolled_back: int
    refused: int
    answered: int
    unanswered: list[str]
    left_behind: list[str]
    seconds: float

    @property
    def faults(self) -> dict[str, list[str]]:
        """All faults: lost, repeated and leftover messages."""
        found = self.account.faults | self.ledger.faults
        if self.unanswered:
            found["without a reply"] = self.unanswered
        if self.left_behind:
            found["left behind"] = self.left_behind
        if self.account.waiting:
            found["still waiting"] = [str(self.account.waiting)]
        return found


def play(given: argparse.Namespace, directory: Path) -> Played:
    """Do the whole run on a separate database."""
    from benchmarks.soak_parts import Asker, Killer, Workers, left_behind, server_and_ledger  # noqa: PLC0415
    from tests.chaos.books import account  # noqa: PLC0415
    from tests.chaos.ledger_books import ledger_account, settle  # noqa: PLC0415
    from tests.chaos.load import Senders, prepare  # noqa: PLC0415
    from tests.chaos.workers import finish  # noqa: PLC0415
    from tests.support.bench import Bench  # noqa: PLC0415

    chance, log = random.Random(given.seed), directory / "workers.log"
    with database_of(given.database) as database, server_and_ledger(database) as (server, ledger):
        bench = Bench(database)
        prepare(bench, web={"CALLBACKS": True, "INSTANCE": "soak", "CALLBACK_QUEUES": 1})
        seconds = given.minutes * 60
        senders = Senders(bench, limit=given.messages, a_second=given.messages / seconds, seed=given.seed)
        with ExitStack() as stack:
            workers = Workers(bench, server, log, stack)
            stack.enter_context(Progress(senders, workers))
            begun = time.monotonic()
            with Asker(bench) as asker, senders:
                Killer(workers, chance, kills=given.kills, server_kills=given.server_kills, seconds=seconds).run()
                asker.stop()
            workers.stop()
        finish(bench, log, SECONDS_TO_DRAIN)
        settle(bench, ledger, log)
        taken = time.monotonic() - begun
        found = account(bench)
        # A request whose sending failed may have been sent anyway.
        found.strangers = [unit for unit in found.strangers if unit not in asker.doubtful]
        unanswered = sorted(asker.unanswered - set(found.failed))
        return Played(
            kills=dict(workers.kills), account=found, ledger=ledger_account(bench, ledger, log),
            rolled_back=len(senders.rolled_back), refused=senders.refused, answered=asker.answered, unanswered=unanswered,
            left_behind=left_behind(bench, ledger), seconds=taken,
        )  # fmt: skip


class Progress:
    """A line every half minute: what was sent and killed so far."""

    def __init__(self, senders: Senders, workers: Workers) -> None:
        self._senders, self._workers = senders, workers
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        begun = time.monotonic()
        while not self._stop.wait(SECONDS_BETWEEN_LINES):
            minutes = (time.monotonic() - begun) / 60
            kills = sum(self._workers.kills.values())
            log_line(f"{minutes:5.1f} min: {self._senders.committed:,} sent, {kills} kills")


def log_line(line: str) -> None:
    """Print the progress."""
    print(f"  {line}", file=sys.stderr, flush=True)


def as_json(given: argparse.Namespace, played: Played, facts: dict[str, Any]) -> dict[str, Any]:
    """All results."""
    account = played.account
    return {
        "machine": facts,
        "options": {name: value for name, value in vars(given).items() if name != "results"},
        "seconds": round(played.seconds),
        "messages sent": len(account.sent),
        "messages rolled back": played.rolled_back,
        "transactions refused or unanswered": played.refused,
        "requests answered": played.answered,
        "effects": account.handled,
        "effects in both databases": played.ledger.in_both,
        **{f"branches in doubt, then {how}": count for how, count in played.ledger.resolved.items()},
        "in the error queue": dict(account.why_failed),
        "kills": played.kills,
        "faults": played.faults,
    }


def markdown(results: dict[str, Any]) -> str:
    """The report as Markdown."""
    facts = [f"- {name}: {value}" for name, value in results["machine"].items()]
    options = ", ".join(f"{name} {value}" for name, value in results["options"].items())
    rows = [["what", "how many"]]
    rows += [[name, f"{results[name]:,}"] for name in results if isinstance(results[name], int)]
    rows += [[f"in the error queue: {why}", f"{count:,}"] for why, count in sorted(results["in the error queue"].items())]
    rows.append(["kills", str(sum(results["kills"].values()))])
    rows += [[f"killed: {where}", str(count)] for where, count in sorted(results["kills"].items())]
    rows += [[f"**{name}**", str(len(results["faults"].get(name, [])))] for name in FAULTS]
    named = [f"- {name}: {', '.join(units[:20])}" for name, units in results["faults"].items()]
    return "\n".join(["# Soak", "", f"- options: {options}", *facts, "", *aligned(rows), "", *named]).rstrip() + "\n"


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0, help="minutes to send messages and kill workers (default 30)")
    parser.add_argument("--kills", type=int, default=60, help="kills of workers and supervisors (default 60)")
    parser.add_argument("--server-kills", type=int, default=3, help="kills of the PostgreSQL server (default 3)")
    parser.add_argument(
        "--messages", type=int, default=110_000, help="minimum number of messages, spread over the run (default 110000)"
    )
    parser.add_argument("--database", choices=("postgresql", "sqlite"), default="postgresql", help="database of the queues")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random choices (default 1)")
    parser.add_argument(
        "--results", type=Path, default=RESULTS, metavar="DIR", help="directory of the report (default: benchmarks/results)"
    )
    given = parser.parse_args(arguments)
    if given.minutes <= 0 or given.messages < 1 or min(given.kills, given.server_kills) < 0:
        parser.error("--minutes and --messages must be above 0, --kills and --server-kills 0 or more")
    return given


def main(arguments: Sequence[str]) -> int:
    """Run, print, write the files; returns 1 if a message is lost or repeated, or something is left behind."""
    given = parse(arguments)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    django.setup()
    facts = machine()
    with tempfile.TemporaryDirectory(prefix="sqlq-soak-") as directory:
        played = play(given, Path(directory))
        log = (Path(directory) / "workers.log").read_text(errors="replace")
    facts["load after"] = os.getloadavg()
    results = as_json(given, played, facts)
    text = markdown(results)
    given.results.mkdir(parents=True, exist_ok=True)
    name = given.results / f"{datetime.now(UTC):%Y-%m-%d}-soak-{given.database}"
    name.with_suffix(".md").write_text(text, encoding="utf-8")
    name.with_suffix(".json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    print(text)
    log_line(f"written to {name}.md and .json")
    if played.faults:
        (given.results / f"{name.name}.log").write_text(log, encoding="utf-8")
    return 1 if played.faults else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
