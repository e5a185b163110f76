"""The handler of sqlqueue's worker."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.adapters.django_rows import insert
from benchmarks.peers.adapters.handling import handle
from sqlqueue_app import handles


@handles("Bench.Message")
def on_message(message: Any, _context: Any) -> None:
    handle(message, insert)
