"""The background jobs of checks: what sqlqueue brings, once for the whole cluster, and what each process knows of itself."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

from django.db import transaction

from sqlqueue_app.conf import Settings
from sqlqueue_app.instances import managed_alias
from sqlqueue_app.messages.errors import TransientError
from sqlqueue_app.operations.claims import due
from sqlqueue_app.operations.in_doubt import InDoubt
from sqlqueue_app.operations.looking import looking
from sqlqueue_app.operations.queue_looks import utc_now
from sqlqueue_app.operations.watching.catalogue import BUILT_IN, SELDOM, SOON, USUAL, CheckKind
from sqlqueue_app.operations.watching.looks import CHECKS, Look, run
from sqlqueue_app.operations.watching.own import OwnChecks
from sqlqueue_app.operations.watching.results import Report, forget_unknown, write_reports
from sqlqueue_app.scheduler import BackgroundJob
from sqlqueue_app.tables.clock import database_now
from sqlqueue_app.tables.connections import connection_of, database_errors, dialect_of_connection

logger = logging.getLogger("sqlqueue.background")

# A look that comes so late leaves the processes to the next one: by then they have told that they live, every ten seconds.
AWAY: Final = timedelta(seconds=1.5 * SOON)
CLAIM_PREFIX: Final = "checks every "


class Watching:
    """Runs the checks that sqlqueue brings. One object serves one thread at a time; others may compete with it.

    At rest a look is one transaction with two statements, and where this process is the one that runs the checks another one.
    `now` is the clock of the managed tables' database unless another is handed in, `local` that of the machine.
    """

    def __init__(
        self,
        settings: Settings,
        own: OwnChecks,
        in_doubt: InDoubt,
        *,
        now: Callable[[], datetime] | None = None,
        local: Callable[[], datetime] = utc_now,
    ) -> None:
        self._settings = settings
        self._own = own
        self._in_doubt = in_doubt
        self._alias = managed_alias()
        self._now = now or partial(database_now, self._alias)
        self._local = local
        self._looked_at: datetime | None = None
        # Another project on this database has queues and a claim of its own.
        names = "\n".join([*sorted(settings.senders), *sorted(settings.schedules)])
        self._hash = hashlib.sha256(names.encode()).hexdigest()[:16]

    def job(self) -> BackgroundJob:
        """`look` as a background job."""
        return BackgroundJob("checks", SOON, self._run)

    def look(self) -> list[str]:
        """Run the checks whose time has come, unless another process has; returns their names. Raises DatabaseError.

        A check that cannot be run is logged, and says nothing until it can.
        """
        with database_errors(dialect_of_connection(connection_of(self._alias)), "run checks"):
            with self._together():
                now = self._now()
                claims = {claims_begin(seconds) + self._hash: seconds for seconds in (SOON, USUAL, SELDOM)}
                taken = due(self._alias, {name: _begin(now, seconds) for name, seconds in claims.items()})
            of_all = {claims[name] for name in taken}
            if self._was_away(now):
                of_all.discard(SOON)
            kinds = [kind for kind in BUILT_IN.values() if kind.name in CHECKS and kind.every_seconds in of_all]
            own = self._own.reports(self._alias, now, self._local())
            if not kinds and not own:
                return []
            with self._together():
                look = Look(self._settings, self._alias, now, self._in_doubt)
                found = [report for kind in kinds if (report := self._run_one(kind, look)) is not None]
                # Where no process has said anything of itself, all is well.
                found += [_nothing_known(kind) for kind in _of_processes(of_all) if kind.name not in {each.name for each in own}]
                write_reports(self._alias, [*found, *own], now)
                if SELDOM in of_all:
                    forget_unknown(self._alias, now)
        return [kind.name for kind in kinds]

    def _was_away(self, now: datetime) -> bool:
        """Whether this process could not look for a while: where the database was away, none could tell that it lives."""
        last, self._looked_at = self._looked_at, now
        return last is not None and now - last > AWAY

    def _run(self) -> None:
        try:
            self.look()
        except TransientError:
            # The database is away, or (SQLite) written to by somebody who takes long: the next look comes.
            return

    def _run_one(self, kind: CheckKind, look: Look) -> Report | None:
        try:
            with looking(self._alias, f"run the check {kind.name}"):
                return run(kind, look)
        except TransientError:
            raise
        except Exception as error:  # noqa: BLE001 - settings that one check cannot use are no reason to run none
            logger.warning("the check %s could not be run: %s", kind.name, error, extra={"event": "check_not_run"})
            return None

    def _together(self) -> AbstractContextManager[object]:
        """One transaction; none on SQLite, where it would keep others from writing."""
        if connection_of(self._alias).vendor == "sqlite":
            return nullcontext()
        return transaction.atomic(using=self._alias)


def claims_begin(seconds: int) -> str:
    """How the claims of the checks begin that are run every so many seconds: one for each project on the database."""
    return f"{CLAIM_PREFIX}{seconds} s "


def _of_processes(of_all: set[int]) -> list[CheckKind]:
    """The checks that processes report of themselves, and whose time has come."""
    return [kind for kind in BUILT_IN.values() if kind.name not in CHECKS and kind.every_seconds in of_all]


def _nothing_known(kind: CheckKind) -> Report:
    return Report(kind.name, kind.every_seconds)


def _begin(now: datetime, seconds: float) -> datetime:
    return datetime.fromtimestamp(now.timestamp() // seconds * seconds, UTC)
