"""The endpoints of the installation tests, and what they need."""

from __future__ import annotations

from io import StringIO
from typing import Any

from django.core.management import call_command

ENDPOINTS: dict[str, Any] = {
    "Sales": {"CALLBACKS": True, "INSTANCE": "web1", "CALLBACK_QUEUES": 2, "SATELLITES": {"Sales.Priority": {}}},
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


def install(*arguments: str, **options: Any) -> str:
    out = StringIO()
    call_command("sqlqueue_install", *arguments, stdout=out, stderr=out, **options)
    return out.getvalue()
