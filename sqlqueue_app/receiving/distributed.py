"""Which other databases take part in the receive transactions of an endpoint (design 6.5)."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import connections, router

from sqlqueue_app.databases.two_phase import CAN_PREPARE
from sqlqueue_app.models import DistributedTransaction, TwoPhaseCoordinator
from sqlqueue_app.policies.transaction_mode import TransactionMode
from sqlqueue_app.tables.connections import aliases_beside
from sqlqueue_app.tables.other_aliases import NO_OTHERS, NoOtherAliases, OtherAliases
from sqlqueue_app.tables.transaction_log import TransactionLog


def others_of(log: TransactionLog, mode: TransactionMode, queue: str) -> NoOtherAliases:
    """What takes part in the receive transactions of one thread, beside the alias of the queues, whose log it is."""
    aliases: Sequence[str] = aliases_beside(log.alias) if mode is TransactionMode.TRANSACTION_SCOPE else ()
    return OtherAliases(aliases, log, queue) if aliases else NO_OTHERS


def transaction_log(alias: str) -> TransactionLog:
    """The log of the queues' database, for one who asks from many threads. Reaches no database."""
    kept_in = router.db_for_write(DistributedTransaction)
    return TransactionLog(alias, DistributedTransaction._meta.db_table, TwoPhaseCoordinator._meta.db_table, kept_in=kept_in)


def name_coordinator(log: TransactionLog) -> None:
    """Have the log make its name before the first message, where other databases may take part. DatabaseError if it cannot.

    Where the log is kept elsewhere nothing is made: a check tells, and so does the first message that needs it.
    """
    if log.is_here and any(connections[alias].vendor in CAN_PREPARE for alias in aliases_beside(log.alias)):
        log.coordinator()
