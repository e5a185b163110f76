"""One of several senders: `python -m benchmarks.sender_process COUNT`; starts at a line of input and prints its end time."""

from __future__ import annotations

import sys
import time

import django

from benchmarks.messages import MESSAGE_TYPE, body


def main() -> None:
    """Send the requested number of messages, each with its own `send()` and transaction."""
    django.setup()
    # Models can be imported only now.
    from sqlqueue_app import send  # noqa: PLC0415

    # The first message connects and fills the caches; the others make the worker receive before the measurement.
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
