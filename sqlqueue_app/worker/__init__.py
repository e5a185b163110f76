"""A worker from start to end: its process, its supervisor, its logs, and what ServiceControl hears of it."""

from __future__ import annotations
