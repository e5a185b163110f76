"""The time to the first batch of a pipeline that starts, and to the next one: `python -m benchmarks.spark_start --rounds 5`.

The first batch counts from the start of `manage.py run_sqlqueue_pipeline` until its rows have left the queue on PostgreSQL, the
next one from the request to the running pipeline. A plain Spark with its own settings, which reads the same rows with JDBC and
writes them as Parquet, takes turns with it. The driver of JDBC is the one of benchmarks/spark_read.py.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import django

from benchmarks import messages
from benchmarks.spark_kills import database_of
from benchmarks.spark_read import SYSTEM_JAR, find_jar

if TYPE_CHECKING:
    from tests.support.databases import QueueDatabase

MASTER = "local[2]"
_PATIENCE_SECONDS = 300.0
_PLAIN = """
import json, sys
from pyspark.sql import SparkSession

master, options, folder, jar = sys.argv[1:]
spark = SparkSession.builder.master(master).config("spark.jars", jar).config("spark.ui.enabled", "false").getOrCreate()
spark.read.format("jdbc").options(**json.loads(options)).load().write.parquet(folder)
spark.stop()
"""


def main() -> None:
    """Measure, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="starts of each (default %(default)s)")
    parser.add_argument("--messages", type=int, default=1_000, help="messages of a batch (default %(default)s)")
    given = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    django.setup()
    found: dict[str, list[float]] = {}
    with database_of("postgresql") as database, tempfile.TemporaryDirectory(prefix="sqlqueue-start-") as folder:
        measures = _measures(database, given.messages, Path(folder))
        for round_ in range(given.rounds):
            for measure in measures:
                for name, seconds in measure(round_).items():
                    found.setdefault(name, []).append(seconds)
    for name, values in found.items():
        sys.stdout.write(f"{name:48} median {median(values):5.1f} s ({min(values):.1f} to {max(values):.1f})\n")


def _measures(database: QueueDatabase, count: int, folder: Path) -> list[Callable[[int], dict[str, float]]]:
    from tests.support.filling import install, table  # noqa: PLC0415 -- Django is set up now

    install(database, ENDPOINTS={"Sales": {"AUDIT_QUEUE": "audit"}})
    audit = table(database, "audit").qualified
    jar = find_jar(SYSTEM_JAR, folder)
    measures: list[Callable[[int], dict[str, float]]] = [
        lambda number: _pipeline(database, audit, count, folder / f"lake{number}"),
    ]
    if jar is not None:
        measures.append(lambda number: _plain(database, audit, count, jar, folder / f"plain{number}"))
    return measures


def _pipeline(database: QueueDatabase, audit: str, count: int, lake: Path) -> dict[str, float]:
    """Seconds of the first and the second batch of a pipeline that stays, and CPU seconds of all."""
    _fill(database, audit, count)
    command = [sys.executable, "-m", "django", "run_sqlqueue_pipeline", "--on-request", "--lake", str(lake), "--master", MASTER]
    used, begun = _processor_seconds(), time.monotonic()
    process = subprocess.Popen(command, env=database.child_environment(), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert process.stdin is not None
    try:
        first = _seconds_until_empty(database, audit, begun)
        _fill(database, audit, count)
        begun = time.monotonic()
        process.stdin.write(b"\n")
        process.stdin.flush()
        following = _seconds_until_empty(database, audit, begun)
    finally:
        process.stdin.close()
        process.wait()
    return {
        "pipeline: first batch": first,
        "pipeline: next batch": following,
        "pipeline: CPU time of both": _processor_seconds() - used,
    }


def _plain(database: QueueDatabase, audit: str, count: int, jar: Path, folder: Path) -> dict[str, float]:
    _fill(database, audit, count)
    server: Any = database.provider.server  # type: ignore[attr-defined]
    url = urlsplit(server.url(database.connection.settings_dict["NAME"]))
    options = {
        "url": f"jdbc:postgresql://{url.hostname}:{url.port}{url.path}",
        "user": url.username,
        "password": url.password,
        "driver": "org.postgresql.Driver",
        "dbtable": f"(SELECT seq, CAST(id AS text) AS id, expires, headers, body FROM {audit}) AS queue",
    }
    command = [sys.executable, "-c", _PLAIN, MASTER, json.dumps(options), str(folder), str(jar)]
    begun = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    seconds = time.monotonic() - begun
    _execute(database, f"TRUNCATE {audit}")
    return {"plain Spark: start, JDBC, Parquet, end": seconds}


def _fill(database: QueueDatabase, audit: str, count: int) -> None:
    _execute(
        database,
        f"INSERT INTO {audit} (id, headers, body) SELECT gen_random_uuid(), %s, %s FROM generate_series(1, %s)",
        messages.stored_headers(), messages.stored_body(), count,
    )  # fmt: skip


def _execute(database: QueueDatabase, statement: str, *values: Any) -> None:
    with database.connection.cursor() as cursor:
        cursor.execute(statement, values)


def _seconds_until_empty(database: QueueDatabase, audit: str, begun: float) -> float:
    pause = threading.Event()
    with database.connection.cursor() as cursor:
        while time.monotonic() < begun + _PATIENCE_SECONDS:
            cursor.execute(f"SELECT EXISTS (SELECT 1 FROM {audit})")
            if not cursor.fetchone()[0]:
                return time.monotonic() - begun
            pause.wait(0.02)
    raise SystemExit(f"the batch was not taken within {_PATIENCE_SECONDS:.0f} s")


def _processor_seconds() -> float:
    """The CPU seconds of child processes that have ended, including the Java that they waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
