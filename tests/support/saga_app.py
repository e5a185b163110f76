"""A saga with its own table, for tests and for the worker processes that they start."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from typing import Any

from django.apps.registry import Apps
from django.db import connections, models

from sqlqueue_app import Saga, continues, on_timeout, starts
from sqlqueue_app.conf import get_settings
from sqlqueue_app.receiving.handlers import registry
from sqlqueue_app.sagas import model as saga_model
from sqlqueue_app.tables.delayed import DelayedTable
from sqlqueue_app.tables.installation import delayed_address
from tests.support.bench import Bench
from tests.support.worker_processes import address

MODULE = __name__
PRINTS = "SQLQUEUE_TEST_SAGA_PRINTS"


def note_line(order_id: str) -> None:
    """Print a line, for a test that kills the process somewhere after it."""
    if PRINTS in os.environ:
        os.write(1, f"{order_id}\n".encode())


REGISTRY = Apps()
"""Not Django's own: migrations and the admin of the tests do not know these sagas."""


class NumberedSaga(Saga):
    """The head of the small sagas that tests define. They are forgotten after their test."""

    correlate_by = "number"
    number = models.IntegerField(unique=True)

    class Meta:
        abstract = True
        app_label = "sqlqueue_app"
        apps = REGISTRY


class OrderSaga(Saga):
    """Waits for the payment and the parcel of an order; expires after a day."""

    correlate_by = "order_id"

    order_id = models.CharField(max_length=50, unique=True)
    total = models.IntegerField(default=0)
    paid = models.BooleanField(default=False)
    shipped = models.BooleanField(default=False)

    class Meta:
        app_label = "sqlqueue_app"
        apps = Apps()

    @starts("Test.PlaceOrder")
    def place(self, message: Any, context: Any) -> None:
        self.total += message.get("total", 1)
        context.send("Test.Bill", {"OrderId": self.order_id}, to=message["to"])
        if "expires" in message:
            self.request_timeout(context, "Test.OrderExpired", {"to": message["to"]}, delay=timedelta(seconds=message["expires"]))
        if "chain" in message:
            context.send_local("Test.OrderPaid", {"OrderId": self.order_id, "chain": True})
        note_line(self.order_id)

    @continues("Test.OrderPaid")
    def pay(self, message: Any, context: Any) -> None:
        self.paid = True
        if "chain" in message:
            context.send_local("Test.OrderShipped", {"parcel": {"order": self.order_id}})
        note_line(self.order_id)
        self._end()

    @continues("Test.OrderShipped", correlate=lambda message: message["parcel"]["order"])
    def ship(self, message: Any, context: Any) -> None:
        self.shipped = True
        self._end()

    @on_timeout("Test.OrderExpired")
    def expire(self, message: Any, context: Any) -> None:
        context.send("Test.Cancelled", {"OrderId": self.order_id, "Paid": self.paid}, to=message["to"])
        self.complete()

    def _end(self) -> None:
        if self.paid and self.shipped:
            self.complete()


HANDLERS = [each for each in registry.all() if each.function.__module__ == MODULE]


def take_out() -> None:
    """Hide the saga from tests of the same process that do not request it."""
    for handler in HANDLERS:
        registry.remove(handler)
    saga_model._classes.clear()


def put_in() -> None:
    for handler in HANDLERS:
        registry.add(handler)
    saga_model._classes["OrderSaga"] = OrderSaga


def create_table(alias: str, saga: type[Saga] = OrderSaga) -> None:
    with connections[alias].schema_editor() as editor:
        editor.create_model(saga)


class OrderSagas:
    """The sagas of a bench, and messages to them."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self._sent = 0

    def put(self, message_type: str, body: dict[str, Any], **headers: str) -> str:
        """Insert a message as another program might write it, and return its id."""
        self._sent += 1
        row_id = f"00000000-0000-0000-0000-{self._sent:012}"
        text = json.dumps({"NServiceBus.EnclosedMessageTypes": message_type, **headers})
        self.bench.put(text, json.dumps(body).encode(), row_id=row_id)
        return row_id

    def place(self, order_id: str, **more: Any) -> str:
        return self.put("Test.PlaceOrder", {"OrderId": order_id, "to": address(self.bench, "out"), **more})

    def pay(self, order_id: str) -> str:
        return self.put("Test.OrderPaid", {"order_id": order_id})

    def ship(self, order_id: str) -> str:
        return self.put("Test.OrderShipped", {"parcel": {"order": order_id}})

    def rows(self, saga: type[Saga] = OrderSaga) -> list[Any]:
        return list(saga._base_manager.using(self.bench.database.alias).order_by("started_at", "pk"))

    def sent(self) -> list[str]:
        """The types of the messages in the queue `out`."""
        return [headers["NServiceBus.EnclosedMessageTypes"] for headers in self.bench.headers("out")]

    def delayed(self) -> list[dict[str, Any]]:
        """The headers of the messages in the delayed table of `Sales`."""
        settings = get_settings()
        book = settings.address_book(self.bench.database.vendor, self.bench.database.catalog())
        table = DelayedTable(self.bench.database.alias, delayed_address(book, "Sales"))
        return [json.loads(row.headers or "") for row in table.peek(1000)]

    def bring_nearer(self, time: timedelta) -> None:
        settings = get_settings()
        book = settings.address_book(self.bench.database.vendor, self.bench.database.catalog())
        DelayedTable(self.bench.database.alias, delayed_address(book, "Sales")).bring_nearer(time)
