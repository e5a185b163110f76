"""One of several senders: `python -m benchmarks.sender_process COUNT`; begins at a line on its input, prints when it has ended."""

from __future__ import annotations

import sys
import time

import django

from benchmarks.messages import MESSAGE_TYPE, body


def main() -> None:
    """Send so many messages, each with a `send()` and a transaction of its own."""
    django.setup()
    # Models can be imported only now.
    from sqlqueue_app import send  # noqa: PLC0415

    # The first message connects and fills the caches; the others have the worker receive before the rate counts.
    for number in range(max(1, int(sys.argv[1]) // 10)):
        send(MESSAGE_TYPE, body(number))
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(int(sys.argv[1])):
        send(MESSAGE_TYPE, body(number))
    # One clock for all processes of a machine.
    print(time.monotonic(), flush=True)


if __name__ == "__main__":
    main()
