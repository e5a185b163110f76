"""Writing what the endpoints of a process have counted into the table of endpoint samples, every 10 seconds and at its end."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial

from django.db import transaction

from sqlqueue_app.instances import managed_alias
from sqlqueue_app.messages.errors import TransientError
from sqlqueue_app.models import EndpointSample
from sqlqueue_app.operations.endpoint_totals import add_to_totals
from sqlqueue_app.operations.sample_storage import FINEST
from sqlqueue_app.receiving.measures import Counted, Measures
from sqlqueue_app.scheduler import BackgroundJob
from sqlqueue_app.tables.clock import database_now
from sqlqueue_app.tables.connections import connection_of, database_errors, dialect_of_connection

logger = logging.getLogger("sqlqueue.worker")

WRITE_SECONDS = float(FINEST.seconds)
_WRITTEN_AT_ONCE = 50


class Measuring:
    """Writes the measures of endpoints: triples of its name, the name of its instance and its measures. One thread at a time.

    `now` is the clock of the managed tables' database unless another is handed in. A sample belongs to the time in which it is
    written; what cannot be written is kept for the next time.
    """

    def __init__(self, endpoints: Iterable[tuple[str, str, Measures]], *, now: Callable[[], datetime] | None = None) -> None:
        self._endpoints = list(endpoints)
        self._alias = managed_alias()
        self._now = now or partial(database_now, self._alias)

    def job(self) -> BackgroundJob:
        """`write` as a background job."""
        return BackgroundJob("measures of endpoints", WRITE_SECONDS, self._run)

    def _run(self) -> None:
        try:
            self.write()
        except TransientError:
            # The database is away, or (SQLite) written to by somebody who takes long: later, then.
            return

    def write(self) -> int:
        """Write what was counted since the last time, in one transaction; returns how many rows that were. Raises DatabaseError.

        Where nothing was counted nothing is asked of the database.
        """
        taken = [(endpoint, instance, measures, measures.take()) for endpoint, instance, measures in self._endpoints]
        if not any(counted for *_, counted in taken):
            return 0
        try:
            with database_errors(dialect_of_connection(connection_of(self._alias)), "write the measures of endpoints"):
                begin = FINEST.begin_of(self._now())
                rows = [row for endpoint, instance, _, counted in taken for row in _rows(endpoint, instance, begin, counted)]
                with transaction.atomic(using=self._alias):
                    EndpointSample.objects.using(self._alias).bulk_create(rows, batch_size=_WRITTEN_AT_ONCE)
                    add_to_totals(self._alias, rows)
        except BaseException:
            for _endpoint, _instance, measures, counted in taken:
                measures.put_back(counted)
            raise
        return len(rows)

    def write_at_the_end(self) -> None:
        """As `write`, for the end of a process, which must not fail on it: it is logged, and what was counted is lost."""
        try:
            self.write()
        except Exception as error:  # noqa: BLE001 - see above
            text = "the last measures of this process could not be written: %s"
            logger.warning(text, error, extra={"event": "measures_lost"})


def _rows(endpoint: str, instance: str, begin: datetime, counted: Mapping[str, Counted]) -> Iterator[EndpointSample]:
    for message_type, of_type in counted.items():
        yield EndpointSample(
            endpoint=endpoint,
            instance=instance,
            message_type=message_type,
            taken_at=begin,
            seconds=FINEST.seconds,
            **dataclasses.asdict(of_type),
        )
