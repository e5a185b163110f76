"""Kill a PostgreSQL server as the OOM killer does: its first process, without notice to the others."""

from __future__ import annotations

import os
import signal

from tests.support.postgresql import ThrowAwayServer
from tests.support.processes import children_of, is_gone
from tests.support.waiting import poll_until


def kill_server(server: ThrowAwayServer) -> None:
    """`kill -9` the first process; returns when all others have noticed and ended, so that the server can start again."""
    first = int((server.data / "postmaster.pid").read_text().splitlines()[0])
    others = children_of(first)
    os.kill(first, signal.SIGKILL)
    poll_until(lambda: all(is_gone(pid) for pid in (first, *others)), what="all processes of the server are gone")
    # Until its exit code is read, the dead process keeps its id and the next server would take it for alive.
    for lock in (server.data / "postmaster.pid", *server.directory.glob(".s.PGSQL.*.lock")):
        lock.unlink(missing_ok=True)
