"""The clean-up of claim checks: deletes files whose message is gone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from typing import Final

from sqlqueue_app.browsing.conversations import tables_to_search
from sqlqueue_app.conf import Settings
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.errors import counted
from sqlqueue_app.sending.claim_checks import FILE_NAME, FOLDER, ClaimChecks, claim_checks_of
from sqlqueue_app.status.instances import read_callback_queues
from sqlqueue_app.status.queues import address_book_of
from sqlqueue_app.tables.listing import TableScan, find_rows, sees_locked_rows

logger = logging.getLogger("sqlqueue.background")

EVERY_SECONDS: Final = 3600.0
# Files of the last two days are kept, because their transaction may still be open.
DAYS_KEPT: Final = 2
# Longer tables are not read completely, so it is not known which files their rows name: nothing is deleted.
SEARCHED_ROWS: Final = 100_000


class OrphanedBodies:
    """Deletes files that no row of any table names: their transaction was rolled back, or the message was purged or has expired.

    A message may move between two tables while they are read, so a file is deleted after two consecutive runs found no row with it.
    """

    def __init__(
        self, settings: Settings, claim_checks: ClaimChecks, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._settings = settings
        self._claim_checks = claim_checks
        self._now = now
        self._suspects: set[str] = set()

    def run(self) -> int:
        """Look for orphans and delete those that the previous run found too. Returns their number. Raises DatabaseError."""
        old = set(self._old_files())
        in_use = self._names_in_rows() if old else set()
        if in_use is None:
            self._suspects.clear()
            return 0
        orphans = old - in_use
        deleted = orphans & self._suspects
        for name in deleted:
            self._claim_checks.remove(name)
        self._suspects = orphans - deleted
        if deleted:
            text = "deleted %s of messages that are gone"
            logger.info(text, counted(len(deleted), "stored body", "stored bodies"), extra={"event": "bodies_deleted"})
        return len(deleted)

    def _old_files(self) -> Iterator[str]:
        storage = self._claim_checks.storage
        before = (self._now() - timedelta(days=DAYS_KEPT)).date()
        with suppress(FileNotFoundError):
            for day in storage.listdir(FOLDER)[0]:
                if _date_of(day) <= before:
                    yield from (f"{FOLDER}/{day}/{file}" for file in storage.listdir(f"{FOLDER}/{day}")[1])

    def _names_in_rows(self) -> set[str] | None:
        """The files that rows name; None if not all rows can be read."""
        alias = self._settings.database
        tables = tables_to_search(self._settings, read_callback_queues())
        if not sees_locked_rows(alias, [queue.address for queue, _ in tables]):
            return None
        scans = [TableScan(queue.address, SEARCHED_ROWS, is_delayed=is_delayed) for queue, is_delayed in tables]
        found = find_rows(alias, scans, names.CLAIM_CHECK, limit=SEARCHED_ROWS, match_case=True, with_locked=True)
        if found.longer:
            logger.info(
                "stored bodies are not cleaned up: a queue has more than %s messages",
                f"{SEARCHED_ROWS:,}",
                extra={"event": "bodies_not_searched"},
            )
            return None
        return {name for row in found.rows for name in FILE_NAME.findall((row.headers or "").replace("\\/", "/"))}


def _date_of(folder: str) -> date:
    """The day of a folder; far in the future for one that is not ours."""
    try:
        return date.fromisoformat(folder)
    except ValueError:
        return date.max


def orphaned_bodies_of(settings: Settings) -> OrphanedBodies | None:
    """The clean-up of the settings; None without CLAIM_CHECK."""
    claim_checks = claim_checks_of(settings, address_book_of(settings))
    return None if claim_checks is None else OrphanedBodies(settings, claim_checks)
