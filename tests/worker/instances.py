"""Helpers that show the instances of a bench and wait for them."""

from __future__ import annotations

import threading
from collections.abc import Callable

from sqlqueue_app.conf import get_settings
from sqlqueue_app.management.output import status_document
from sqlqueue_app.models import Instance
from sqlqueue_app.receiving.instances import InstanceLease, lease_instance
from sqlqueue_app.status.overview import read_status
from tests.support.bench import Bench

# Long enough for any model to poll again, if it polled at all.
A_MOMENT = 0.15


def nothing_happens(seen: Callable[[], object]) -> bool:
    before = seen()
    threading.Event().wait(A_MOMENT)
    return seen() == before


def states(bench: Bench) -> list[str]:
    return [each["state"] for each in status_document(read_status())["instances"]]


def bench_threads(bench: Bench) -> dict[str, int]:
    (row,) = Instance.objects.using(bench.database.alias)
    return {queue: count for queue, count in row.threads.items() if count}


def lease(bench: Bench) -> InstanceLease:
    return lease_instance(
        get_settings().endpoint("Sales"), alias=bench.database.alias, concurrency=2, exists=lambda name: True, make=str
    )
