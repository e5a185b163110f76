"""Many kills of the pipeline with `kill -9` while senders are active: `python -m benchmarks.spark_kills --help`.

Half of the kills happen at a named step, half at a random moment. Senders commit in an order that inverts the row versions, and
roll back a tenth of their transactions; they also record committed messages in a separate table. Finally the ids are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import django

if TYPE_CHECKING:
    from tests.support.databases import QueueDatabase

OF_A_BATCH = [
    "chosen",
    "written",
    "computed",
    "synced",
    "deleted",
    "recorded",
    "committed",
    "published one file",
    "moved",
    "published",
]
OF_COMPACTION = ["written together", "retired", "deleted one file"]
STEPS = [*OF_A_BATCH, *OF_COMPACTION]
BATCH_SIZE = 1_500
# The time in which a run starts and takes a few batches.
MAX_SECONDS = 45.0


@contextmanager
def database_of(vendor: str) -> Iterator[QueueDatabase]:
    """A database of our own, with the app's tables."""
    from django.conf import settings  # noqa: PLC0415

    from tests.support import postgresql  # noqa: PLC0415
    from tests.support.databases import QueueDatabase  # noqa: PLC0415
    from tests.support.provisioning import PostgresqlProvider, Provider, SqliteProvider  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="sqlqueue-kills-") as folder:
        provider: Provider = SqliteProvider(Path(folder)) if vendor == "sqlite" else PostgresqlProvider(postgresql.get_server())
        try:
            provider.prepare()
            settings.SQLQUEUE = {**settings.SQLQUEUE, "DATABASE": provider.alias}
            yield QueueDatabase(provider.alias, vendor, settings, provider)  # type: ignore[arg-type]
        finally:
            provider.end()


def killed_run(database: QueueDatabase, lake: Path, chance: random.Random, step: str | None) -> str:
    """A run that kills itself at a step; if it does not in time, or without a step, it is killed from here. Returns which."""
    flags = ["continuous", "compact"] if step in OF_COMPACTION or (not step and chance.random() < 0.5) else ["continuous"]
    where = step or "random"
    command = [sys.executable, "-m", "tests.pipeline.kill_app", str(lake), step or "-", str(BATCH_SIZE), *flags]
    process = subprocess.Popen(command, env=database.child_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        process.wait(MAX_SECONDS if step else chance.uniform(3, MAX_SECONDS / 2))
    except subprocess.TimeoutExpired:
        where = f"before {step}" if step else where
        os.kill(process.pid, signal.SIGKILL)
    output = process.communicate()[1].decode()
    if process.returncode != -signal.SIGKILL:
        raise SystemExit(f"a run ended by itself with {process.returncode}:\n{output}")
    return where


def play(vendor: str, kills: int, limit: int, seed: int) -> dict[str, object]:
    """The whole run on one database."""
    from tests.pipeline.senders import Senders, truth  # noqa: PLC0415
    from tests.pipeline.workshop import ids_in_the_lake, run  # noqa: PLC0415
    from tests.support.filling import install, table  # noqa: PLC0415

    chance = random.Random(seed)
    with database_of(vendor) as database, tempfile.TemporaryDirectory(prefix="sqlqueue-lake-") as folder:
        lake = Path(folder)
        install(database, ENDPOINTS={"Sales": {"AUDIT_QUEUE": "audit"}})
        audit = table(database, "audit")
        begun = time.monotonic()
        with Senders(database, audit, limit=limit):
            where = Counter(
                killed_run(database, lake, chance, STEPS[number // 2 % len(STEPS)] if number % 2 else None)
                for number in range(kills)
            )
        while audit.depth().waiting:
            run(database, lake, "-", 50_000)
        run(database, lake, "-", 50_000, "compact")
        found, sent = ids_in_the_lake(database, lake), truth(database)
        return {
            "database": vendor,
            "kills": kills,
            "at": dict(where),
            "messages": len(sent),
            "lost": len(sent - set(found)),
            "twice": sum(1 for count in found.values() if count > 1),
            "not sent": len(set(found) - sent),
            "seconds": round(time.monotonic() - begun),
        }


def main() -> None:
    """Run, and print the results; exit code 1 if a message is lost or repeated."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20, help="kills of the pipeline (default %(default)s)")
    parser.add_argument("--messages", type=int, default=40_000, help="messages to send (default %(default)s)")
    parser.add_argument("--database", choices=("postgresql", "sqlite"), default="postgresql", help="database of the queues")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random choices (default %(default)s)")
    given = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    django.setup()
    result = play(given.database, given.kills, given.messages, given.seed)
    sys.stdout.write(json.dumps(result, indent=2) + "\n")
    raise SystemExit(1 if result["lost"] or result["twice"] or result["not sent"] else 0)


if __name__ == "__main__":
    main()
