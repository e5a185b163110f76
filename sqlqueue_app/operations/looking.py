"""Looking at tables without harm: errors in our kinds, a transaction of the caller that survives them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import transaction

from sqlqueue_app.tables.connections import connection_of, database_errors, dialect_of_connection


@contextmanager
def looking(alias: str, doing: str) -> Iterator[None]:
    """A scope for reads that may fail: raises our kinds; inside of a transaction a failure undoes only what was done in here.

    PostgreSQL refuses every further statement of a transaction after an error, hence the savepoint there.
    """
    connection = connection_of(alias)
    with database_errors(dialect_of_connection(connection), doing):
        if connection.in_atomic_block:
            with transaction.atomic(using=alias):
                yield
        else:
            yield
