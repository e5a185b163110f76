"""Send in a separate process: `python -m benchmarks.send_process single|unique|many|large COUNT`; empties the queue first."""

from __future__ import annotations

import json
import sys
import time
import uuid

import django

from benchmarks.messages import MESSAGE_TYPE, body

LARGE_BYTES = 1 << 20


def run(how: str, count: int) -> dict[str, object]:
    """Send `count` messages with single `send()` calls or one `send_many()`; returns the rate. Leaves large ones in the queue."""
    django.setup()
    # Models can be imported only now.
    from sqlqueue_app import send, send_many  # noqa: PLC0415
    from sqlqueue_app.conf import get_settings  # noqa: PLC0415
    from sqlqueue_app.messages.addresses import QueueAddress  # noqa: PLC0415
    from sqlqueue_app.tables.connections import connection_of, dialect_of_connection  # noqa: PLC0415
    from sqlqueue_app.tables.queue import QueueTable  # noqa: PLC0415

    settings = get_settings()
    form = dialect_of_connection(connection_of(settings.database)).name
    table = QueueTable(settings.database, settings.address_book(form).resolve(QueueAddress("Bench", form=form)))
    # The first message connects, reads the table definition and fills the caches of both ways.
    send(MESSAGE_TYPE, body())
    table.purge()
    large = {"note": "x" * LARGE_BYTES} if how == "large" else {}
    bodies = [body(number) | large for number in range(count)]
    begin = time.perf_counter()
    used_before = time.process_time()
    if how == "many":
        send_many(MESSAGE_TYPE, bodies)
    elif how == "unique":
        run_id = uuid.uuid4()
        for number, each in enumerate(bodies):
            send(MESSAGE_TYPE, each, unique_key=f"{run_id} {number}", unique_for=60)
    else:
        for each in bodies:
            send(MESSAGE_TYPE, each)
    seconds = time.perf_counter() - begin
    used = time.process_time() - used_before
    found = table.depth(count + 1).waiting
    if not large:
        table.purge()
    return {"messages": found, "rate": count / seconds, "processor_microseconds": used / count * 1e6}


def main() -> None:
    print(json.dumps(run(sys.argv[1], int(sys.argv[2]))))


if __name__ == "__main__":
    main()
