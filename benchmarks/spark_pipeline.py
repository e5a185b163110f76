"""The whole pipeline compared with a raw COPY of the same rows, on PostgreSQL.

    python -m benchmarks.spark_pipeline --messages 1000000 10000000

A batch runs first to warm up. With several numbers of messages, one run measures each of them. Headers have about 600 bytes and
bodies 1 KB, as in the other benchmarks. The memory is the peak resident size of this process and of Java.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import django

from benchmarks import messages
from benchmarks.spark_kills import database_of

MAX_BATCH = 500_000


def main() -> None:
    """Measure, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--messages", type=int, nargs="+", default=[500_000], help="numbers of messages to measure (default 500000)"
    )
    given = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    django.setup()
    for found in measure(given.messages):
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()


def measure(counts: Sequence[int]) -> Iterator[dict[str, object]]:
    """One run, with a measurement for each number of messages, one after the other."""
    from sqlqueue_app.conf import get_settings  # noqa: PLC0415 -- Django is set up now
    from sqlqueue_app.pipeline.run import options_of, run_pipeline  # noqa: PLC0415
    from sqlqueue_app.receiving.stopping import StopSignal  # noqa: PLC0415
    from sqlqueue_app.spark.session import spark_running  # noqa: PLC0415
    from tests.support import directories  # noqa: PLC0415
    from tests.support.filling import install, table  # noqa: PLC0415

    # 10,000,000 rows are 20 GB, for which there is no room in memory
    directories.MEMORY = Path(tempfile.gettempdir())
    with database_of("postgresql") as database, tempfile.TemporaryDirectory(prefix="sqlqueue-lake-") as lake:
        install(database, ENDPOINTS={"Sales": {"AUDIT_QUEUE": "audit"}})
        audit = table(database, "audit")
        settings = get_settings()
        options = options_of(settings, lake=lake, master="local[2]", batch_size=MAX_BATCH)
        with spark_running("local[2]") as session:
            java = session.sparkContext._gateway.proc.pid  # type: ignore[union-attr,unused-ignore]
            _fill(audit.qualified, database.connection, min([*counts, MAX_BATCH]))
            run_pipeline(settings, options, StopSignal())
            for count in counts:
                _fill(audit.qualified, database.connection, count)
                copied = _seconds_of_copy(audit.qualified, database.connection)
                begun = time.monotonic()
                done = run_pipeline(settings, options, StopSignal())
                seconds = time.monotonic() - begun
                assert done.messages == count
                yield {
                    "messages": count,
                    "pipeline_seconds": round(seconds, 2),
                    "microseconds_per_message": round(seconds / count * 1e6, 1),
                    "copy_seconds": round(copied, 2),
                    "ratio": round(copied / seconds, 3),
                    "driver_mb": _peak(os.getpid()),
                    "java_mb": _peak(_youngest_child(java)),
                }


def _fill(qualified: str, connection: object, count: int) -> None:
    with connection.cursor() as cursor:  # type: ignore[attr-defined]
        cursor.execute(
            f"INSERT INTO {qualified} (id, headers, body) SELECT gen_random_uuid(), %s, %s FROM generate_series(1, %s)",
            [messages.stored_headers(), messages.stored_body(), count],
        )
        cursor.execute(f"VACUUM ANALYZE {qualified}")


def _seconds_of_copy(qualified: str, connection: object) -> float:
    """A raw COPY of all columns, as text, read by this process and discarded."""
    with connection.cursor() as cursor:  # type: ignore[attr-defined]
        begun = time.monotonic()
        with cursor.copy(f"COPY {qualified} TO STDOUT") as rows:
            for _ in rows:
                pass
        return time.monotonic() - begun


def _youngest_child(pid: int) -> int:
    """Java itself, if a script has started it."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return int(children[0]) if children and _peak(int(children[0])) > _peak(pid) else pid


def _peak(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    # a process that has just ended has no memory
    found = next((line for line in status.splitlines() if line.startswith("VmHWM")), "VmHWM: 0 kB")
    return int(found.split()[1]) // 1024


if __name__ == "__main__":
    main()
