"""The managed table of the ids of handled messages: remember one, forget what is old. The database's clock says what is."""

from __future__ import annotations

import uuid

from sqlqueue_app.dialects.dialect import Rendered
from sqlqueue_app.messages.errors import ConstraintViolation
from sqlqueue_app.tables.connections import connection_of, database_errors, dialect_of_connection, fetch_all, run


class HandledTable:
    """A description, not a connection: each call uses the calling thread's Django connection. May be shared by threads."""

    def __init__(self, alias: str, name: str) -> None:
        self.alias = alias
        self.name = name
        self._dialect = dialect_of_connection(connection_of(alias))
        self._qualified = self._dialect.quote(name)
        self._remember = self._statement("remember_handled")

    def exists(self) -> bool:
        """Whether `migrate` has made the table."""
        values = {"name": self.name} if self._dialect.name == "sqlite" else {"table": self._qualified}
        with database_errors(self._dialect, f"look for {self._qualified}"):
            return bool(fetch_all(connection_of(self.alias), self._dialect.statement("table_exists"), **values)[0][0])

    def remember(self, key: uuid.UUID, queue: str) -> bool:
        """Remember the key in the caller's transaction; False if it is known already.

        Waits while another transaction is remembering the same key, and takes it as known if that one commits.
        """
        try:
            with database_errors(self._dialect, "remember the id of a message"):
                return run(connection_of(self.alias), self._remember, id=self._dialect.uuid_text(key), queue=queue) == 1
        except ConstraintViolation:
            # On SQL Server the one that comes second fails; its transaction goes on.
            if self._dialect.name != "sqlserver":
                raise
            return False

    def forget(self, queue: str, older_than_seconds: float, limit: int) -> int:
        """Delete at most `limit` keys of the queue that were remembered longer ago, the oldest first; returns how many."""
        with database_errors(self._dialect, "forget ids of messages"):
            return run(
                connection_of(self.alias),
                self._statement("forget_handled"),
                queue=queue,
                seconds=older_than_seconds,
                limit=limit,
            )

    def _statement(self, name: str) -> Rendered:
        return self._dialect.statement(name, table=self._qualified)


def handled_elsewhere(endpoint: str, alias: str, wanted: str) -> str:
    """What is wrong where the handled messages would be remembered in another database than that of the queues."""
    return (
        f"DEDUPLICATE_FOR of endpoint {endpoint!r} remembers messages in the receive transaction, in the database {wanted!r}, "
        f"but the routers keep the tables of sqlqueue_app in {alias!r}"
    )
