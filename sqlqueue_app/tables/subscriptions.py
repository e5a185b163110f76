"""The subscription table that all endpoints share (docs/internals/wire.md#subscription-table)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from sqlqueue_app.dialects.dialect import Rendered
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.errors import ConfigurationError, QueueNotFound
from sqlqueue_app.tables.connections import SecondConnections, Table, executed, fetch_all, missing_table, run

# The width of each column (docs/internals/wire.md#subscription-table).
MAX_VALUE_LENGTH = 200


@dataclass(frozen=True, slots=True)
class SubscriptionRow:
    """One row: the endpoint, the full name of the event type, the address of the endpoint's queue as text."""

    endpoint: str
    topic: str
    address: str

    def __str__(self) -> str:
        return f"the subscription of endpoint {self.endpoint!r} to {self.topic!r}"


class SubscriptionTable(Table):
    """The subscription table, which all endpoints share.

    As in the transport, no call takes part in the thread's open transaction, unless `join` is set: inside one it opens a second
    connection for this call. So an event goes to all current subscribers, whatever snapshot the caller's transaction reads, and a
    rollback removes no subscription. SQLite has one writer, which the caller may be: there every call joins the caller's
    transaction.

    Calls `changed` after each change, and again at the commit of a transaction that it joined.
    """

    def __init__(self, alias: str, address: QueueAddress, *, changed: Callable[[], None] = lambda: None) -> None:
        super().__init__(alias, address)
        self._changed = changed

    def subscribe(self, subscription: SubscriptionRow, *, join: bool = False) -> None:
        """Insert the row, or update the address of the existing row; an identical row stays unchanged.

        Raises ConfigurationError for a value that the table cannot hold, QueueNotFound if there is no table.
        """
        _check(subscription)
        with self._errors(f"subscribe {subscription.endpoint!r} to {subscription.topic!r}"), self._used(join=join) as connection:
            statement = self.dialect.statement("subscribe", table=self.qualified)
            run(connection, statement, endpoint=subscription.endpoint, topic=subscription.topic, address=subscription.address)
            joined = connection.in_atomic_block
        self._notify(joined)

    def unsubscribe(self, endpoint: str, topic: str, *, join: bool = False) -> bool:
        """Delete the row and return whether there was one. QueueNotFound if there is no table."""
        with self._errors(f"unsubscribe {endpoint!r} from {topic!r}"), self._used(join=join) as connection:
            statement = self.dialect.statement("unsubscribe", table=self.qualified)
            deleted = run(connection, statement, endpoint=endpoint, topic=topic)
            joined = connection.in_atomic_block
        self._notify(joined)
        return deleted > 0

    def subscribers(self, topics: Sequence[str]) -> list[SubscriptionRow]:
        """Every subscription to one of the topics. QueueNotFound if there is no table."""
        if not topics:
            return []
        statement = self.dialect.subscribers_statement(self.qualified, len(topics))
        with self._errors("look up subscribers"), self._used() as own, executed(own, statement, tuple(topics)) as cursor:
            return [SubscriptionRow(*map(str, row)) for row in cursor.fetchall()]

    def all(self) -> list[SubscriptionRow]:
        """Every subscription, by endpoint and topic. QueueNotFound if there is no table."""
        statement: Rendered = self.dialect.statement("subscriptions", table=self.qualified)
        with self._errors("read subscriptions"), self._used() as connection:
            return [SubscriptionRow(*map(str, row)) for row in fetch_all(connection, statement)]

    def has_joined_changes(self) -> bool:
        """Whether a call that joined the calling thread's open transaction has changed the table."""
        connection = self.connection()
        return connection.in_atomic_block and any(call == self._committed for _, call, *_ in connection.run_on_commit)

    def _notify(self, joined: bool) -> None:
        self._changed()
        if joined:
            # `has_joined_changes` looks for this hook; a rollback, also to a savepoint, removes it.
            transaction.on_commit(self._committed, using=self.alias)

    def _committed(self) -> None:
        self._changed()

    @contextmanager
    def _used(self, *, join: bool = False) -> Iterator[BaseDatabaseWrapper]:
        first = self.connection()
        # After a joined change has locked rows of the table, another connection would wait for its own thread.
        is_open = first.in_atomic_block or not first.get_autocommit()
        if join or not is_open or first.vendor == "sqlite" or self.has_joined_changes():
            yield first
            return
        with SecondConnections(self.alias).used() as second:
            try:
                yield second
            finally:
                second.close()

    @contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        try:
            with self.errors(f"{doing} in {self.qualified}"):
                yield
        except QueueNotFound as error:
            text = f"the subscription table {self.qualified} does not exist in {self.alias!r}: run sqlqueue_install or migrate"
            raise missing_table(self, text) from error


def _check(subscription: SubscriptionRow) -> None:
    for what, value in (("endpoint", subscription.endpoint), ("topic", subscription.topic), ("address", subscription.address)):
        if not value.strip() or len(value) > MAX_VALUE_LENGTH:
            raise ConfigurationError(
                f"{subscription} cannot be kept: its {what} {value!r} has {len(value)} characters; "
                f"expected 1 to {MAX_VALUE_LENGTH}, as the columns of the subscription table have"
            )
