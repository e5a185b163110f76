"""A keyed handler of worker processes. It writes a row per message, with the number of earlier messages of the same key."""

from __future__ import annotations

import itertools
from typing import Any

from sqlqueue_app import handles
from tests.support.failpoints import die
from tests.support.forking import receive

MODULE = __name__
RECEIVE_SOME = f"{MODULE}.receive_some"
_calls = itertools.count(1)
_die_at: list[int] = []


@handles("Keyed.Work", key=lambda message: message["key"])
def work(message: Any, context: Any) -> None:
    """Add the message to those of its key."""
    key = message["key"]
    with context.connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM keyed WHERE customer = %s", (key,))
        place = cursor.fetchone()[0]
        cursor.execute("INSERT INTO keyed (customer, number, place) VALUES (%s, %s, %s)", (key, message["number"], place))
    if next(_calls) in _die_at:
        die()


def receive_some(messages: int, options: dict[str, Any]) -> None:
    """Receive until the process kills itself in the handler of the last of this many messages."""
    _die_at.append(messages)
    receive(options)
