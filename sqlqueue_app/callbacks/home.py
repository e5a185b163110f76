"""The callback queues that this process receives from, by endpoint: where the replies to its requests can go."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from sqlqueue_app.endpoint import Endpoint, ReceivingQueue
from sqlqueue_app.messages.errors import ReplyLost
from sqlqueue_app.receiving.callbacks import CallbackWakeUp
from sqlqueue_app.receiving.receiver import Receiver
from sqlqueue_app.receiving.stopping import PartOfStop
from sqlqueue_app.sending.composer import Composer
from sqlqueue_app.sending.dispatcher import Dispatcher
from sqlqueue_app.sending.pending import pending


@dataclass(frozen=True, slots=True)
class CallbackHome:
    """A callback queue that is leased and received from."""

    endpoint: str
    queue: str
    composer: Composer
    """Composes messages whose replies come to the queue."""
    dispatcher: Dispatcher
    legacy_header: bool
    """Whether requests name the queue in the header of transport 2.x, too."""
    hurry: Callable[[], None]
    """Have the receiver look for a reply soon."""


def home_of(endpoint: Endpoint, queue: str, receiver: Receiver) -> CallbackHome:
    """The home of a callback queue, by its literal name, that the receiver receives from."""
    hurry = receiver.wake_up.hurry if isinstance(receiver.wake_up, CallbackWakeUp) else _nothing
    return CallbackHome(
        endpoint.name,
        queue,
        endpoint.callback_composer(queue),
        Dispatcher(endpoint.alias, endpoint.book, announces=endpoint.settings.announces, endpoint=endpoint.name),
        endpoint.config.legacy_callback_header,
        hurry,
    )


class CallbackHomes:
    """The homes of this process. Safe from any thread; a forked child begins with none."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything: this is another process now."""
        self._lock = threading.Lock()
        self._homes: list[CallbackHome] = []

    def find(self, endpoint: str) -> CallbackHome | None:
        """A home of the endpoint."""
        with self._lock:
            return next((home for home in self._homes if home.endpoint == endpoint), None)

    def has(self, home: CallbackHome) -> bool:
        """Whether replies can still come there."""
        with self._lock:
            return any(other is home for other in self._homes)

    def only(self) -> str | None:
        """The endpoint of the homes, if they are all of one."""
        with self._lock:
            names = {home.endpoint for home in self._homes}
        return names.pop() if len(names) == 1 else None

    def add(self, home: CallbackHome) -> None:
        """Requests may name the queue from now on."""
        with self._lock:
            self._homes.append(home)

    def remove(self, home: CallbackHome, why: str) -> None:
        """No request names the queue any more; those that wait for a reply from it end with ReplyLost. May be called again."""
        with self._lock:
            self._homes = [other for other in self._homes if other is not home]
        pending.lose(home.queue, ReplyLost(f"the reply cannot come any more: {why}"))


class WorkerHomes:
    """The callback queues that a worker receives from: requests of its process may name them while the context is open."""

    def __init__(self, endpoints: Iterable[tuple[Endpoint, Sequence[Receiver], Sequence[ReceivingQueue], PartOfStop]]) -> None:
        self._homes = {
            endpoint.name: (home_of(endpoint, queue.name, receiver), part)
            for endpoint, receivers, queues, part in endpoints
            for receiver, queue in zip(receivers, queues, strict=True)
            if queue.is_callback_queue
        }

    def __enter__(self) -> None:
        for home, _ in self._homes.values():
            homes.add(home)

    def __exit__(self, *exception: object) -> None:
        for home, _ in self._homes.values():
            homes.remove(home, f"the worker that received from {home.queue!r} has ended")

    def lost(self, endpoint: str) -> None:
        """Another process has the endpoint's callback queue now: leave its replies alone."""
        if endpoint in self._homes:
            home, part = self._homes[endpoint]
            part.retire()
            homes.remove(home, f"another process has taken over {home.queue!r}, because this one was silent for too long")


def _nothing() -> None:
    return None


homes = CallbackHomes()
"""The homes of this process."""

os.register_at_fork(after_in_child=homes.reset)
