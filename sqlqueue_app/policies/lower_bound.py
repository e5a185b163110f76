"""From where a receive looks: the lower bound that keeps dead rows out of its way.

A receive that walks from the start of the table meets every row that is dead but not yet vacuumed, all of them while somebody
holds an old transaction open: measured 340 instead of 18,000 receives a second after 60,000 messages (performance reference 4).
"""

from __future__ import annotations

from dataclasses import dataclass

# The bound must never hide a row that came back below it or was committed late: after so long a receive looks from the start.
LOOK_AGAIN_SECONDS = 0.1
# A look from the start that takes long may take this part of the time at most; never less often than the cap.
LOOK_AGAIN_SHARE = 0.1
LOOK_AGAIN_CAP_SECONDS = 1.0


@dataclass(slots=True)
class LowerBound:
    """The lowest number that the next receive asks for. Instants are seconds of a monotonic clock.

    One for each queue and process: its threads share it, so that one of them looks from the start for all. Used without a lock:
    whatever threads write at the same time, the bound is one that some receive has proved, or 0.
    """

    lowest: int = 0
    looked_at: float = 0.0
    wait_seconds: float = LOOK_AGAIN_SECONDS

    def for_receive(self, now: float) -> int:
        """The bound for a receive that begins now; 0 when it is time to look from the start, for the first that asks."""
        if now - self.looked_at >= self.wait_seconds:
            self.looked_at = now
            return 0
        return self.lowest

    def received(self, number: int, *, asked: int, began: float, now: float) -> None:
        """A receive that began with the bound `asked` got the row of this number."""
        if asked == 0:
            self.looked_at = now
            self.wait_seconds = min(max(LOOK_AGAIN_SECONDS, (now - began) / LOOK_AGAIN_SHARE), LOOK_AGAIN_CAP_SECONDS)
            self.lowest = number + 1
        elif self.lowest >= asked:
            # Another thread may be further; or has looked from the start and gone back, which holds.
            self.lowest = max(self.lowest, number + 1)

    def forget(self) -> None:
        """Look from the start next: nothing was found, or a row was given back."""
        self.lowest = 0
