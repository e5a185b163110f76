"""A saga and a handler that does the same by hand; each message belongs to one of many."""

from __future__ import annotations

import itertools
import os
from typing import Any

from django.apps.registry import Apps
from django.db import models

from sqlqueue_app import Saga, handles, starts

WAY = "SQLQUEUE_BENCH_SAGA"
"""`hand`: a handler locks and saves a row; `continues`: a saga that runs; `starts`: each message starts a saga."""

SAGAS = 10_000
"""The number of sagas, so high that messages in progress rarely belong to the same one."""

_numbers = itertools.count()


def _number(_message: Any) -> int:
    number = next(_numbers)
    return number if os.environ[WAY] == "starts" else number * 7_919 % SAGAS


class OrderSaga(Saga):
    """Counts its messages."""

    correlate_by = "number"
    history_limit = 10
    number = models.IntegerField(unique=True)
    count = models.IntegerField(default=0)

    class Meta:
        app_label = "sqlqueue_app"
        db_table = "bench_saga"
        apps = Apps()

    if os.environ[WAY] != "hand":

        @starts("Bench.Message", correlate=_number)
        def place(self, _message: Any, _context: Any) -> None:
            """Count the message."""
            self.count += 1


if os.environ[WAY] == "hand":

    @handles("Bench.Message")
    def place(message: Any, context: Any) -> None:
        """Lock the row of the message and count it."""
        row = OrderSaga._base_manager.using(context.connection.alias).select_for_update().get(number=_number(message))
        row.count += 1
        row.save(using=context.connection.alias)
