"""Reply listeners: the callback queues from which this process receives the replies to its requests.

A process leases one at its first `request()` and releases it at its end, unless it runs a worker with CALLBACKS True. Nothing
starts earlier, so an earlier fork loses nothing; a child that is forked later starts without any.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from django.db import connections

from sqlqueue_app.conf import get_settings
from sqlqueue_app.messages.errors import ConfigurationError, ReplyLost
from sqlqueue_app.receiving.background import Worker
from sqlqueue_app.receiving.endpoint import ReceivingEndpoint, ReceivingQueue
from sqlqueue_app.receiving.instances import Heartbeat
from sqlqueue_app.receiving.receiver import Receiver
from sqlqueue_app.receiving.special_queues import CallbackWakeUp
from sqlqueue_app.receiving.stopping import PartOfStop, StopSignal
from sqlqueue_app.receiving.waiting import listening
from sqlqueue_app.sending.composer import Composer
from sqlqueue_app.sending.dispatcher import Dispatcher
from sqlqueue_app.sending.replies import pending
from sqlqueue_app.tables.connections import on_settings_changed

logger = logging.getLogger("sqlqueue.callbacks")


@dataclass(frozen=True, slots=True)
class ReplyListener:
    """A leased callback queue with its receiver."""

    endpoint: str
    queue: str
    composer: Composer
    """Composes messages whose replies go to the queue."""
    dispatcher: Dispatcher
    legacy_header: bool
    """Whether requests also name the queue in the header of transport 2.x."""
    poll_soon: Callable[[], None]
    """Makes the receiver poll for a reply soon."""


def reply_listener_of(endpoint: ReceivingEndpoint, queue: str, receiver: Receiver) -> ReplyListener:
    """The listener of a receiver's callback queue, given by its literal name."""
    poll_soon = receiver.wake_up.poll_soon if isinstance(receiver.wake_up, CallbackWakeUp) else lambda: None
    composer = endpoint.callback_composer(queue)
    return ReplyListener(
        endpoint.name,
        queue,
        composer,
        Dispatcher(endpoint.alias, endpoint.book, endpoint=endpoint.name, claim_checks=composer.claim_checks),
        endpoint.config.legacy_callback_header,
        poll_soon,
    )


class ReplyListeners:
    """The listeners of this process. Safe from any thread; a forked child starts without any."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Drop everything, in a forked child."""
        self._lock = threading.Lock()
        self._listeners: list[ReplyListener] = []
        self.running: Sequence[str] = ()

    def find(self, endpoint: str) -> ReplyListener | None:
        """A listener of the endpoint."""
        with self._lock:
            return next((listener for listener in self._listeners if listener.endpoint == endpoint), None)

    def has(self, listener: ReplyListener) -> bool:
        """Whether replies can still arrive there."""
        with self._lock:
            return any(other is listener for other in self._listeners)

    def only(self) -> str | None:
        """The endpoint of the worker in this process, if it is a single one with callbacks."""
        return self.running[0] if len(self.running) == 1 else None

    def add(self, listener: ReplyListener) -> None:
        """Allow requests to name the queue."""
        with self._lock:
            self._listeners.append(listener)

    def remove(self, listener: ReplyListener, why: str) -> None:
        """Stop requests from naming the queue, and end waiting ones with ReplyLost. May be called repeatedly."""
        with self._lock:
            self._listeners = [other for other in self._listeners if other is not listener]
        pending.lose(listener.queue, ReplyLost(f"the reply can no longer arrive: {why}"))


class WorkerReplyListeners:
    """The callback queues of a worker: requests of its process may name them while the context is open."""

    def __init__(self, endpoints: list[tuple[ReceivingEndpoint, list[Receiver], list[ReceivingQueue], PartOfStop]]) -> None:
        self._names = [endpoint.name for endpoint, *_ in endpoints if endpoint.config.callbacks]
        self._listeners = {
            endpoint.name: (reply_listener_of(endpoint, queue.name, receiver), part)
            for endpoint, receivers, queues, part in endpoints
            for receiver, queue in zip(receivers, queues, strict=True)
            if queue.is_callback_queue
        }

    def __enter__(self) -> None:
        reply_listeners.running = self._names
        for listener, _ in self._listeners.values():
            reply_listeners.add(listener)

    def __exit__(self, *exception: object) -> None:
        reply_listeners.running = ()
        for listener, _ in self._listeners.values():
            reply_listeners.remove(listener, f"the worker that received from {listener.queue!r} has ended")

    def lost(self, endpoint: str) -> None:
        """Stop using the endpoint's callback queue, which another process holds now."""
        if endpoint in self._listeners:
            listener, part = self._listeners[endpoint]
            part.retire()
            reply_listeners.remove(
                listener, f"another process has taken over {listener.queue!r}, because this one sent no heartbeat for too long"
            )


reply_listeners = ReplyListeners()
"""The listeners of this process."""

os.register_at_fork(after_in_child=reply_listeners.reset)


# The time that a normal exit waits for a message of the callback queue in progress.
CLOSE_SECONDS = 10.0


class CallbackReceiver:
    """Receives from a callback queue of one endpoint in its own threads, and renews its lease. Started once."""

    def __init__(self, endpoint: ReceivingEndpoint) -> None:
        self._endpoint = endpoint
        self._stop = StopSignal()
        self._thread = threading.Thread(target=self._run, name=f"sqlqueue-callbacks-{endpoint.name}", daemon=True)
        self._why = "the process ends"

    def start(self) -> ReplyListener:
        """Lease a queue and start receiving, with the calling thread's connections.

        ConfigurationError if no queue is free and none can be created, QueueNotFound without an error queue, DatabaseError.
        """
        each = self._endpoint
        with each.registering():
            self._lease = each.lease(concurrency=each.config.callback_concurrency)
        try:
            (queue,) = [queue for queue in each.receiving_queues(self._lease.callback_queue) if queue.is_callback_queue]
            each.check_tables([queue])
            self._receiver: Receiver = each.receiver(queue, self._stop)
            mine = [self._receiver]
            self.heartbeat = Heartbeat(self._lease, mine, mine, unpaused=mine, on_lost=self._lost)
            self.listener = reply_listener_of(each, queue.name, self._receiver)
            reply_listeners.add(self.listener)
            # At once: if the process is killed before its first heartbeat, its row must not be that of a dead worker.
            self.heartbeat.beat()
            self._thread.start()
        except BaseException:
            self._lease.release_at_exit(logger)
            raise
        logger.info(
            "replies to %s are received from %s", each.name, queue.name, extra={"event": "callbacks_started", "queue": queue.name}
        )
        return self.listener

    def close(self, timeout: float | None = None) -> None:
        """Stop receiving and release the queue. Returns when the threads have ended, or after `timeout` seconds."""
        self._stop.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        try:
            jobs = [self.heartbeat.job(), *self._endpoint.watching_jobs()]
            with listening(self._endpoint.alias, [self._receiver.wake_up], self._stop):
                Worker([self._receiver], jobs, self._stop).run()
        except Exception:
            logger.critical("the receiver of callbacks died", extra={"event": "thread_died"}, exc_info=True)
        finally:
            self._stop.set()
            self._leave()
            self._lease.release_at_exit(logger)
            connections.close_all()

    def _lost(self) -> None:
        self._why = "it sent no heartbeat for too long, and another process has the queue now"
        # Now, not after the thread has ended: the next request needs another queue.
        self._leave()
        self._stop.set()

    def _leave(self) -> None:
        reply_listeners.remove(self.listener, f"this process no longer receives from {self.listener.queue!r}: {self._why}")


class _OfThisProcess:
    """The callback receivers started by this process, one for each endpoint that it sends as."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._lock = threading.Lock()
        self._receivers: dict[str, CallbackReceiver] = {}

    def listener(self, name: str) -> ReplyListener:
        if (known := reply_listeners.find(name)) is not None:
            return known
        with self._lock:
            if (known := reply_listeners.find(name)) is not None:
                return known
            # One that lost its queue may still be ending.
            if (former := self._receivers.pop(name, None)) is not None:
                former.close(CLOSE_SECONDS)
            started = CallbackReceiver(ReceivingEndpoint(get_settings(), name))
            listener = started.start()
            self._receivers[name] = started
            # Registered last, called first. mssql-python closes its connections in a hook registered at import; a thread that
            # still uses one then crashes the process.
            atexit.unregister(close_listeners)
            atexit.register(close_listeners, CLOSE_SECONDS)
            return listener

    def close(self, timeout: float | None = None) -> None:
        with self._lock:
            receivers, self._receivers = self._receivers, {}
        for each in receivers.values():
            each.close(timeout)


_of_this_process = _OfThisProcess()
os.register_at_fork(after_in_child=_of_this_process.reset)


def reply_listener(endpoint: str | None) -> ReplyListener:
    """The listener for replies to a process that sends as the endpoint; starts a receiver if the process has none.

    Without an endpoint, uses that of a worker. ConfigurationError if there is none, if its CALLBACKS is False, or if no callback
    queue is free and none can be created.
    """
    settings = get_settings()
    endpoint = endpoint or reply_listeners.only()
    if endpoint is None:
        raise ConfigurationError(
            'request() needs a queue for the reply: set SQLQUEUE["SEND_AS"] to the endpoint that this process sends as, '
            "and run sqlqueue_install"
        )
    if not settings.senders[endpoint].callbacks:
        raise ConfigurationError(
            f'request() needs a callback queue, but SQLQUEUE["ENDPOINTS"][{endpoint!r}]["CALLBACKS"] is False: remove that'
        )
    return _of_this_process.listener(endpoint)


close_listeners = _of_this_process.close


on_settings_changed(close_listeners, "SQLQUEUE", "DATABASES")
