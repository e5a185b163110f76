"""Run a command as a user does, in its own process, and return its output and exit code."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from dataclasses import dataclass

from tests.support.databases import QueueDatabase


@dataclass(frozen=True, slots=True)
class Ran:
    """The result of a process."""

    code: int
    out: str
    err: str


def run(database: QueueDatabase, *arguments: str, stdin: bytes = b"") -> Ran:
    """Run `manage.py <arguments>` on the test database without a terminal."""
    answer = subprocess.run(
        [sys.executable, "-m", "django", *arguments],
        env=database.child_environment(),
        input=stdin,
        capture_output=True,
        check=False,
        timeout=120,
    )
    return Ran(answer.returncode, answer.stdout.decode(), answer.stderr.decode())


def run_on_terminal(database: QueueDatabase, *arguments: str, typed: str) -> Ran:
    """Like `run`, with a terminal as input on which one line is typed."""
    ours, theirs = pty.openpty()
    try:
        with subprocess.Popen(
            [sys.executable, "-m", "django", *arguments],
            env=database.child_environment(),
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            os.write(ours, f"{typed}\n".encode())
            out, err = process.communicate(timeout=120)
    finally:
        os.close(ours)
        os.close(theirs)
    return Ran(process.returncode, out.decode(), err.decode())


def refused(ran: Ran, code: int = 2) -> str:
    """Assert that the command refused, and return its one-line error."""
    assert ran.code == code, ran
    assert ran.out == ""
    (line,) = ran.err.splitlines()
    return line


PEEK_KEYS = {
    "row_version", "row_id", "message_id", "types", "intent", "time_sent", "expires", "flags", "correlation_id", "reply_to_address",
    "headers", "headers_text", "headers_problem", "body", "body_kind", "body_size", "body_cut",
}  # fmt: skip
