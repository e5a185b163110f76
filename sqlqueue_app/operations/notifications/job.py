"""Notifications in a worker: a job that looks every ten seconds, and a thread that sends, which a slow receiver may hold up."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Final

from django.db import connections
from django.db.models import Exists, OuterRef, Q

from sqlqueue_app.conf import Settings
from sqlqueue_app.instances import managed_alias
from sqlqueue_app.messages.errors import TransientError
from sqlqueue_app.models import DeliveryState, NotificationDelivery, NotificationRule
from sqlqueue_app.operations.notifications.evaluation import LOOK_SECONDS, Evaluator
from sqlqueue_app.operations.notifications.sending import TIMEOUT_SECONDS, Sender
from sqlqueue_app.receiving.stopping import StopSignal
from sqlqueue_app.scheduler import BackgroundJob

logger = logging.getLogger("sqlqueue.notifications")

# An attempt ends by its timeout; a server of mail may take that for each step of the talk, and is not waited for longer.
_END_SECONDS: Final = TIMEOUT_SECONDS + 1.0


class Notifications:
    """Looks at the rules and sends what is due, in one worker. `now` is the clock of the managed tables' database."""

    def __init__(
        self,
        settings: Settings,
        stop: StopSignal,
        *,
        now: Callable[[], datetime] | None = None,
        timeout: float = TIMEOUT_SECONDS,
    ) -> None:
        self._alias = managed_alias()
        self._evaluator = Evaluator(settings, now=now)
        self._sender = Sender(settings, now=now, timeout=timeout)
        self._stop = stop
        self._wake = threading.Event()
        self._leaves_out = False
        stop.subscribe(self._wake.set)

    def job(self) -> BackgroundJob:
        """`look` as a background job."""
        return BackgroundJob("notifications", LOOK_SECONDS, self._run)

    @contextmanager
    def running(self) -> Iterator[None]:
        """While open, a thread sends what `look` has found. It ends with the stop signal, which must be set when this is left."""
        thread = threading.Thread(target=self._send, name="sqlqueue-notifications", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join(_END_SECONDS)

    def look(self) -> bool:
        """Look at the rules, and have the thread send what waits; whether anything does. Raises DatabaseError.

        One statement where no rule is enabled and nothing waits, at every second call.
        """
        if self._leaves_out:
            self._leaves_out = False
            return False
        waiting = NotificationDelivery.objects.using(self._alias).filter(rule=OuterRef("pk"), state=DeliveryState.WAITING)
        rules = NotificationRule.objects.using(self._alias).annotate(has_waiting=Exists(waiting))
        found = list(rules.filter(Q(enabled=True) | Q(has_waiting=True)).values_list("enabled", "has_waiting"))
        self._leaves_out = not found
        made = self._evaluator.evaluate() if any(enabled for enabled, _waiting in found) else 0
        is_waiting = made > 0 or any(has_waiting for _enabled, has_waiting in found)
        if is_waiting:
            self._wake.set()
        return is_waiting

    def _run(self) -> None:
        try:
            self.look()
        except TransientError:
            return  # the database is away, or (SQLite) written to by somebody who takes long: the next look comes

    def _send(self) -> None:
        """What the thread does."""
        # Else nobody would be told of anything any more.
        with self._stop.failing_with(logger, "the thread that sends notifications died"):
            while not self._stop.is_set():
                self._wake.wait()
                self._wake.clear()
                self._send_once()

    def _send_once(self) -> None:
        try:
            self._sender.send_due(self._stop)
        except TransientError:
            return  # the next look wakes it
        except Exception:
            extra = {"event": "background_job_failed", "job": "notifications"}
            logger.exception("sending notifications failed", extra=extra)
        finally:
            connections.close_all()
