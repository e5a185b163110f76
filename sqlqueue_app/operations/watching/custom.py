"""The checks of a project, run by one worker for all, each at its own interval; what goes wrong in one is its result."""

from __future__ import annotations

import hashlib
import inspect
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from functools import partial
from typing import Final

from django.db import connections
from django.utils.module_loading import autodiscover_modules

from sqlqueue_app.health_checks import HealthCheck, registry
from sqlqueue_app.instances import managed_alias
from sqlqueue_app.messages.errors import TransientError
from sqlqueue_app.operations.claims import due
from sqlqueue_app.operations.watching.results import Report, write_reports
from sqlqueue_app.scheduler import BackgroundJob
from sqlqueue_app.tables.clock import database_now
from sqlqueue_app.tables.connections import connection_of, database_errors, dialect_of_connection

logger = logging.getLogger("sqlqueue.background")

# The name of the modules that are looked for in the installed apps.
MODULE: Final = "health_checks"
LOOK_SECONDS: Final = 10.0
LONGEST_TEXT: Final = 2_000


def registered_checks() -> list[HealthCheck]:
    """The checks of the project: imports the modules `health_checks` of the installed apps. Raises what these raise."""
    autodiscover_modules(MODULE)
    return registry.all()


def claim_of_custom(name: str) -> str:
    """The claim of a check."""
    return f"check {hashlib.sha256(name.encode('utf-8', 'replace')).hexdigest()[:32]}"


def custom_check_jobs() -> list[BackgroundJob]:
    """The background job that runs the checks of the project; none where there are none."""
    checks = registered_checks()
    return [CustomChecks(checks).job()] if checks else []


class CustomChecks:
    """Runs checks of the project. One object serves one thread at a time; others may compete with it.

    `now` is the clock of the managed tables' database unless another is handed in.
    """

    def __init__(self, checks: Sequence[HealthCheck], *, now: Callable[[], datetime] | None = None) -> None:
        self._checks = {claim_of_custom(each.name): each for each in checks}
        self._alias = managed_alias()
        self._now = now or partial(database_now, self._alias)

    def job(self) -> BackgroundJob:
        """`look` as a background job: not the one of our own checks, which a check that hangs must not stop."""
        return BackgroundJob("checks of the project", LOOK_SECONDS, self._run)

    def look(self) -> list[str]:
        """Run the checks whose time has come, unless another process has; returns their names. Raises DatabaseError.

        A check that is killed with its process is run again when its next time comes.
        """
        with self._errors("look which checks are due"):
            now = self._now()
            claims = {name: _begin(now, each.every_seconds) for name, each in self._checks.items()}
            taken = [self._checks[name] for name in due(self._alias, claims)]
        for each in taken:
            text = run_check(each)
            with self._errors("write the result of a check"):
                every = max(1, round(each.every_seconds))
                failing = {"": {"text": text}} if text else {}
                write_reports(self._alias, [Report(each.name, every, failing, frozenset({""}))], self._now())
        return [each.name for each in taken]

    def _run(self) -> None:
        try:
            self.look()
        except TransientError:
            # The database is away, or (SQLite) written to by somebody who takes long: the next look comes.
            return

    def _errors(self, doing: str) -> AbstractContextManager[None]:
        return database_errors(dialect_of_connection(connection_of(self._alias)), doing)


def run_check(check: HealthCheck) -> str:
    """Call the function: what is not well, in words, or an empty text. A check that wants to end the program does not."""
    try:
        found = check.function()
    except (Exception, SystemExit) as error:
        logger.exception("the check %s failed by an exception", check.name, extra={"event": "check_raised", "check": check.name})
        # What it has left of its connections may be of no use.
        connections.close_all()
        return f"{type(error).__name__}: {error}"[:LONGEST_TEXT]
    if found is None or (isinstance(found, str) and not found.strip()):
        return ""
    if not isinstance(found, str):
        if inspect.iscoroutine(found):
            found.close()  # Python would warn of one that nobody awaits
        text = f"{check.path} has returned {found!r}: expected None when all is well, else a text that says what is not"
        return text[:LONGEST_TEXT]
    return found[:LONGEST_TEXT]


def _begin(now: datetime, seconds: float) -> datetime:
    return datetime.fromtimestamp(now.timestamp() // seconds * seconds, UTC)
