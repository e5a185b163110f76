"""Handlers of the workers that are killed: each message writes one row into the table `effects`, in the receive transaction.

What a body says under "way" decides what else happens; tests/chaos/load.py makes such bodies, tests/chaos/books.py knows what must
be there in the end.
"""

from __future__ import annotations

import os
from typing import Any

from sqlqueue_app import handles
from sqlqueue_app.messages import headers as names
from tests.chaos import failpoints, ledger

MODULE = __name__
TO_SALES, TO_BILLING, EVENT, ANSWER = "Chaos.Work", "Bill.Work", "Chaos.Happened", "Chaos.Answer"


def effect(context: Any, unit: str) -> None:
    """The one thing that is to happen once; with a share of the units in the ledger, too, where there is one."""
    with context.connection.cursor() as cursor:
        cursor.execute("INSERT INTO effects (id, pid) VALUES (%s, %s)", (unit, os.getpid()))
    ledger.write(unit)


@handles(TO_SALES)
def work(message: Any, context: Any) -> None:
    """The row; then what the way says: a message for Billing, a reply, a failure."""
    way = message["way"]
    effect(context, message["id"])
    failpoints.reached("handler running")
    if way == "chain":
        context.send(TO_BILLING, {"id": f"{message['id']}/chain"})
    elif way == "ask":
        context.reply(ANSWER, {"id": message["id"]})
    elif way == "never":
        raise LookupError("never")
    elif way == "again" and context.attempt == 1:
        raise LookupError("the first time")
    elif way == "later" and names.DELAYED_RETRIES not in context.headers:
        raise LookupError("until it was delayed")
    failpoints.reached("handler done")


@handles(TO_BILLING)
def bill(message: Any, context: Any) -> None:
    """The row."""
    effect(context, message["id"])
    failpoints.reached("in a batch")


@handles(EVENT)
def happened(message: Any, context: Any) -> None:
    """A row of each endpoint that has subscribed."""
    effect(context, f"{message['id']}@{context.endpoint}")
