"""The adaptive receiver of transport 2.1: as many polling threads as the ramp-up controller asks for (transport reference 4.2)."""

from __future__ import annotations

from typing import Any

from sqlqueue_app.messages.errors import DatabaseError
from sqlqueue_app.policies.back_off import BackOff
from sqlqueue_app.policies.ramp_up import RampUpController, SlowTaskMonitor, Step
from sqlqueue_app.receiving.receiver import OUTAGE_CAP_SECONDS, OUTAGE_FIRST_SECONDS, Poller, Receiver
from sqlqueue_app.receiving.wake_up import Watch


class AdaptiveReceiver(Receiver):
    """Keeps between one and `maximum` polling threads on one queue."""

    def __init__(self, queue: str, **options: Any) -> None:
        super().__init__(queue, **options)
        self._slow_tasks = SlowTaskMonitor()

    def start(self) -> None:
        """Start the first thread."""
        self._start_thread("start")

    def tick(self) -> None:
        """The slow-task monitor's tick: one more thread for each message that keeps a thread busy for long."""
        with self._lock:
            extra = self._slow_tasks.tick()
        for _ in range(extra):
            self._start_thread("slow message")

    def _work(self, number: int, poller: Poller) -> None:
        while True:
            self._poll_until_idle(number, poller)
            with self._lock:
                # The last thread stays, with fresh counters: the same as a new one, without a new connection.
                if self._stop.is_set() or self._budget.live > 1:
                    self._ended(number)
                    return

    def _ended(self, number: int) -> None:
        super()._ended(number)
        self._slow_tasks.ended(number)

    def _poll_until_idle(self, number: int, poller: Poller) -> None:
        """One thread's life in the words of the ramp-up controller."""
        controller = RampUpController()
        watch = Watch(self.wake_up)
        outage = BackOff(OUTAGE_FIRST_SECONDS, OUTAGE_CAP_SECONDS)
        while not self._stop.is_set():
            if self._gate.is_closed:
                self._sit_out(number, poller)
                continue
            with self._lock:
                if self._budget.has_surplus:
                    return
                self._slow_tasks.loop_began(number)
            step = controller.next_step()
            if step is Step.END:
                return
            if step is Step.RAMP_UP_AND_POLL:
                self._start_thread("ramp-up")
            mark = self._outage.mark
            try:
                succeeded = poller.poll(watch.begin())
            except DatabaseError as error:
                self._noticed(error, poller, mark)
                # One thread stays to look for the database, the others end.
                if self.live_threads > 1:
                    return
                self._stop.wait(outage.next_wait())
                continue
            self._outage.over(mark)
            outage.reset()
            wait = controller.polled(succeeded=succeeded)
            if watch.saw_nothing and self.live_threads == 1:
                self._rest_alone(number, wait)
            elif wait:
                self._wait(wait)

    def _sit_out(self, number: int, poller: Poller) -> None:
        with self._lock:
            # A pause is no slow message.
            self._slow_tasks.ended(number)
        super()._sit_out(number, poller)

    def _rest_alone(self, number: int, wait: float) -> None:
        """What the last thread does at an empty queue; the others wait as ever, so that they end as ever."""
        with self._lock:
            # A long rest is no slow message.
            self._slow_tasks.ended(number)
        self._rest(wait)
