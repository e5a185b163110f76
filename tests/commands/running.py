"""A command as a user runs it: a process of its own, with what it printed and how it ended."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from dataclasses import dataclass

from tests.support.databases import QueueDatabase


@dataclass(frozen=True, slots=True)
class Ran:
    """How a process ended."""

    code: int
    out: str
    err: str


def run(database: QueueDatabase, *arguments: str, stdin: bytes = b"") -> Ran:
    """`manage.py <arguments>` on the database of the test, away from any terminal."""
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
    """The same with a terminal as its input, at which a line is typed."""
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
    """The one line with which a command refused."""
    assert ran.code == code, ran
    assert ran.out == ""
    (line,) = ran.err.splitlines()
    return line


PEEK_KEYS = {
    "row_version", "row_id", "message_id", "types", "intent", "time_sent", "expires", "flags", "correlation_id", "reply_to_address",
    "headers", "headers_text", "headers_problem", "body", "body_kind", "body_size", "body_cut",
}  # fmt: skip
