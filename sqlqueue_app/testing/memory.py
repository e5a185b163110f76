"""Tests of handlers without the project's database: endpoints in memory, a clock that the test sets, and a handler context.

The database is a private in-memory SQLite connection, which runs the same statements as a SQLite file.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from django.apps import apps
from django.conf import settings as django_settings
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.sqlite3.base import DatabaseWrapper
from django.db.utils import ConnectionHandler
from django.test.utils import override_settings

from sqlqueue_app.conf import Settings, get_settings
from sqlqueue_app.conf.task_backends import read_task_backends, with_endpoints_for_tasks
from sqlqueue_app.conf.validation import Findings
from sqlqueue_app.dialects.schema import PlannedTable, TableKind
from sqlqueue_app.installation import planned_tables
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.addresses import AddressBook
from sqlqueue_app.messages.envelope import IncomingMessage, OutgoingMessage, new_message_id
from sqlqueue_app.messages.headers import Intent, read_headers
from sqlqueue_app.messages.times import parse_time
from sqlqueue_app.receiving.context import MessageContext
from sqlqueue_app.receiving.endpoint import endpoints_of
from sqlqueue_app.sending.composer import delayed_row, sender_identity
from sqlqueue_app.sending.middleware import composer_for
from sqlqueue_app.sending.sender import send
from sqlqueue_app.sending.subscribers import Subscribers, Topics, use_subscribers
from sqlqueue_app.status.queues import address_book_of
from sqlqueue_app.tables.connections import connection_of
from sqlqueue_app.tables.installation import install_tables
from sqlqueue_app.tables.subscriptions import SubscriptionRow
from sqlqueue_app.testing.asserting import SentMessage, exclude, failed, sent
from sqlqueue_app.testing.draining import Drained, drain, handle_waiting

# Not available on SQLite, and features that need a running process.
_NOT_IN_MEMORY = ("DEFAULT_SCHEMA", "SCHEMA_FOR_QUEUE", "SCHEMA_FOR_ENDPOINT", "CATALOG_FOR_QUEUE", "CATALOG_FOR_ENDPOINT")
_ENDPOINT_IN_MEMORY = {"CALLBACKS": False, "WAKE_UP": False}


class InMemoryEndpoint:
    """A context manager that keeps the queues of the project in memory and handles messages of one endpoint::

        with InMemoryEndpoint("Sales") as sales:
            sales.handle(PlaceOrder("1", Decimal("9.90")))
            assert_sent("Sales.OrderPlaced", {"order_id": "1"})

    Settings, handlers, retries and the error queue are real; `send()`, `drain()` and the assertions use the queues in memory. Due
    times and expiry follow `clock`, which stands still until `clock.advance()`; timestamps in headers use the real time. An event
    goes to the endpoints of the project that handle it, otherwise to the queue `Published`. Queues exist for the endpoints of
    settings and routes and for `queues`; schemas and catalogs are ignored. Handlers still use the project's own database. One at a
    time, in the opening thread.
    """

    def __init__(
        self, name: str, *, settings: Mapping[str, Any] | None = None, queues: Iterable[str] = (), clock: FakeClock | None = None
    ) -> None:
        """`settings` are settings of this endpoint that override the project, such as `{"IMMEDIATE_RETRIES": 0}`."""
        if isinstance(queues, str):
            raise ValueError(f"InMemoryEndpoint(queues={queues!r}): expected a list of names, such as [{queues!r}]")
        self.name = name
        self.clock = clock or FakeClock()
        """Determines due and expired messages."""
        self._settings = dict(settings or {})
        self._queues = tuple(queues)
        self._opened = ExitStack()

    def __enter__(self) -> InMemoryEndpoint:
        with ExitStack() as opened:
            opened.enter_context(memory_database(self.clock))
            # Also in a project of one database, which needs no router.
            routers = ["sqlqueue_app.routers.SqlQueueRouter", *django_settings.DATABASE_ROUTERS]
            opened.enter_context(override_settings(SQLQUEUE=self._settings_in_memory(), DATABASE_ROUTERS=routers))
            self._install()
            settings = get_settings()
            use_subscribers(HandlerSubscribers(ALIAS, address_book_of(settings), settings, otherwise=PUBLISHED))
            # As in a TestCase, so that sends join it, whatever other transaction the test has open.
            block = transaction.atomic(using=ALIAS)
            block._from_testcase = True  # type: ignore[attr-defined]
            opened.enter_context(block)
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        connection_of(ALIAS).needs_rollback = False
        self._opened.close()

    def handle(
        self,
        message: object,
        body: object = None,
        *,
        headers: Mapping[str, str | None] | None = None,
        reply_to: str | None = None,
        raise_errors: bool = True,
    ) -> Drained:
        """Handle a message as if a peer had sent it, and what the handlers send to this endpoint: see `drain()`.

        The message itself is not listed as sent. If a handler raises, its message is removed, so that it is not handled again
        by the next call. `reply_to` is the address for replies; its queue must exist.
        """
        given = {**({} if reply_to is None else {names.REPLY_TO_ADDRESS: reply_to}), **(headers or {})}
        exclude(connection_of(ALIAS), send(message, body, to=self.name, headers=given), self.name)  # type: ignore[call-overload]
        return handle_waiting(self.name, raise_errors=raise_errors, keeps_failed=False)

    def drain(self, **options: Any) -> Drained:
        """`drain()` of this endpoint."""
        return drain(self.name, **options)

    def sent(self, message: type | str | None = None, *, to: str | None = None) -> list[SentMessage]:
        """`sent()`, optionally of one type or to one queue."""
        return sent(message, to=to)

    def failed(self) -> list[SentMessage]:
        """`failed()`: the messages in the error queues."""
        return failed()

    def _settings_in_memory(self) -> dict[str, Any]:
        backends = read_task_backends(getattr(django_settings, "TASKS", None), Findings())
        given: Any = with_endpoints_for_tasks(getattr(django_settings, "SQLQUEUE", {}), backends)
        project = dict(given)
        for key in _NOT_IN_MEMORY:
            project.pop(key, None)
        endpoints = {name: {**config, **_ENDPOINT_IN_MEMORY} for name, config in project.get("ENDPOINTS", {}).items()}
        endpoints[self.name] = {**endpoints.get(self.name, _ENDPOINT_IN_MEMORY), **self._settings}
        return {**project, "DATABASE": ALIAS, "ENDPOINTS": endpoints}

    def _install(self) -> None:
        settings = get_settings()
        book = address_book_of(settings)
        names = [*settings.routes.values(), PUBLISHED, *self._queues]
        more = [PlannedTable(TableKind.QUEUE, book.of_queue(name)) for name in dict.fromkeys(names)]
        planned = planned_tables(settings, "sqlite", instance_names=[])
        install_tables(ALIAS, [*planned, *(table for table in more if table not in planned)])


ALIAS = "sqlqueue_memory"
_SETTINGS = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:", "OPTIONS": {"transaction_mode": "IMMEDIATE"}}
_TIME_FUNCTIONS = ("strftime", "julianday")


class MemoryConnection(DatabaseWrapper):
    """A connection that test tools do not block: they guard the project's database, which this is not."""

    holds_only_messages = True
    """Sagas are in the project's database."""

    def __init__(self, settings: dict[str, Any], clock: FakeClock) -> None:
        super().__init__(settings, ALIAS)
        self._clock = clock
        self._plain = sqlite3.connect(":memory:")

    def ensure_connection(self) -> None:
        """Connect if necessary. pytest-django replaces Django's own method by one that raises."""
        if self.connection is None:
            with self.wrap_database_errors:
                self.connect()

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        """A connection whose `now` is the time of the clock."""
        connection = super().get_new_connection(conn_params)
        for name in _TIME_FUNCTIONS:
            connection.create_function(name, -1, lambda *values, name=name: self._by_the_clock(name, values))
        return connection

    def _by_the_clock(self, name: str, values: tuple[Any, ...]) -> Any:
        now = self._clock.now().strftime("%Y-%m-%d %H:%M:%S.%f")
        given = [now if value == "now" else value for value in values]
        marks = ", ".join("?" * len(given))
        return self._plain.execute(f"SELECT {name}({marks})", given).fetchone()[0]

    def close(self) -> None:
        """Close the database; Django would keep an in-memory database open."""
        self._plain.close()
        raw, self.connection = self.connection, None
        if raw is not None:
            raw.close()


def create_managed_tables(connection: BaseDatabaseWrapper) -> None:
    """Create the tables of the app's own models without migrations."""
    models = [model for model in apps.get_app_config("sqlqueue_app").get_models() if model._meta.managed]
    with connection.schema_editor() as editor:
        for model in models:
            editor.create_model(model)


@contextmanager
def memory_database(clock: FakeClock) -> Iterator[MemoryConnection]:
    """Make ALIAS a database of this thread with the managed tables and no queues. RuntimeError if it is open."""
    if ALIAS in connections.settings:
        raise RuntimeError("an InMemoryEndpoint is open already: one at a time")
    settings = ConnectionHandler({"default": {}, ALIAS: dict(_SETTINGS)}).settings[ALIAS]
    connections.settings[ALIAS] = settings
    connection = MemoryConnection(settings, clock)
    connections[ALIAS] = connection
    try:
        create_managed_tables(connection)
        yield connection
    finally:
        connection.close()
        del connections[ALIAS]
        del connections.settings[ALIAS]


class FakeClock:
    """A clock that stands still until it is advanced. For one thread."""

    def __init__(self, now: datetime | None = None) -> None:
        """`now` is aware and defaults to the present. ValueError for a time without a zone."""
        if now is not None and now.utcoffset() is None:
            raise ValueError(f"FakeClock({now!r}) has no time zone: expected an aware datetime, such as datetime(…, tzinfo=UTC)")
        self._now = (now or datetime.now(UTC)).astimezone(UTC)

    def now(self) -> datetime:
        """The time of the clock, in UTC."""
        return self._now

    def advance(self, time: timedelta) -> datetime:
        """Advance the clock and return the new time; ValueError for a negative duration."""
        if time < timedelta():
            raise ValueError(f"FakeClock.advance({time!r}): a clock does not run backwards")
        self._now += time
        return self._now


PUBLISHED = "Published"
"""The queue of events that no endpoint of the project handles."""


class HandlerSubscribers(Subscribers):
    """Finds subscribers by the handlers that exist at the time of a publish; reads no table.

    With `otherwise` an event without a handler goes to the queue of that name. Without `settings` there are no endpoints.
    """

    def __init__(self, alias: str, book: AddressBook, settings: Settings | None, *, otherwise: str | None = None) -> None:
        super().__init__(alias, book)
        self._book = book
        self._settings = settings
        self._otherwise = otherwise

    def of(self, topics: Topics) -> tuple[SubscriptionRow, ...]:
        endpoints = endpoints_of(self._settings, None) if self._settings is not None and self._settings.endpoints else []
        found = [each.name for each in endpoints if each.config.subscribe and not set(topics).isdisjoint(each.events)]
        if not found and self._otherwise is not None:
            found = [self._otherwise]
        return tuple(SubscriptionRow(name, topics[0], self._book.canonical(self._book.of_queue(name))) for name in found)


@contextmanager
def subscribed() -> Iterator[None]:
    """Send events to the endpoints of the project that handle them, as if their workers had subscribed.

    The subscription table is neither read nor written. In setUp: `self.enterContext(subscribed())`.
    """
    # Senders keep their source of subscribers; a changed setting recreates them.
    with override_settings(SQLQUEUE=getattr(django_settings, "SQLQUEUE", {})):
        settings = get_settings()
        use_subscribers(HandlerSubscribers(settings.database, address_book_of(settings), settings))
        yield


class FakeContext(MessageContext):
    """A context for calling a handler as a function. Sends are composed and routed as usual, but only recorded::

        context = FakeContext()
        place_order(PlaceOrder("1", Decimal("9.90")), context)
        assert [message.message for message in context.sent] == [ShipOrder("1")]

    Needs the setting SQLQUEUE for routes, and no database. A plain `send()` in the handler does not use the context;
    `InMemoryEndpoint` records that too.
    """

    def __init__(
        self,
        *,
        endpoint: str = "Endpoint",
        headers: Mapping[str, str | None] | None = None,
        message_id: str | None = None,
        reply_to: str | None = "Requester",
        attempt: int = 1,
        connection: Any = None,
    ) -> None:
        """The context of the handler: endpoint, message headers and id, queue for replies (None: no reply is possible), number of
        the attempt, connection.
        """
        settings = get_settings()
        self._book = book = address_book_of(settings, endpoint=endpoint)
        no_subscribers = HandlerSubscribers(settings.database, book, None, otherwise=PUBLISHED)
        given = {names.MESSAGE_ID: message_id or new_message_id(), names.REPLY_TO_ADDRESS: reply_to, **(headers or {})}
        incoming = IncomingMessage(uuid.uuid4(), {name: value for name, value in given.items() if value is not None}, b"{}")
        self._at_once: list[OutgoingMessage] = []
        super().__init__(
            incoming,
            attempt=attempt,
            composer=composer_for(settings, book, sender_identity(endpoint, book), subscribers=no_subscribers),
            connection=connection,
            send_at_once=self._at_once.extend,
        )

    @property
    def sent(self) -> list[SentMessage]:
        """All sent messages, in order; messages that are sent at once come first."""
        return [self._as_sent(message) for message in (*self._at_once, *self.outgoing)]

    @property
    def replies(self) -> list[SentMessage]:
        """The replies to the sender."""
        return [message for message in self.sent if message.intent is Intent.REPLY]

    @property
    def published(self) -> list[SentMessage]:
        """The published events, each once, whatever its subscribers."""
        return [message for message in self.sent if message.intent is Intent.PUBLISH]

    @property
    def forwarded_to(self) -> list[str]:
        """The queues that the message itself was forwarded to."""
        return [message.queue for message in self.sent if message.message_id == self.message_id]

    def _as_sent(self, message: OutgoingMessage) -> SentMessage:
        if message.is_delayed:
            # A delay counts from the call, however much later `sent` is read.
            sent_at = parse_time(message.headers[names.TIME_SENT] or "")
            headers = dict(read_headers(delayed_row(message, self._book, sent_at).headers))
            headers.pop(names.FORWARD_DESTINATION, None)
            return SentMessage(message.destination, headers, message.body)
        return SentMessage(message.destination, message.headers, message.body)
