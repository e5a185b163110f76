"""The task of django-q2."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.adapters.django_rows import insert
from benchmarks.peers.adapters.handling import handle


def on_message(body: dict[str, Any]) -> None:
    """Called by its path."""
    handle(body, insert)
