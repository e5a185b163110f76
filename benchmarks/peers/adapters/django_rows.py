"""How a handler of a Django peer leaves its row: by Django's connection, in whatever transaction the peer has open."""

from __future__ import annotations

from django.db import connection

from benchmarks.peers.adapters.handling import INSERT


def insert(number: int) -> None:
    """One row."""
    with connection.cursor() as cursor:
        cursor.execute(INSERT, [number])
