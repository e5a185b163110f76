"""The transaction modes that these tests run in."""

from __future__ import annotations

import pytest

MODES = ["none", "receive_only", "sends_atomic_with_receive", "transaction_scope"]
in_modes = pytest.mark.parametrize("mode", MODES)
in_transactions = pytest.mark.parametrize("mode", MODES[1:])
