"""sqlqueue itself: run with benchmarks.settings, in the project's own environment."""

from __future__ import annotations

from collections.abc import Sequence

import django

from benchmarks.peers.adapters import serving


class Ours(serving.Sender):
    """The public functions."""

    def __init__(self) -> None:
        django.setup()
        # Models can be imported only now.
        from sqlqueue_app import send, send_many  # noqa: PLC0415

        self._send, self._send_many = send, send_many

    def send(self, body: serving.Body) -> None:
        """One row, one transaction."""
        self._send("Bench.Message", body)

    def send_many(self, bodies: Sequence[serving.Body]) -> None:
        """One statement for many rows."""
        self._send_many("Bench.Message", bodies)


if __name__ == "__main__":
    serving.main(lambda: None, Ours)
