"""The endpoints that the installation tests ask for, and what they need."""

from __future__ import annotations

from typing import Any

ENDPOINTS: dict[str, Any] = {
    "Sales": {"INSTANCE": "web1", "CALLBACK_QUEUES": 2, "SATELLITES": {"Sales.Priority": {}}},
    "Billing": {"CALLBACKS": False},
}
# in the order of the settings
TABLES = [
    ("queue", "Sales"),
    ("queue", "Sales.Priority"),
    ("queue", "Sales.web1"),
    ("queue", "Sales.web1-2"),
    ("delayed", "Sales.Delayed"),
    ("queue", "error"),
    ("queue", "Billing"),
    ("delayed", "Billing.Delayed"),
    ("subscriptions", "SubscriptionRouting"),
]
NAMES = {name for _, name in TABLES}
