"""The disk is full: the worker keeps polling and loses nothing; once there is space, all is handled or in the error queue.

PostgreSQL: the tables of effects and failed messages are in a tablespace on a file system of 1 MB that the test fills. Only root
can mount one; otherwise the test is skipped. SQLite: the page limit of its file is the current number of pages.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from django.db import connections

from tests.chaos.bad_messages import effects, prepare, send_bad
from tests.chaos.books import assert_no_lock, failed_units
from tests.chaos.workers import alias_with, worker
from tests.support.bench import Bench
from tests.support.postgresql import ThrowAwayServer
from tests.support.waiting import poll_until
from tests.support.worker_processes import wait_until_released


def assert_each_once(bench: Bench, ids: list[str]) -> None:
    """Assert that each message is handled or in the error queue."""
    assert sorted(effects(bench) + [unit for unit, _ in failed_units(bench)]) == sorted(ids)
    wait_until_released(bench)
    assert_no_lock(bench)


@contextmanager
def tiny_file_system(server: ThrowAwayServer) -> Iterator[Path]:
    """A directory owned by the server's user on a file system of 1 MB."""
    place = server.directory / "tiny"
    place.mkdir()
    try:
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount here")
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        (place / "space").mkdir()
        owner = server.data.stat()
        os.chown(place / "space", owner.st_uid, owner.st_gid)
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@contextmanager
def in_tablespace(bench: Bench, directory: Path, *tables: str) -> Iterator[None]:
    """Keep the tables in a tablespace there during the block."""

    def execute(statement: str) -> None:
        with connections[bench.database.alias].cursor() as cursor:
            cursor.execute(statement)

    execute(f"CREATE TABLESPACE chaos_tiny LOCATION '{directory}'")
    try:
        for table in tables:
            execute(f"ALTER TABLE {table} SET TABLESPACE chaos_tiny")
        yield
    finally:
        for table in tables:
            execute(f"ALTER TABLE {table} SET TABLESPACE pg_default")
        execute("DROP TABLESPACE chaos_tiny")


def fill(file: Path) -> None:
    """Write until no space is left."""
    with contextlib.suppress(OSError), file.open("wb", buffering=0) as output:
        while True:
            output.write(b"x" * 4_096)


def test_postgresql_has_no_room(postgresql_bench: Bench, postgresql_server: ThrowAwayServer, tmp_path: Path) -> None:
    bench, log = postgresql_bench, tmp_path / "worker.log"
    prepare(bench)
    tables = ("effects", bench.table("error").qualified)
    with tiny_file_system(postgresql_server) as place, in_tablespace(bench, place / "space", *tables):
        fill(place / "filler")
        ids = send_bad(bench, "Nothing", 40, tmp_path)
        with worker(bench, log, endpoints=("Sales",)) as process:
            poll_until(lambda: "message_stays" in log.read_text(), what="a message stays because the error queue has no room")
            assert len(bench.rows("Sales")) == len(ids)
            assert "No space left on device" in log.read_text()
            (place / "filler").unlink()
            poll_until(lambda: not bench.rows("Sales"), what="all messages have left the queue")
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        assert_each_once(bench, ids)
    assert_each_once(bench, ids)


def test_sqlite_has_no_room(sqlite_bench: Bench, tmp_path: Path) -> None:
    bench, log = sqlite_bench, tmp_path / "worker.log"
    prepare(bench)
    with bench.database.connection.cursor() as cursor:
        cursor.execute("CREATE TABLE ballast (content text NOT NULL)")
        cursor.execute("PRAGMA page_count")
        (pages,) = cursor.fetchone()
    ids = send_bad(bench, "Nothing", 10, tmp_path) + send_bad(bench, "Big", 10, tmp_path) + send_bad(bench, "Beside", 10, tmp_path)
    options = connections.settings[bench.database.alias]["OPTIONS"]
    limited = {**options, "init_command": f"{options['init_command']}; PRAGMA max_page_count={pages}"}
    with worker(bench, log, endpoints=("Sales",), **alias_with(bench, OPTIONS=limited)) as process:
        poll_until(lambda: "database or disk is full" in log.read_text(), what="the database is full")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    with worker(bench, log, "--until-empty", endpoints=("Sales",)) as process:
        assert process.wait(60) == 0
    assert_each_once(bench, ids)
    with bench.database.connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM ballast")
        assert cursor.fetchone() == (sum(name.startswith("Big") for name in effects(bench)),)
