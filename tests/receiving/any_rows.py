"""An endpoint that receives rows of any shape, and the tables where they can end."""

from __future__ import annotations

from typing import Any

from tests.support.bench import Bench
from tests.support.shapes import delayed_table

OUT = ("error", "audit", "Other", "Acknowledged")


def configured(bench: Bench, endpoint: dict[str, Any]) -> Bench:
    # The other models back off more and more while they find poison, as those of old transports did.
    bench.configure(**{"AUDIT_QUEUE": "audit", "CONCURRENCY_MODEL": "monitor", **endpoint})
    bench.install_queues(*OUT)
    return bench


def empty(bench: Bench) -> None:
    for name in OUT:
        bench.table(name).purge()
    with bench.database.connection.cursor() as cursor:
        cursor.execute(f"DELETE FROM {delayed_table(bench).qualified}")
