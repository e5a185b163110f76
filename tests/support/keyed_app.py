"""A keyed handler of worker processes. It writes a row per message, with the number of those before it of the same key.

The process kills itself in its handler of this many messages, DIE_AT, if that is set.
"""

from __future__ import annotations

import itertools
import os
import signal
from typing import Any

from sqlqueue_app import handles

MODULE = __name__
DIE_AT = int(os.environ.get("DIE_AT", "0"))
_calls = itertools.count(1)


@handles("Keyed.Work", key=lambda message: message["key"])
def work(message: Any, context: Any) -> None:
    """Add the message to those of its key."""
    key = message["key"]
    with context.connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM keyed WHERE customer = %s", (key,))
        place = cursor.fetchone()[0]
        cursor.execute("INSERT INTO keyed (customer, number, place) VALUES (%s, %s, %s)", (key, message["number"], place))
    if next(_calls) == DIE_AT:
        os.kill(os.getpid(), signal.SIGKILL)
