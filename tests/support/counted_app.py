"""A handler that writes a row per message, and processes that receive or send until they kill themselves at a chosen point."""

from __future__ import annotations

import itertools
import signal
from functools import partial
from typing import Any, Final

from django.db import DatabaseError, connections, transaction

from sqlqueue_app import handles, send
from sqlqueue_app.messages.errors import TransientError
from sqlqueue_app.receiving.recovery import Recovery
from sqlqueue_app.sending.claim_checks import ClaimChecks
from sqlqueue_app.sending.dispatcher import Dispatcher
from sqlqueue_app.tables.receive_transaction import ReceiveTransaction
from tests.support.bench import Bench
from tests.support.failpoints import die, trap
from tests.support.forking import print_line, receive

MODULE = __name__
TYPE = "Counted.Work"
SEND, SEND_ONCE = f"{MODULE}.send_some", f"{MODULE}.send_once"
SEND_UNTIL, RECEIVE_UNTIL = f"{MODULE}.send_until", f"{MODULE}.receive_until"
NEXT = 1_000_000
"""What is added to a number for the message that its handler sends."""

COMMITS: Final = ("before the commit", "after the commit")
# A method, and whether the process dies before it.
_POINTS: Final[dict[str, tuple[type, str, bool]]] = {
    "before the commit": (ReceiveTransaction, "commit", True),
    "after the commit": (ReceiveTransaction, "commit", False),
    "handler failed": (Recovery, "write", False),
    "rows written": (Dispatcher, "dispatch_each", False),
    "file written": (ClaimChecks, "check_in", False),
    "file read": (ClaimChecks, "read", False),
    "before the file is deleted": (ClaimChecks, "remove", True),
    "after the file is deleted": (ClaimChecks, "remove", False),
}


def create_table(bench: Bench) -> None:
    with bench.database.connection.cursor() as cursor:
        cursor.execute("CREATE TABLE counted (number integer NOT NULL)")


def counted(bench: Bench) -> list[int]:
    """The numbers of the messages that were handled."""
    with bench.database.connection.cursor() as cursor:
        cursor.execute("SELECT number FROM counted ORDER BY number")
        return [int(number) for (number,) in cursor.fetchall()]


@handles(TYPE)
def work(message: Any, context: Any) -> None:
    """Write a row and print the number; fail at first or send the next message if the message says so."""
    with connections[message["alias"]].cursor() as cursor:
        cursor.execute("INSERT INTO counted (number) VALUES (%s)", (message["number"],))
    print_line("handled", message["number"])
    if message.get("fails") and "NServiceBus.Retries" not in context.headers:
        raise LookupError("at first")
    if message.get("sends"):
        context.send_local(TYPE, {**message, "number": message["number"] + NEXT, "sends": False})


def send_some(alias: str, first: int, count: int, more: dict[str, Any]) -> None:
    """Send messages of these numbers, each in a transaction of its own; print each after its commit, and wait to be killed."""
    for number in range(first, first + count):
        _send(alias, {"alias": alias, "number": number, **more})
    signal.pause()


def send_once(alias: str, first: int, count: int) -> None:
    """Send as `send_some`, each message with its number as its unique key."""
    for number in range(first, first + count):
        _send(alias, {"number": number}, unique_key=str(number), unique_for=3600)
    signal.pause()


def _send(alias: str, body: dict[str, Any], **options: Any) -> None:
    while True:
        try:
            with transaction.atomic(using=alias):
                send(TYPE, body, **options)
            break
        except (DatabaseError, TransientError):
            # On a busy machine SQLite may refuse the lock for writing.
            connections.close_all()
    print_line("sent", body["number"])


def receive_until(point: str, times: int, options: dict[str, Any]) -> None:
    """Receive until the process reaches the point this many times, and dies."""
    _die_at(point, times)
    receive(options)


def send_until(point: str, times: int, *arguments: Any) -> None:
    """Send as `send_some` until the process reaches the point this many times, and dies."""
    _die_at(point, times)
    send_some(*arguments)


def _die_at(point: str, times: int) -> None:
    owner, name, before = _POINTS[point]
    trap(owner, name, partial(_reached, itertools.count(1), times), before=before)


def _reached(count: itertools.count[int], times: int) -> None:
    if next(count) == times:
        die()
