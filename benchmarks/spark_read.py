"""Reading a queue with Spark: the data source `sqlqueue` compared with Spark's JDBC reader and the PostgreSQL driver, in turns.

    python benchmarks/spark_read.py --rows 1000000 --rounds 5 --partitions 2

The rows (600 B headers, 1 KB bodies) go to Spark's `noop` sink. Every reader runs once before the first round, so that Java is
warm and the table is cached. The driver is /usr/share/java/postgresql.jar from Debian's libpostgresql-jdbc-java, or `--jar`. If
it is missing, the package is downloaded from Debian for this run only; without it, only the data source is measured.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import psycopg
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from sqlqueue_app.spark.session import spark_running
from tests.support import postgresql, postgresql_programs

SYSTEM_JAR = Path("/usr/share/java/postgresql.jar")
PACKAGE = "libpostgresql-jdbc-java"
OPTIONS = ["max_connections=50", "shared_buffers=256MB", "max_wal_size=4GB", "checkpoint_timeout=1h", "fsync=off"]
FETCH_SIZES = (1_000, 10_000)
TABLE = 'CREATE TABLE "Bench" (id uuid PRIMARY KEY, expires timestamp, headers text NOT NULL, body bytea, seq bigserial UNIQUE)'
FILL = """
INSERT INTO "Bench" (id, headers, body)
SELECT
    gen_random_uuid(),
    '{"NServiceBus.MessageId":"' || number || '","NServiceBus.EnclosedMessageTypes":"Bench.Order","x":"'
        || repeat(md5(number::text), 16) || '"}',
    decode(repeat(md5((-number)::text), 32), 'escape')
FROM generate_series(1, %s) AS number
"""
Readers = dict[str, Callable[[], DataFrame]]


def main() -> None:
    """Make the table, measure, print the rates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the queue (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="repetitions of each read (default %(default)s)")
    parser.add_argument("--partitions", type=int, default=2, help="partitions to read in parallel (default %(default)s)")
    parser.add_argument("--jar", type=Path, default=SYSTEM_JAR, help="JDBC driver of PostgreSQL (default %(default)s)")
    options = parser.parse_args()
    programs = postgresql_programs.find_or_install()
    server = postgresql.ThrowAwayServer(programs, OPTIONS)
    try:
        with tempfile.TemporaryDirectory() as folder:
            jar = find_jar(options.jar, Path(folder))
            with server.connect() as admin:
                admin.execute("CREATE DATABASE bench")
            with server.connect("bench") as connection:
                _fill(connection, options.rows)
            conf = {"spark.jars": str(jar)} if jar else {}
            with spark_running(f"local[{options.partitions}]", conf) as spark:
                readers = {"sqlqueue": lambda: _source(spark, server.url("bench"), options.partitions)}
                if jar:
                    readers |= _jdbc(spark, server, options.rows, options.partitions)
                _measure(readers, options.rows, options.rounds)
    finally:
        server.close()


def find_jar(given: Path, folder: Path) -> Path | None:
    """The JDBC driver: the given one, or Debian's, downloaded to the folder; None with a line about it if there is neither."""
    if given.is_file():
        return given
    for command in (["apt-get", "download", PACKAGE], ["sh", "-c", "dpkg-deb -x *.deb ."]):
        if subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode:
            print(f"JDBC is not measured: there is no {given}, and Debian's package {PACKAGE} cannot be had")
            return None
    return (folder / "usr/share/java/postgresql.jar").resolve()


def _fill(connection: psycopg.Connection[tuple[object, ...]], rows: int) -> None:
    connection.execute(TABLE)
    connection.execute(FILL, [rows])
    connection.execute('VACUUM ANALYZE "Bench"')


def _source(spark: SparkSession, url: str, partitions: int) -> DataFrame:
    return spark.read.format("sqlqueue").options(url=url, queue="Bench", partitions=partitions).load()


def _jdbc(spark: SparkSession, server: postgresql.ThrowAwayServer, rows: int, partitions: int) -> Readers:
    def reader(fetch_size: int) -> Callable[[], DataFrame]:
        options: dict[str, str | int] = {
            "url": f"jdbc:postgresql://127.0.0.1:{server.port}/bench",
            "user": "postgres",
            "password": server.password,
            "driver": "org.postgresql.Driver",
            "dbtable": '(SELECT seq, CAST(id AS text) AS id, expires, headers, body FROM "Bench") AS queue',
            "fetchsize": fetch_size,
            # what our own reader finds out by itself
            "partitionColumn": "seq",
            "lowerBound": 1,
            "upperBound": rows,
            "numPartitions": partitions,
        }
        return lambda: spark.read.format("jdbc").options(**options).load()

    return {f"JDBC, fetch size {size:,}": reader(size) for size in FETCH_SIZES}


def _processor_seconds() -> float:
    """The CPU seconds of Java and of the Python workers below it, including those that have ended."""
    stats = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
                stats[int(entry.name)] = (int(fields[1]), sum(map(int, fields[11:15])))
    gateway: Any = SparkContext._gateway
    ours = {gateway.proc.pid}
    for _ in range(5):
        ours |= {process for process, (parent, _) in stats.items() if parent in ours}
    return sum(stats[process][1] for process in ours if process in stats) / os.sysconf("SC_CLK_TCK")


def _measure(readers: Readers, rows: int, rounds: int) -> None:
    rates: dict[str, list[float]] = {name: [] for name in readers}
    used: dict[str, list[float]] = {name: [] for name in readers}
    for round_ in range(rounds + 1):
        for name, reader in readers.items():
            began, before = time.perf_counter(), _processor_seconds()
            reader().write.format("noop").mode("overwrite").save()
            if round_:
                rates[name].append(rows / (time.perf_counter() - began))
                used[name].append(_processor_seconds() - before)
    print(f"\n{rows:,} rows, {rounds} rounds in turns: thousands of rows per second; CPU seconds of Spark, including Python\n")
    for name, found in rates.items():
        print(f"{name:24} median {median(found) / 1000:6.0f}   {median(used[name]):5.1f} s   rounds {_rounds(found)}")
    jdbc = [median(found) for name, found in rates.items() if name.startswith("JDBC")]
    if jdbc:
        ratio = median(rates["sqlqueue"]) / max(jdbc)
        print(f"\nsqlqueue is {ratio:.2f} of the faster JDBC; the goal, at least as fast, is {'met' if ratio >= 1 else 'MISSED'}")


def _rounds(rates: list[float]) -> str:
    return " ".join(f"{rate / 1000:.0f}" for rate in rates)


if __name__ == "__main__":
    main()
