"""A command as a user runs it: a process of its own, with what it printed and how it ended."""

from __future__ import annotations

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


def refused(ran: Ran, code: int = 2) -> str:
    """The one line with which a command refused."""
    assert ran.code == code, ran
    assert ran.out == ""
    (line,) = ran.err.splitlines()
    return line
