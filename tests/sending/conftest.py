"""`desk`: queues on a real database, with readers for their rows; `sqlite_desk`, `postgresql_desk`: on one product only."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from sqlqueue_app.conf import get_settings
from sqlqueue_app.dialects.dialect import dialect
from sqlqueue_app.dialects.schema import PlannedTable, TableKind
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.sending import sender
from sqlqueue_app.tables.installation import install_tables, subscription_address
from sqlqueue_app.tables.queue import QueueTable, forget_tables
from sqlqueue_app.tables.rows import PeekedRow
from tests.support.databases import QueueDatabase

ROUTES = {"Sending.*": "Sales"}


@dataclass
class Desk:
    """A database with the queues Sales and Billing, and a view of their rows."""

    database: QueueDatabase

    @property
    def alias(self) -> str:
        return self.database.alias

    def configure(self, **sqlqueue: Any) -> None:
        """Change the settings for the test; the tables stay."""
        self.database.configure(**{"ROUTES": ROUTES, **sqlqueue})

    def install(self, name: str, schema: str | None = None) -> QueueTable:
        """Create a queue table with this literal name."""
        address = QueueAddress(name, schema or dialect(self.database.vendor).default_schema, form=self.database.vendor)
        install_tables(self.alias, [PlannedTable(TableKind.QUEUE, address)])
        return QueueTable(self.alias, address)

    def table(self, name: str, schema: str | None = None) -> QueueTable:
        book = get_settings().address_book(self.database.vendor)
        return QueueTable(self.alias, book.resolve(QueueAddress(name, schema, form=self.database.vendor)))

    def rows(self, name: str = "Sales", schema: str | None = None) -> list[PeekedRow]:
        return self.table(name, schema).peek(100_000, body_limit=100_000_000)

    def headers(self, name: str = "Sales") -> list[dict[str, Any]]:
        return [json.loads(row.headers or "") for row in self.rows(name)]

    def bodies(self, name: str = "Sales") -> list[Any]:
        return [json.loads(row.body or b"") for row in self.rows(name)]

    def only_row(self, name: str = "Sales") -> PeekedRow:
        (row,) = self.rows(name)
        return row

    def drop(self, name: str) -> None:
        with self.database.connection.cursor() as cursor:
            cursor.execute(f"DROP TABLE {self.table(name).qualified}")
        forget_tables()


def _open(database: QueueDatabase) -> Desk:
    desk = Desk(database)
    desk.configure()
    desk.install("Sales")
    desk.install("Billing")
    return desk


def with_subscriptions(desk: Desk) -> Desk:
    """The desk with a subscription table and the queue Shipping."""
    address = subscription_address(get_settings().address_book(desk.database.vendor))
    install_tables(desk.alias, [PlannedTable(TableKind.SUBSCRIPTIONS, address)])
    desk.install("Shipping")
    return desk


@pytest.fixture
def desk(queue_database: QueueDatabase) -> Desk:
    return _open(queue_database)


@pytest.fixture
def sqlite_desk(sqlite_database: QueueDatabase) -> Desk:
    return _open(sqlite_database)


@pytest.fixture
def postgresql_desk(postgresql_database: QueueDatabase) -> Desk:
    return _open(postgresql_database)


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Return the warnings of sending since the start of the test."""
    sender._warned.clear()
    caplog.set_level(logging.WARNING, logger="sqlqueue.send")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "sqlqueue.send"]
