"""Connections of Spark's workers: small answers as rows, large ones as Arrow batches, by what each driver does best."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import pyarrow as pa

from sqlqueue_app.databases.dialect import Dialect, DialectName, RowRange, dialect
from sqlqueue_app.databases.statements import Rendered
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.errors import DatabaseError
from sqlqueue_app.spark.source import on_postgresql, on_sqlite, on_sqlserver
from sqlqueue_app.spark.source.urls import Database


class Connection(Protocol):
    """One connection, of one thread. Nothing that it does waits for a row, or has anybody wait for one."""

    def fetch(self, statement: Rendered | str, **values: object) -> list[tuple[Any, ...]]:
        """All rows of a small answer."""
        ...

    def batches(self, table: str, columns: Iterable[str], rows: RowRange, batch_size: int) -> Iterator[pa.RecordBatch]:
        """The rows of a range in batches of about so many, or fewer where they are large."""
        ...

    def execute(self, sql: str) -> None:
        """A statement without an answer."""
        ...

    def stage(self, address: QueueAddress, qualified: str, rows: Iterable[dict[str, Any]]) -> int:
        """Fill a table of staged messages, in portions that are committed each; returns how many rows there were."""
        ...

    def transaction(self) -> AbstractContextManager[None]:
        """A context whose statements are committed together at its end, or rolled back on an error."""
        ...

    def close(self) -> None:
        """Close it; a cursor that is still open is given up."""
        ...


class _Driver(Protocol):
    def connect(self, database: Database, known: Dialect, *, writes: bool) -> Connection: ...

    def errors(self) -> tuple[type[Exception], ...]: ...


_DRIVERS: Mapping[DialectName, _Driver] = {"postgresql": on_postgresql, "sqlite": on_sqlite, "sqlserver": on_sqlserver}


@contextmanager
def connected(database: Database, doing: str, *, writes: bool = False) -> Iterator[Connection]:
    """A context with a new connection, closed at its end. Errors of the database come as ours; `doing` completes "failed to".

    Without `writes` it reads only, where the database can tell. ConfigurationError where the driver is not installed.
    """
    driver = _DRIVERS[database.dialect]
    known = dialect(database.dialect)
    # first of all, because it says whether there is a driver
    errors = (*driver.errors(), OSError, pa.ArrowException)
    try:
        connection = driver.connect(database, known, writes=writes)
        try:
            yield connection
        finally:
            connection.close()
    except errors as error:
        kind = known.error_kind(error) or DatabaseError
        said = " ".join(line.strip() for line in database.without_password(str(error)).splitlines()[:3])
        # The driver's own error stays out: it may show the password.
        raise kind(f"failed to {doing} ({database.shown}): {said or type(error).__name__}") from None
