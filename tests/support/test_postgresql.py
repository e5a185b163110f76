"""The temporary server ends with its session, even if the session is killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support import postgresql_programs
from tests.support.databases import ROOT
from tests.support.processes import is_gone
from tests.support.waiting import poll_until, read_until


def test_a_killed_session_leaves_no_server_behind() -> None:
    program = (
        "import sys\n"
        "from tests.support import postgresql\n"
        "server = postgresql.ThrowAwayServer(postgresql.postgresql_programs.find_or_install())\n"
        "print(server.directory, server.data, flush=True)\n"
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as session:
        (line,) = read_until(session, session.stdout, lambda _: True, 120, what="the server was started")
        directory, data = map(Path, line.split())
        server = int((data / "postmaster.pid").read_text().split()[0])

        session.kill()

    poll_until(lambda: not directory.exists(), 60, what=f"{directory} to be removed")
    poll_until(lambda: not data.exists(), 60, what=f"{data} to be removed")
    poll_until(lambda: is_gone(server), 60, what=f"server {server} to end")


def test_a_folder_without_the_programs_is_passed_over(tmp_path: Path) -> None:
    assert postgresql_programs._inspect(tmp_path, "test") is None


def test_programs_that_do_not_run_are_passed_over(tmp_path: Path) -> None:
    for name in postgresql_programs.NEEDED:
        program = tmp_path / name
        program.write_text("#!/bin/sh\nexit 1\n")
        program.chmod(0o755)

    assert postgresql_programs._inspect(tmp_path, "test") is None
