"""How many messages the next receive takes into one transaction.

A commit costs as much as ten receives, so that many messages in one transaction are cheap (performance reference 1); but they wait
for each other, and are all received again when their transaction is lost. So a batch grows only while the queue is deep and
handlers are quick, and after a loss each message is taken alone, so that the one to blame is found.
"""

from __future__ import annotations

from typing import Final, Literal

# More rows gain nothing (performance reference 1: 50 and 100 rows come to the same).
AUTO_MAXIMUM: Final = 64
# A batch takes no longer than this, so that its first message waits for its commit no longer either.
AUTO_SECONDS: Final = 0.1


class BatchSize:
    """The size for one receiving thread: fixed, or by itself with "auto". Times are seconds."""

    def __init__(self, size: int | Literal["auto"] = 1) -> None:
        self._automatic = size == "auto"
        self._size = 1 if size == "auto" else size
        self._alone = 0

    def next(self) -> int:
        """The most rows that the next receive takes. Asked once for each receive."""
        if self._alone:
            self._alone -= 1
            return 1
        return self._size

    def done(self, received: int, seconds: float, *, failed: bool) -> None:
        """A batch came to its end after so long; `failed` if a message of it was not handled."""
        if not self._automatic:
            return
        if failed:
            self._size = 1
        elif seconds > AUTO_SECONDS:
            self._size = max(1, int(received * AUTO_SECONDS / seconds))
        elif received >= self._size and seconds <= AUTO_SECONDS / 2:
            self._size = min(self._size * 2, AUTO_MAXIMUM)

    def lost(self, received: int) -> None:
        """The transaction of a batch was lost with all its messages: they are received alone now, and others beside them."""
        self._alone = received if received > 1 else 0
        if self._automatic:
            self._size = 1
