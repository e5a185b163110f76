"""Receiving replies in a process that runs no worker: one callback queue, leased at the first request and given back at the end.

Nothing starts before the first `request()`, so nothing is lost by a fork before it. A child that was forked later begins anew.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from typing import Any

from django.core.signals import setting_changed
from django.db import connections

from sqlqueue_app.callbacks.home import CallbackHome, home_of, homes
from sqlqueue_app.conf import get_settings
from sqlqueue_app.endpoint import Endpoint
from sqlqueue_app.instances import lease_instance, managed_alias
from sqlqueue_app.messages.errors import ConfigurationError
from sqlqueue_app.receiving.heartbeat import Heartbeat
from sqlqueue_app.receiving.receiver import Receiver
from sqlqueue_app.receiving.stopping import StopSignal
from sqlqueue_app.receiving.wake_up import listening
from sqlqueue_app.receiving.worker import Worker
from sqlqueue_app.tables.connections import connection_of, database_errors, dialect_of_connection

logger = logging.getLogger("sqlqueue.callbacks")

# An orderly end of the process waits so long for a message of the callback queue that is being handled.
CLOSE_SECONDS = 10.0


class CallbackReceiver:
    """Receives from a callback queue of one endpoint in threads of its own, and keeps its lease. Started once."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._stop = StopSignal()
        self._thread = threading.Thread(target=self._run, name=f"sqlqueue-callbacks-{endpoint.name}", daemon=True)
        self._why = "the process ends"

    def start(self) -> CallbackHome:
        """Lease a queue and start receiving; uses the calling thread's connections for that.

        ConfigurationError if no queue is free or installed, QueueNotFound without an error queue, DatabaseError.
        """
        each = self._endpoint
        with database_errors(dialect_of_connection(connection_of(each.alias)), f"register an instance of {each.name!r}"):
            self._lease = lease_instance(
                each.config, alias=managed_alias(), concurrency=each.config.callback_concurrency, exists=each.queue_exists
            )
        try:
            (queue,) = [queue for queue in each.receiving_queues(self._lease.callback_queue) if queue.is_callback_queue]
            each.check_tables([queue])
            self._receiver: Receiver = each.receiver(queue, self._stop)
            mine = [self._receiver]
            self.heartbeat = Heartbeat(self._lease, mine, mine, unpaused=mine, on_lost=self._lost)
            self.home = home_of(each, queue.name, self._receiver)
            homes.add(self.home)
            self._thread.start()
        except BaseException:
            self._lease.release_at_the_end(logger)
            raise
        logger.info(
            "replies to %s are received from %s", each.name, queue.name, extra={"event": "callbacks_started", "queue": queue.name}
        )
        return self.home

    def close(self, timeout: float | None = None) -> None:
        """Stop receiving and give the queue back; returns when the threads have ended, or after so many seconds."""
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
            self._lease.release_at_the_end(logger)
            connections.close_all()

    def _lost(self) -> None:
        self._why = "it was silent for too long, and another process has the queue now"
        # At once, and not when the thread has ended: the next request needs another queue.
        self._leave()
        self._stop.set()

    def _leave(self) -> None:
        homes.remove(self.home, f"this process no longer receives from {self.home.queue!r}: {self._why}")


class _OfThisProcess:
    """The callback receivers that this process has started, one for each endpoint that it sends as."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._lock = threading.Lock()
        self._receivers: dict[str, CallbackReceiver] = {}

    def home(self, name: str) -> CallbackHome:
        if (known := homes.find(name)) is not None:
            return known
        with self._lock:
            if (known := homes.find(name)) is not None:
                return known
            # One that lost its queue may still be ending.
            if (former := self._receivers.pop(name, None)) is not None:
                former.close(CLOSE_SECONDS)
            started = CallbackReceiver(Endpoint(get_settings(), name))
            home = started.start()
            self._receivers[name] = started
            return home

    def close(self, timeout: float | None) -> None:
        with self._lock:
            receivers, self._receivers = self._receivers, {}
        for each in receivers.values():
            each.close(timeout)


_of_this_process = _OfThisProcess()
os.register_at_fork(after_in_child=_of_this_process.reset)


def callback_home(endpoint: str | None) -> CallbackHome:
    """Where replies to a process that sends as the endpoint go; starts the receiver if the process has none.

    Without an endpoint a worker's own is taken. ConfigurationError if there is none, if its CALLBACKS is False, or if no callback
    queue is free.
    """
    settings = get_settings()
    endpoint = endpoint or homes.only()
    if endpoint is None:
        raise ConfigurationError(
            'request() needs a queue for the reply: set SQLQUEUE["SEND_AS"] to the endpoint that this process sends as, '
            "and run sqlqueue_install"
        )
    if not settings.senders[endpoint].callbacks:
        raise ConfigurationError(
            f'request() needs a callback queue, but SQLQUEUE["ENDPOINTS"][{endpoint!r}]["CALLBACKS"] is False: set it to True'
        )
    return _of_this_process.home(endpoint)


def close_callbacks(timeout: float | None = None) -> None:
    """End the callback receivers that `request()` has started in this process and give their queues back.

    Waits for their threads, at most so many seconds. Requests that still wait end with ReplyLost; the next `request()` starts
    anew. Runs by itself when the interpreter exits; call it where a process ends by `os._exit` (such as those of multiprocessing).
    """
    _of_this_process.close(timeout)


def _settings_changed(*, setting: str, **_: Any) -> None:
    if setting in ("SQLQUEUE", "DATABASES"):
        close_callbacks()


setting_changed.connect(_settings_changed, dispatch_uid="sqlqueue.callbacks")
atexit.register(close_callbacks, CLOSE_SECONDS)
