"""A handler that writes to three databases, in worker processes that kill themselves once at one step of two-phase commit.

KILL_AT names the step, KILL_ONCE a file that records the kill. The traps wrap the product's own methods.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from django.db import connections

from sqlqueue_app import handles
from sqlqueue_app.conf import get_settings
from sqlqueue_app.status.in_doubt import InDoubt
from sqlqueue_app.tables import two_phase
from sqlqueue_app.tables.managed import TransactionLog
from sqlqueue_app.tables.postgresql_receive import PostgresReceiveTransaction
from sqlqueue_app.tables.receive_transaction import ReceiveTransaction
from sqlqueue_app.tables.sqlserver_receive import SqlServerReceiveTransaction
from sqlqueue_app.tables.two_phase import Participant
from tests.support.failpoints import trap
from tests.support.kill_app import KILL_AT, die_at

MODULE: Final = __name__
STEPS: Final = (
    "second written",
    "recorded",
    "second prepared",
    "third prepared",
    "decided",
    "second committed",
    "third committed",
)
# Steps of the process that finishes the branches left by a kill at another step.
RESOLVING: Final = ("asked", "second resolved")


def _trap_by_alias(owner: Any, name: str, what: str) -> None:
    method: Callable[..., Any] = getattr(owner, name)

    def trapped(first: Any, *arguments: Any) -> Any:
        result = method(first, *arguments)
        die_at(f"{first if isinstance(first, str) else first.alias} {what}")
        return result

    setattr(owner, name, trapped)


def _write(alias: str) -> None:
    with connections[alias].cursor() as cursor:
        cursor.execute("INSERT INTO effects (name) VALUES (%s)", ["effect"])


@handles("Kill.Spread")
def spread(message: Any, context: Any) -> None:
    """Write a row in each database."""
    _write(get_settings().database)
    _write("second")
    die_at("second written")
    _write("third")


if KILL_AT:
    # A job of the dying process may end a branch between the decision and the death; tests look at what is left.
    InDoubt.jobs = lambda self: []  # type: ignore[method-assign]
    trap(TransactionLog, "record", partial(die_at, "recorded"))
    _trap_by_alias(Participant, "prepare", "prepared")
    trap(PostgresReceiveTransaction, "_commit", partial(die_at, "decided"))
    trap(ReceiveTransaction, "_commit", partial(die_at, "decided"))
    trap(SqlServerReceiveTransaction, "_commit", partial(die_at, "decided"))
    _trap_by_alias(two_phase, "commit_prepared", "committed")
    trap(TransactionLog, "is_committed", partial(die_at, "asked"))
    _trap_by_alias(two_phase, "commit_prepared", "resolved")
    _trap_by_alias(two_phase, "rollback_prepared", "resolved")
