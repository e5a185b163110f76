"""Receiving by priority: the threads of one receiver take turns at the queues of an endpoint with PRIORITIES."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from sqlqueue_app.dialects.schema import wake_up_channel
from sqlqueue_app.policies.priorities import PRIORITIES, PriorityTurns
from sqlqueue_app.receiving.receiver import QueuePoller
from sqlqueue_app.receiving.stopping import StopSignal
from sqlqueue_app.receiving.waiting import WakeUp
from sqlqueue_app.tables.queue import QueueTable

# An empty queue is not polled again for this long while another one has messages, so that with a backlog of one priority not
# every message costs a poll of the others.
EMPTY_SECONDS = 0.01


class LevelPoller(QueuePoller):
    """Polls the queue of one priority for a `PriorityPoller`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.stays: Callable[[], bool] = lambda: True
        """Whether the next message is taken from this queue too."""

    @property
    def has_rows(self) -> bool:
        """Whether it holds rows that were received ahead."""
        return self._processor is not None and bool(self._processor.transaction.rows_ahead)

    def _may_receive_ahead(self) -> bool:
        return super()._may_receive_ahead() and self.stays()


class PriorityPoller:
    """Polls the queues of all priorities in one thread, as `PriorityTurns` orders them. A `Poller`."""

    def __init__(self, levels: Sequence[LevelPoller]) -> None:
        """`levels` in the order of PRIORITIES."""
        self._levels = tuple(levels)
        self._turns = PriorityTurns()
        self._level = 0
        self._found: bool | None = None
        self._received: Callable[[bool], None] | None = None
        self._rests_until = [0.0] * len(self._levels)
        for level in self._levels:
            level.stays = self._stays

    @property
    def handling(self) -> bool:
        """Whether a message is being handled."""
        return self._levels[self._level].handling

    @property
    def queue(self) -> str:
        """The queue that was polled last."""
        return self._levels[self._level].queue

    @property
    def received(self) -> int:
        """The number of messages received."""
        return sum(level.received for level in self._levels)

    def poll(self, received: Callable[[bool], None] | None = None) -> bool:
        """See `Poller`: process a batch of the first queue that has messages; empty means that all are."""
        self._received = received
        is_empty = True
        for level in self._order():
            self._level, self._found = level, None
            succeeded = self._levels[level].poll(self._note)
            if self._has_found:
                return succeeded
            is_empty = is_empty and self._found is False
        if is_empty and received is not None:
            received(False)
        return False

    @property
    def _has_found(self) -> bool:
        return self._found is True

    def _note(self, found: bool) -> None:
        self._found = found
        if not found:
            self._rests_until[self._level] = time.monotonic() + EMPTY_SECONDS
            return
        self._turns.took(self._level)
        if self._received is not None:
            self._received(True)

    def _order(self) -> Sequence[int]:
        if self._levels[self._level].has_rows:
            return (self._level,)
        now, order = time.monotonic(), self._turns.order()
        rested = [level for level in order if self._rests_until[level] <= now]
        return [*rested, *(level for level in order if level not in rested)]

    def _stays(self) -> bool:
        return self._order()[0] == self._level

    def peek(self) -> int:
        """An upper bound of the waiting messages of all priorities."""
        return sum(level.peek() for level in self._levels)

    def close(self) -> None:
        """Close the thread's connections; rows received ahead return to their queue."""
        for level in self._levels:
            level.close()


class LevelWakeUp:
    """A listener's state of the queue of one priority; its announcements wake the receiver of all priorities."""

    def __init__(self, table: QueueTable, levels: PriorityWakeUp) -> None:
        self.queue = table.address.table
        self.qualified = table.qualified
        self.channel = wake_up_channel(table.qualified)
        self._levels = levels
        self._push_enabled = False

    @property
    def push_enabled(self) -> bool:
        """Whether every new message of this queue is announced to this process."""
        return self._push_enabled

    @push_enabled.setter
    def push_enabled(self, enabled: bool) -> None:
        self._push_enabled = enabled
        self._levels.push_enabled = all(level.push_enabled for level in self._levels.channels)

    @property
    def is_quiet(self) -> bool:
        """Whether messages of all priorities are rare."""
        return self._levels.is_quiet

    def wake(self) -> None:
        """Have one thread poll."""
        self._levels.wake()

    def wake_all(self) -> None:
        """Have every thread poll."""
        self._levels.wake_all()


class PriorityWakeUp(WakeUp):
    """Ends the idle waits of the threads for a message of any priority; idle waits are long if each queue announces all."""

    def __init__(self, tables: Sequence[QueueTable], stop: StopSignal) -> None:
        """`tables` in the order of PRIORITIES."""
        main = tables[PRIORITIES.index("normal")]
        super().__init__(main.address.table, main.qualified, stop)
        self.channels = [LevelWakeUp(table, self) for table in tables]
