"""A sending process: it reads orders from its standard input, one JSON object per line, and answers each with one.

The order `{"clear": true}` has the peer forget what was sent. Others have `first` (the number of the first message), `count`, and
maybe `seconds` (to stop after), `many` (in bulk) and `extra` (more for the body); the answer has `began` (`time.monotonic()`),
`sent` and `seconds`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

BODY = "BENCH_BODY"
"""The body of all messages, as JSON; each has a number of its own."""

CHUNK = 500
"""Messages of one call where a peer can send many."""

Body = dict[str, Any]


class Sender:
    """Sends with a peer from ordinary code, outside of a transaction."""

    def send(self, body: Body) -> None:
        """One message."""
        raise NotImplementedError

    def send_many(self, bodies: Sequence[Body]) -> None:
        """Send all in one transaction, in the fastest way of the peer."""
        raise NotImplementedError

    def clear(self) -> None:
        """Discard sent messages that are not in a table."""


class Loop:
    """Runs coroutines one after the other on one event loop, as a sending program does."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine and return its result."""
        return self._loop.run_until_complete(coroutine)


def main(install: Callable[[], object], connect: Callable[[], Sender]) -> None:
    """Install the peer, or serve orders."""
    if sys.argv[1] == "install":
        install()
    else:
        _serve(connect())


def _serve(sender: Sender) -> None:
    # the output of peers must not mix with the answers
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    template = json.loads(os.environ[BODY])
    for line in sys.stdin:
        order = json.loads(line)
        if "clear" in order:
            sender.clear()
        print(json.dumps({} if "clear" in order else carry_out(sender, template, order)), file=answers, flush=True)


def carry_out(sender: Sender, template: Body, order: dict[str, Any]) -> dict[str, float]:
    """Send the messages of an order; returns the answer."""
    first, count, seconds = order["first"], order["count"], order.get("seconds", float("inf"))
    bodies = [{**template, "order_id": f"{number:010}", **order.get("extra", {})} for number in range(first, first + count)]
    began, sent = time.monotonic(), 0
    while sent < count and time.monotonic() - began < seconds:
        if order.get("many"):
            sender.send_many(bodies[sent : sent + CHUNK])
            sent = min(count, sent + CHUNK)
        else:
            sender.send(bodies[sent])
            sent += 1
    return {"began": began, "sent": sent, "seconds": time.monotonic() - began}
