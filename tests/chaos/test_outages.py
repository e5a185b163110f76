"""The server is killed under load, connections to it are cut and stalled: nothing is lost or done twice.

Neither applies to SQLite: its database is a file, and only a process can hold a lock on it (for kills, see test_kills.py).
"""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

from django.db import connections

from tests.chaos.books import handled_more, waiting
from tests.chaos.load import Senders, prepare
from tests.chaos.servers import kill_server
from tests.chaos.workers import finish_whole, through, worker
from tests.support.bench import Bench
from tests.support.postgresql import ThrowAwayServer
from tests.support.proxy import Proxy
from tests.support.waiting import poll_until

A_SECOND = 100.0


def test_the_server_is_killed_and_stopped_under_load(
    postgresql_bench: Bench, postgresql_server: ThrowAwayServer, tmp_path: Path
) -> None:
    bench, log = postgresql_bench, tmp_path / "workers.log"
    prepare(bench)
    with worker(bench, log, "--processes", "1") as process, Senders(bench, limit=100_000, a_second=A_SECOND) as senders:
        for end in (kill_server, ThrowAwayServer.stop):
            handled_more(bench, 20)
            connections.close_all()
            end(postgresql_server)
            postgresql_server.start()
        handled_more(bench, 20)
        senders.stop()
        stop_when_done(process, bench, log)
    finish_whole(bench, log)


def test_connections_are_cut_and_commit_answers_are_lost(
    postgresql_bench: Bench, postgresql_server: ThrowAwayServer, tmp_path: Path
) -> None:
    bench, log = postgresql_bench, tmp_path / "workers.log"
    prepare(bench)
    with (
        Proxy("127.0.0.1", postgresql_server.port) as line,
        worker(bench, log, **through(line, postgresql_server, bench)) as process,
        Senders(bench, limit=100_000, a_second=A_SECOND) as senders,
    ):
        for _ in range(2):
            handled_more(bench, 20)
            line.cut()
            handled_more(bench, 20)
            # the worker cannot know whether this was committed
            line.lose_answer_to(b"COMMIT")
            poll_until(lambda: line.answers_lost, what="a lost response")
            handled_more(bench, 20)
            line.stall()
            line.resume()
        handled_more(bench, 20)
        line.stall()
        line.cut()
        line.resume()
        handled_more(bench, 20)
        senders.stop()
        stop_when_done(process, bench, log)
    finish_whole(bench, log)


def stop_when_done(process: subprocess.Popen[bytes], bench: Bench, log: Path) -> None:
    """Let the process that ran throughout finish the rest and stop in an orderly way."""
    poll_until(lambda: waiting(bench) == 0, what="an empty queue")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0, log.read_text()[-4_000:]
