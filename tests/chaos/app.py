"""Handlers of the workers that are killed: each message writes one row into the table `effects`, in the receive transaction.

"way" in the body decides what else happens. tests/chaos/load.py creates the bodies, tests/chaos/books.py defines the expected
result.
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
    """Write the effect that must happen once; for a share of the units also in the ledger, if there is one."""
    with context.connection.cursor() as cursor:
        cursor.execute("INSERT INTO effects (id, pid) VALUES (%s, %s)", (unit, os.getpid()))
    ledger.write(unit)


@handles(TO_SALES)
def work(message: Any, context: Any) -> None:
    """Write the row, then follow the way: send to Billing, reply or fail."""
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
    """Write the row."""
    effect(context, message["id"])
    failpoints.reached("in a batch")


@handles(EVENT)
def happened(message: Any, context: Any) -> None:
    """Write one row per subscribed endpoint."""
    effect(context, f"{message['id']}@{context.endpoint}")
