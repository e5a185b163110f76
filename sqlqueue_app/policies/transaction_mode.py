"""The transaction modes of a receive, by the names of the settings (transport reference 5.1)."""

from __future__ import annotations

import enum


class TransactionMode(enum.Enum):
    """What is atomic with the receive."""

    NONE = "none"
    RECEIVE_ONLY = "receive_only"
    SENDS_ATOMIC_WITH_RECEIVE = "sends_atomic_with_receive"
    TRANSACTION_SCOPE = "transaction_scope"
