"""What there is now: queues, endpoints, instances, subscriptions, schedules, events and samples, for pages, commands and checks."""

from __future__ import annotations
