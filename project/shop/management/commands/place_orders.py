"""`manage.py place_orders`: customers at a steady pace, for demos."""

from __future__ import annotations

import contextlib
import itertools
import queue
import signal
from argparse import ArgumentTypeError
from decimal import Decimal
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.db import Error as DatabaseError, connection

from project.shop.orders import place_order
from sqlqueue_app.messages.errors import SqlQueueError, counted

# Every tenth order is Mallory's, which cannot be shipped; Trudy's orders jam the register.
BASKETS = tuple(
    (customer, Decimal(total))
    for customer, total in [
        ("Ada", "12.50"),
        ("Grace", "99.00"),
        ("Alan", "7.20"),
        ("Edsger", "45.00"),
        ("Barbara", "230.90"),
        ("Donald", "3.14"),
        ("Margaret", "61.30"),
        ("Trudy", "18.00"),
        ("Radia", "150.75"),
        ("Mallory", "666.00"),
    ]
)


class Command(BaseCommand):
    """Place orders until a signal stops the command."""

    help = "Place orders at a steady pace until Ctrl-C; every tenth one cannot be shipped."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options for rate and number."""
        parser.add_argument("--per-minute", type=positive, default=20.0, metavar="N", help="orders a minute (default: 20)")
        parser.add_argument("--count", type=int, metavar="N", help="end after this number of orders (default: never)")

    def handle(self, *args: Any, **options: Any) -> None:
        """Place orders with a pause between them that a signal ends."""
        # not an Event: a signal handler may interrupt the wait that holds its lock
        stop: queue.SimpleQueue[int] = queue.SimpleQueue()
        before = {number: signal.signal(number, lambda got, _: stop.put(got)) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            placed = self.place(options["count"], 60 / options["per_minute"], stop)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        self.stdout.write(f"{counted(placed, 'order')} placed")

    def place(self, count: int | None, seconds_between: float, stop: queue.SimpleQueue[int]) -> int:
        """Place `count` orders, or any number until the stop; an unavailable database is only reported."""
        placed = 0
        for customer, total in itertools.cycle(BASKETS):
            if count is not None and placed >= count:
                break
            try:
                order = place_order(customer, total)
            except (DatabaseError, SqlQueueError) as error:
                self.stderr.write(f"no order could be placed, trying again: {error}")
                connection.close()
            else:
                placed += 1
                self.stdout.write(f"{customer} placed order {order.number}")
            if count is None or placed < count:
                with contextlib.suppress(queue.Empty):
                    stop.get(timeout=seconds_between)
                    break
        return placed


def positive(text: str) -> float:
    """An argument type: a number above zero."""
    try:
        number = float(text)
    except ValueError:
        raise ArgumentTypeError(f"expected a number, got {text!r}") from None
    if not 0 < number < float("inf"):
        raise ArgumentTypeError(f"expected a number above 0, got {text!r}")
    return number
