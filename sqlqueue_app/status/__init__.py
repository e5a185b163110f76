"""Current state for pages, commands and checks: queues, endpoints, instances, subscriptions, schedules, events, samples."""

from __future__ import annotations
