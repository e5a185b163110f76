"""Handlers of Django peers write their row by Django's connection, in the transaction that the peer has open."""

from __future__ import annotations

from django.db import connection

from benchmarks.peers.adapters.handling import INSERT


def insert(number: int) -> None:
    """Insert one row."""
    with connection.cursor() as cursor:
        cursor.execute(INSERT, [number])
