"""Managed tables written by receive transactions: the log of two-phase commit, and the ids of handled messages."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from django.db import IntegrityError, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from sqlqueue_app.dialects.dialect import Rendered
from sqlqueue_app.messages.errors import ConfigurationError, ConstraintViolation, DatabaseError, LockTimeout
from sqlqueue_app.policies.rates import RateState
from sqlqueue_app.tables.connections import connection_of, database_errors, dialect_of_connection, fetch_all, run
from sqlqueue_app.tables.queue import all_or_none

# The maximum wait for a transaction that has recorded itself and is about to commit.
_DECISION_MILLISECONDS: Final = "1000"


def uuid_value(connection: BaseDatabaseWrapper, value: uuid.UUID) -> str:
    """A UUID as Django writes it into a UUIDField: plain digits if the database has no such type."""
    return str(value) if connection.features.has_native_uuid_field else value.hex


def key_of(address: str, text: str) -> uuid.UUID:
    """The key of a message of the queue with this canonical address, by its id or by the key that its sender has given it."""
    # Senders choose both, so use 128 bits of a cryptographic digest, which prevents collisions for texts of any length.
    return uuid.UUID(bytes=hashlib.blake2b(f"{address}\0{text}".encode("utf-8", "surrogatepass"), digest_size=16).digest())


class _NotRecorded(Exception):
    """Rolls back the transaction of a query, so that it leaves nothing."""


class TransactionLog:
    """The coordinator's log of two-phase commit: a transaction in it is committed, wherever its branches are.

    A transaction records itself before it prepares its first branch, in the receive transaction. So the database decides about
    any prepared branch: inserting the same id waits while that transaction is open, fails if it was committed, and succeeds if it
    never will be. No decision depends on a clock or a time limit.

    Holds no connection: each call uses the calling thread's Django connection. Shared by threads. `table` and `coordinators` are
    the names of the managed tables, `kept_in` is the alias to which the routers send them.
    """

    def __init__(self, alias: str, table: str, coordinators: str, *, kept_in: str) -> None:
        self.alias = alias
        self._kept_in = kept_in
        self._dialect = dialect_of_connection(connection_of(alias))
        self._record = self._dialect.statement("record_transaction", table=self._dialect.quote(table))
        self._recorded = self._dialect.statement("recorded_transaction", table=self._dialect.quote(table))
        self._coordinators = self._dialect.quote(coordinators)
        self._coordinator: uuid.UUID | None = None
        self._lock = threading.Lock()

    @property
    def is_here(self) -> bool:
        """Whether the log is in the database of the queues, as it must be."""
        return self._kept_in == self.alias

    def coordinator(self) -> uuid.UUID:
        """The name of this database in the ids of branches, created when a worker starts.

        Raises ConfigurationError if the log is kept in another database; DatabaseError if the database cannot be queried, or if
        there is no name yet inside a transaction.
        """
        if not self.is_here:
            raise ConfigurationError(recorded_elsewhere(self._kept_in, self.alias))
        with self._lock:
            if self._coordinator is not None:
                return self._coordinator
        with database_errors(self._dialect, "look up the coordinator of two-phase commit"):
            found = self._known() or self._made(connection_of(self.alias))
        with self._lock:
            self._coordinator = found
        return found

    def has_coordinator(self) -> bool:
        """Whether there is a name, which every branch requires; creates none. DatabaseError if the query fails."""
        with self._lock:
            if self._coordinator is not None:
                return True
        with database_errors(self._dialect, "look up the coordinator of two-phase commit"):
            return self._known() is not None

    def _known(self) -> uuid.UUID | None:
        rows = fetch_all(connection_of(self.alias), self._dialect.statement("coordinator", table=self._coordinators))
        return uuid.UUID(str(rows[0][0])) if rows else None

    def _made(self, connection: BaseDatabaseWrapper) -> uuid.UUID:
        if connection.in_atomic_block:
            # A rollback would remove the name, and orphan the branches under it.
            raise DatabaseError("the coordinator of two-phase commit has no name yet: restart the worker, which creates it")
        made = self._dialect.statement("make_coordinator", table=self._coordinators)
        # If two start at once, the second finds the row of the first.
        with contextlib.suppress(IntegrityError), all_or_none(self.alias):
            run(connection, made, id=uuid_value(connection, uuid.uuid4()))
        if (found := self._known()) is None:
            raise DatabaseError("the row of the coordinator disappeared right after it was created")
        return found

    def record(self, transaction_id: uuid.UUID, queue: str, branches: Sequence[str]) -> None:
        """Record the transaction, with the aliases of its branches, inside the open database transaction.

        Waits while another transaction that has recorded it is open. Raises ConstraintViolation if it is recorded.
        """
        with database_errors(self._dialect, "record a distributed transaction"):
            values = {
                "id": uuid_value(connection_of(self.alias), transaction_id),
                "queue": queue,
                "branches": json.dumps(list(branches)),
            }
            run(connection_of(self.alias), self._record, **values)

    def is_committed(self, transaction_id: uuid.UUID) -> bool | None:
        """Whether a transaction with prepared branches is committed; None while it is open. Do not call inside a transaction.

        False is final: its process has lost the transaction. Raises DatabaseError if the database cannot be queried.
        """
        errors = database_errors(self._dialect, "query the log of distributed transactions")
        try:
            with errors, transaction.atomic(using=self.alias, durable=True), self._limited_wait():
                self.record(transaction_id, "", ())
                raise _NotRecorded
        except _NotRecorded:
            return False
        except ConstraintViolation:
            return True
        except LockTimeout:
            return None

    @property
    def has_one_writer(self) -> bool:
        """Whether a writing transaction is the only one, so that any other with prepared branches has ended."""
        return self._dialect.name == "sqlite"

    def knows(self, transaction_id: uuid.UUID) -> bool:
        """Whether the transaction is recorded, as far as the open database transaction can see."""
        with database_errors(self._dialect, "read the log of distributed transactions"):
            return bool(
                fetch_all(connection_of(self.alias), self._recorded, id=uuid_value(connection_of(self.alias), transaction_id))
            )

    @contextmanager
    def _limited_wait(self) -> Iterator[None]:
        # SQLite waits as configured: the transaction in question is then the only writer.
        statements = self._dialect.statements
        connection = connection_of(self.alias)
        if "limit_lock_wait" in statements:
            run(connection, self._dialect.statement("limit_lock_wait", milliseconds=_DECISION_MILLISECONDS))
        try:
            yield
        finally:
            if "unlimit_lock_wait" in statements:
                run(connection, self._dialect.statement("unlimit_lock_wait"))


def recorded_elsewhere(kept_in: str, alias: str) -> str:
    """The error text if distributed transactions would be recorded in another database than that of the queues."""
    return (
        f"a transaction over several databases is recorded in the database of the queues, {alias!r}, but the routers keep the "
        f"tables of sqlqueue_app in {kept_in!r}"
    )


def claim_key(alias: str, table: str, row_id: uuid.UUID, **values: object) -> bool:
    """Record a message under the id of its key (`key_of`) in the caller's transaction. Returns False if the key has a record.

    Waits as `HandledTable.remember` does. `values`: those of the statement, in which `seconds` is how long the key holds.
    """
    dialect = dialect_of_connection(connection_of(alias))
    statement = dialect.statement("claim_key", table=dialect.quote(table))
    return _inserted(alias, statement, row_id, "record the key of a message", **values)


def _inserted(alias: str, statement: Rendered, row_id: uuid.UUID, doing: str, **values: object) -> bool:
    """Run a statement that inserts a row with this id unless there is one. Returns whether it did."""
    connection = connection_of(alias)
    dialect = dialect_of_connection(connection)
    try:
        with database_errors(dialect, doing):
            return run(connection, statement, id=uuid_value(connection, row_id), **values) == 1
    except ConstraintViolation:
        # On SQL Server the second insert fails, and its transaction continues.
        if dialect.name != "sqlserver":
            raise
        return False


class HandledTable:
    """The ids of handled messages. Holds no connection, like TransactionLog; the database's clock decides their age."""

    def __init__(self, alias: str, name: str) -> None:
        self.alias = alias
        self.name = name
        self._dialect = dialect_of_connection(connection_of(alias))
        self._qualified = self._dialect.quote(name)
        self._remember = self._statement("remember_handled")

    def exists(self) -> bool:
        """Whether `migrate` has created the table."""
        values = {"name": self.name} if self._dialect.name == "sqlite" else {"table": self._qualified}
        with database_errors(self._dialect, f"look for {self._qualified}"):
            return bool(fetch_all(connection_of(self.alias), self._dialect.statement("table_exists"), **values)[0][0])

    def remember(self, key: uuid.UUID, queue: str) -> bool:
        """Store the key in the caller's transaction. Returns False if it is already known.

        Waits while another transaction stores the same key, and treats it as known if that one commits.
        """
        return _inserted(self.alias, self._remember, key, "remember the id of a message", queue=queue)

    def forget(self, queue: str, older_than_seconds: float, limit: int) -> int:
        """Delete at most `limit` older keys of the queue, oldest first, and return their number."""
        with database_errors(self._dialect, "forget ids of messages"):
            return run(
                connection_of(self.alias), self._statement("forget_handled"), queue=queue, seconds=older_than_seconds, limit=limit
            )

    def _statement(self, name: str) -> Rendered:
        return self._dialect.statement(name, table=self._qualified)


def handled_elsewhere(endpoint: str, alias: str, wanted: str) -> str:
    """The error text if handled messages would be stored in another database than that of the queues."""
    return (
        f"DEDUPLICATE_FOR of endpoint {endpoint!r} remembers messages in the receive transaction, in the database {wanted!r}, "
        f"but the routers keep the tables of sqlqueue_app in {alias!r}"
    )


class RateTable:
    """The states of rate limits, by the database's clock. Holds no connection, like TransactionLog."""

    def __init__(self, alias: str, name: str) -> None:
        self._alias = alias
        self._dialect = dialect_of_connection(connection_of(alias))
        table = self._dialect.quote(name)
        self._read = self._dialect.statement("read_rate", table=table)
        self._replace = self._dialect.statement("replace_rate", table=table)

    def read(self, key: uuid.UUID) -> tuple[int, RateState | None]:
        """The time in microseconds since 1970, and the state; None before the first message."""
        connection = connection_of(self._alias)
        with database_errors(self._dialect, "read a rate limit"):
            now, reserved_until, handled_until = fetch_all(connection, self._read, id=uuid_value(connection, key))[0]
        return int(now), None if reserved_until is None else RateState(int(reserved_until), int(handled_until))

    def replace(self, key: uuid.UUID, before: RateState, after: RateState) -> bool:
        """Replace a state that was read. Returns False if another process has replaced it; waits for one that is doing so."""
        connection = connection_of(self._alias)
        with database_errors(self._dialect, "reserve a time for a rate limit"):
            changed = run(
                connection,
                self._replace,
                id=uuid_value(connection, key),
                reserved_until=after.reserved_until,
                handled_until=after.handled_until,
                reserved_before=before.reserved_until,
                handled_before=before.handled_until,
            )
        return changed == 1


def reserved_elsewhere(endpoint: str, alias: str, wanted: str) -> str:
    """The error text if times of rate limits would be reserved in another database than that of the queues."""
    return (
        f"the rate limits of endpoint {endpoint!r} reserve times in the database of the queues, {wanted!r}, "
        f"but the routers keep the tables of sqlqueue_app in {alias!r}"
    )
