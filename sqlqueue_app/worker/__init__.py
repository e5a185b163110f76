"""The worker: its process, its supervisor, its logs, and its reports to ServiceControl."""

from __future__ import annotations
