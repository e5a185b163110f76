"""Endpoints that receive batches, and rows for them."""

from __future__ import annotations

from typing import Any

from tests.support.bench import Bench

BATCH = 10


def put_rows(bench: Bench, numbers: range) -> None:
    for number in numbers:
        bench.put(
            f'{{"NServiceBus.EnclosedMessageTypes": "Test.Message", "NServiceBus.MessageId": "{number}"}}',
            f'{{"number": {number}}}'.encode(),
            row_id=f"00000000-0000-0000-0000-{number:012}",
        )


def configure(bench: Bench, **endpoint: Any) -> None:
    bench.configure(**{"BATCH_SIZE": BATCH, "MAX_CONCURRENCY": 1, **endpoint})
