"""The message of all benchmarks: about 600 B of headers as an endpoint writes them, and a body of 1 KB of JSON."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime
from typing import Any

from sqlqueue_app.messages.envelope import outgoing_headers, shared_headers
from sqlqueue_app.messages.headers import write_headers

MESSAGE_TYPE = "Bench.Message"
BODY_BYTES = 1024
HEADER_BYTES = 600


def body(number: int = 0) -> dict[str, Any]:
    """The body as a handler receives it; as JSON it has BODY_BYTES bytes."""
    found = {
        "order_id": f"{number:010}",
        "customer": "Zoë & Söhne",
        "placed_at": "2026-11-20T14:00:00Z",
        "total": 129.9,
        "express": False,
        "lines": [{"sku": "SKU-0001", "quantity": 2}, {"sku": "SKU-0002", "quantity": 1}],
        "note": "",
    }
    missing = BODY_BYTES - len(json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode())
    return {**found, "note": "x" * missing}


def stored_body() -> bytes:
    """The bytes of a body in a row."""
    return json.dumps(body(), ensure_ascii=False, separators=(",", ":")).encode()


def stored_headers() -> str:
    """The text of the headers in a row, padded to HEADER_BYTES."""
    headers = outgoing_headers(
        message_id=str(uuid.uuid4()),
        now=datetime.now(UTC),
        shared=shared_headers(
            endpoint="Bench",
            machine="benchmark-machine",
            host_id=uuid.uuid4(),
            reply_to='"public"."Bench"',
            content_type="application/json",
            enclosed_types=MESSAGE_TYPE,
        ),
    )
    missing = HEADER_BYTES - len(write_headers({**headers, "Padding": ""}))
    return write_headers({**headers, "Padding": "x" * missing} if missing >= 0 else headers)
