"""The fixed receiver of transports 1.x and 2.0: `maximum` polling threads from start to end (transport reference 4.1)."""

from __future__ import annotations

from sqlqueue_app.messages.errors import DatabaseError
from sqlqueue_app.policies.fixed_threads import FixedThread
from sqlqueue_app.receiving.receiver import Poller, Receiver
from sqlqueue_app.receiving.wake_up import Watch


class FixedReceiver(Receiver):
    """Runs exactly `maximum` polling threads; each waits by its own back-off, and for longer after a fault.

    Where new messages are announced, the threads rest instead, and one of them looks now and then for all.
    """

    _is_started = False

    def start(self) -> None:
        """Start all threads."""
        self._is_started = True
        self._fill("start")

    def _concurrency_changed(self) -> None:
        super()._concurrency_changed()
        if self._is_started:
            self._fill("higher concurrency")

    def tick(self) -> None:
        """Start threads that the system refused before: nothing else would ask for them again."""
        if self._threads_refused:
            self._fill("refused before")

    def _fill(self, reason: str) -> None:
        while self._start_thread(reason):
            pass

    def _work(self, number: int, poller: Poller) -> None:
        policy = FixedThread()
        watch = Watch(self.wake_up)
        while not self._stop.is_set():
            if self._ends_as_surplus(number):
                return
            if self._gate.is_closed:
                self._sit_out(number, poller)
                continue
            mark = self._outage.mark
            try:
                wait = policy.polled(succeeded=poller.poll(watch.begin()))
            except DatabaseError as error:
                self._noticed(error, poller, mark)
                self._stop.wait(policy.faulted())
                continue
            self._outage.over(mark)
            if watch.saw_nothing:
                self._rest(wait)
            elif wait:
                self._wait(wait)
        with self._lock:
            self._ended(number)
