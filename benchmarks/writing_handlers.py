"""A handler that writes a row to each of the configured databases."""

from __future__ import annotations

import os
from typing import Any

from django.db import connections

from sqlqueue_app import handles

WRITES = "SQLQUEUE_BENCH_WRITES"
"""Names their aliases, separated by commas."""

INSERT = "INSERT INTO bench_effects DEFAULT VALUES"

_ALIASES = os.environ[WRITES].split(",")


@handles("Bench.Message")
def on_message(_message: Any, _context: Any) -> None:
    for alias in _ALIASES:
        with connections[alias].cursor() as cursor:
            cursor.execute(INSERT)
