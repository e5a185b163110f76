"""What announcements of new delayed messages do: the thread that moves them looks into their table at once."""

from __future__ import annotations

from collections.abc import Callable

from sqlqueue_app.databases.wake_up import wake_up_channel
from sqlqueue_app.tables.delayed import DelayedTable


class DelayedWakeUp:
    """For one delayed table: whether everything in it is announced, and whether something was. Safe from any thread."""

    def __init__(self, delayed: DelayedTable, wake: Callable[[], None]) -> None:
        """`wake` ends the wait of the thread that looks."""
        self.queue = delayed.address.table
        self.qualified = delayed.qualified
        self.channel = wake_up_channel(delayed.qualified)
        self._wake = wake
        self._covered = False
        self._announced = False

    @property
    def covered(self) -> bool:
        """Whether every new message, whoever stores it, is announced to us."""
        return self._covered

    def cover(self, covered: bool) -> None:
        """Say whether every new message is announced from now on."""
        self._covered = covered

    def wake(self) -> None:
        """There may be a message that is due earlier than those that are known."""
        self._announced = True
        self._wake()

    def wake_all(self) -> None:
        """Announcements may have been missed, or will be: the same, as one thread looks."""
        self.wake()

    def take(self) -> bool:
        """Whether there was an announcement since the last call. Who takes it looks afterwards."""
        announced, self._announced = self._announced, False
        return announced
