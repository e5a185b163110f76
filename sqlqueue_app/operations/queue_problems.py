"""What is wrong with a queue's table, in words, with what mends it."""

from __future__ import annotations

import enum
import shlex
from dataclasses import dataclass

from sqlqueue_app.databases.layouts import QueueLayout
from sqlqueue_app.messages.errors import ConnectionLost, DatabaseError, QueueNotFound, TableMismatch
from sqlqueue_app.operations.known_queues import KnownQueue
from sqlqueue_app.tables.installation import Finding, FindingKind, findings_of_layout, inspect_tables
from sqlqueue_app.tables.queue import QueueTable

INSTALL_COMMAND = "python manage.py sqlqueue_install"
MIGRATE_COMMAND = "python manage.py migrate"


class ProblemKind(enum.StrEnum):
    """What kind of thing is wrong; stable, for machines."""

    MISSING = "missing"
    MISMATCH = "mismatch"
    UNREADABLE = "unreadable"
    NO_EXPIRES_INDEX = "no_expires_index"
    NON_UNICODE_HEADERS = "non_unicode_headers"
    DEAD_ROWS = "dead_rows"


@dataclass(frozen=True, slots=True)
class QueueProblem:
    """One problem. `sql` and `command` are two ways to mend it; empty where there is none of the kind."""

    kind: ProblemKind
    text: str
    sql: str = ""
    command: str = ""

    @property
    def stops_work(self) -> bool:
        """Whether nothing can be sent or received; otherwise it is a matter of speed or of foreign letters."""
        return self.kind in (ProblemKind.MISSING, ProblemKind.MISMATCH, ProblemKind.UNREADABLE)


_KINDS = {
    FindingKind.MISSING: ProblemKind.MISSING,
    FindingKind.MISMATCH: ProblemKind.MISMATCH,
    FindingKind.NO_EXPIRES_INDEX: ProblemKind.NO_EXPIRES_INDEX,
    FindingKind.NON_UNICODE_HEADERS: ProblemKind.NON_UNICODE_HEADERS,
}


def problem_of_error(table: QueueTable, queue: KnownQueue, layout: str, error: DatabaseError) -> tuple[QueueProblem, bool | None]:
    """What an error of reading the table means, and whether the table exists (None: not known)."""
    if isinstance(error, QueueNotFound):
        try:
            finding = _first(table, queue, layout)
        except ConnectionLost:
            raise
        except DatabaseError:
            finding = None
        if finding is not None and finding.kind is FindingKind.MISSING:
            return QueueProblem(ProblemKind.MISSING, finding.text, finding.sql, _install_command(queue)), False
        return QueueProblem(ProblemKind.MISSING, str(error), command=_install_command(queue)), False
    if isinstance(error, TableMismatch):
        return QueueProblem(ProblemKind.MISMATCH, str(error)), True
    return QueueProblem(ProblemKind.UNREADABLE, str(error)), None


def problem_of_layout(table: QueueTable, queue: KnownQueue, layout: str) -> QueueProblem | None:
    """What could be better at a table that works; asks the database only where the known columns give a reason to."""
    found = table.layout()
    if found.expires_index and found.unicode_headers:
        return None
    finding = _first(table, queue, layout)
    if finding is None:
        # It was mended since this process looked the columns up.
        table.forget_layout()
        return None
    return QueueProblem(_KINDS[finding.kind], finding.text, finding.sql)


def problem_of_found_layout(table: QueueTable, queue: KnownQueue, layout: str, found: QueueLayout) -> QueueProblem | None:
    """The same for columns that were looked up just now; asks no database."""
    finding = next(iter(findings_of_layout(table.dialect, queue.planned, found, layout)), None)
    return None if finding is None else QueueProblem(_KINDS[finding.kind], finding.text, finding.sql)


def _install_command(queue: KnownQueue) -> str:
    if queue.instance is None:
        return INSTALL_COMMAND
    return f"{INSTALL_COMMAND} --instance {shlex.quote(queue.instance)}"


def _first(table: QueueTable, queue: KnownQueue, layout: str) -> Finding | None:
    findings = inspect_tables(table.alias, [queue.planned], layout=layout)
    return findings[0] if findings else None
