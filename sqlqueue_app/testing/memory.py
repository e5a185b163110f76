"""Endpoints in memory: handlers tested without a database of the project."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Any

from django.conf import settings as django_settings
from django.db import transaction
from django.test.utils import override_settings

from sqlqueue_app.conf import get_settings
from sqlqueue_app.databases.ddl import TableKind
from sqlqueue_app.databases.scripts import PlannedTable
from sqlqueue_app.operations.installation_plan import planned_tables
from sqlqueue_app.operations.known_queues import address_book_of
from sqlqueue_app.sending.sender import send
from sqlqueue_app.sending.subscribers import use_subscribers
from sqlqueue_app.tables.connections import connection_of
from sqlqueue_app.tables.installation import install_tables
from sqlqueue_app.testing.clock import FakeClock
from sqlqueue_app.testing.draining import drain
from sqlqueue_app.testing.memory_database import ALIAS, memory_database
from sqlqueue_app.testing.messages import SentMessage
from sqlqueue_app.testing.processors import Drained
from sqlqueue_app.testing.sent import failed, leave_out, sent
from sqlqueue_app.testing.subscribing import PUBLISHED, Handling

# What SQLite does not have, and what a process of its own does.
_NOT_IN_MEMORY = ("DEFAULT_SCHEMA", "SCHEMA_FOR_QUEUE", "SCHEMA_FOR_ENDPOINT", "CATALOG_FOR_QUEUE", "CATALOG_FOR_ENDPOINT")
_ENDPOINT_IN_MEMORY = {"CALLBACKS": False, "WAKE_UP": False}


class InMemoryEndpoint:
    """A context in which the queues of the project are in memory, and one of its endpoints can be asked to handle messages.

        with InMemoryEndpoint("Sales") as sales:
            sales.handle(PlaceOrder("1", Decimal("9.90")))
            assert_sent("Sales.OrderPlaced", {"order_id": "1"})

    Everything but the place is real: settings, handlers, retries, error queue. `send()`, `drain()` and the assertions use these
    queues meanwhile. Due times and expiry go by `clock`, which stands still until `clock.advance()`; time stamps in headers do not.
    An event goes to the endpoints of the project that handle it, or else to the queue `Published`. There are queues for the
    endpoints of settings and routes, and those named by `queues`; schemas and catalogs are left out. What handlers ask of the
    project's own database they ask as ever. One at a time, in the thread that opened it.
    """

    def __init__(
        self, name: str, *, settings: Mapping[str, Any] | None = None, queues: Iterable[str] = (), clock: FakeClock | None = None
    ) -> None:
        """`settings` are keys of this endpoint beside those of the project, such as `{"IMMEDIATE_RETRIES": 0}`."""
        self.name = name
        self.clock = clock or FakeClock()
        """Says what is due and what has expired."""
        self._settings = dict(settings or {})
        self._queues = tuple(queues)
        self._opened = ExitStack()

    def __enter__(self) -> InMemoryEndpoint:
        with ExitStack() as opened:
            opened.enter_context(memory_database(self.clock))
            opened.enter_context(override_settings(SQLQUEUE=self._settings_in_memory()))
            self._install()
            settings = get_settings()
            use_subscribers(Handling(ALIAS, address_book_of(settings), settings, otherwise=PUBLISHED))
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
        """Handle a message as if a peer had sent it to this endpoint, and what the handlers send to themselves: see `drain()`.

        It is not among what was sent. `reply_to` is the address that replies go to, a queue that must be there.
        """
        told = {} if reply_to is None else {"NServiceBus.ReplyToAddress": reply_to}
        leave_out(connection_of(ALIAS), send(message, body, to=self.name, headers={**told, **(headers or {})}))
        return self.drain(raise_errors=raise_errors)

    def drain(self, **options: Any) -> Drained:
        """`drain()` of this endpoint."""
        return drain(self.name, **options)

    def sent(self, message: type | str | None = None, *, to: str | None = None) -> list[SentMessage]:
        """`sent()`: of a type or all, to a queue or to all."""
        return sent(message, to=to)

    def failed(self) -> list[SentMessage]:
        """`failed()`: what is in the error queues."""
        return failed()

    def _settings_in_memory(self) -> dict[str, Any]:
        project = dict(getattr(django_settings, "SQLQUEUE", {}))
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
