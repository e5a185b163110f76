"""Sending what waits to be sent: each notification by one process at a time, at least once, and tried again for an hour.

Who sends has moved the time of the next attempt to the end of his lease before, in a statement of its own: no transaction is open
meanwhile, and what somebody was sending who was killed is sent again once his lease has run out.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Final
from uuid import UUID

from django.conf import settings as django_settings
from django.db import DatabaseError, transaction
from django.db.models import F, QuerySet
from django.utils import translation

from sqlqueue_app.conf import Settings
from sqlqueue_app.instances import managed_alias
from sqlqueue_app.messages.errors import TransientError
from sqlqueue_app.models import DeliveryState, NotificationChannel, NotificationDelivery
from sqlqueue_app.operations.events import EventKind, record_event
from sqlqueue_app.operations.notifications.links import Links
from sqlqueue_app.operations.notifications.mailing import send_mail
from sqlqueue_app.operations.notifications.outcome import SendFailed
from sqlqueue_app.operations.notifications.texts import document_of, lines_of, title_of
from sqlqueue_app.operations.notifications.webhooks import host_is_allowed, post, signed_headers
from sqlqueue_app.receiving.stopping import StopSignal
from sqlqueue_app.tables.clock import database_now
from sqlqueue_app.tables.connections import connection_of, database_errors, dialect_of_connection

logger = logging.getLogger("sqlqueue.notifications")

TIMEOUT_SECONDS: Final = 10.0
# Longer than any attempt takes.
LEASE: Final = timedelta(minutes=2)
# After each attempt but the last.
DELAYS: Final = tuple(timedelta(seconds=seconds) for seconds in (10, 60, 300, 1_800))
MOST_ATTEMPTS: Final = len(DELAYS) + 1
_AT_ONCE: Final = 20
_KEPT_CHARACTERS: Final = 500


class Sender:
    """Sends what is due. One object serves one thread; others, in this process and elsewhere, may compete with it.

    `now` is the clock of the managed tables' database unless another is handed in; `timeout` is in seconds.
    """

    def __init__(self, settings: Settings, *, now: Callable[[], datetime] | None = None, timeout: float = TIMEOUT_SECONDS) -> None:
        self._settings = settings
        self._alias = managed_alias()
        self._now = now or partial(database_now, self._alias)
        self._timeout = timeout
        self._links = Links(settings)

    def send_due(self, stop: StopSignal) -> int:
        """Try everything that is due once, what was never tried first, until the stop; how many attempts. Raises DatabaseError."""
        tried = 0
        with database_errors(dialect_of_connection(connection_of(self._alias)), "send notifications"):
            while not stop.is_set():
                due = self._waiting().filter(next_attempt_at__lte=self._now()).order_by("attempts", "next_attempt_at")
                found = list(due.values_list("pk", "next_attempt_at")[:_AT_ONCE])
                for pk, seen in found:
                    if stop.is_set():
                        break
                    delivery = self._take(pk, seen)
                    if delivery is not None:
                        self._try(delivery)
                        tried += 1
                if len(found) < _AT_ONCE:
                    break
        return tried

    def _waiting(self) -> QuerySet[NotificationDelivery]:
        return NotificationDelivery.objects.using(self._alias).filter(state=DeliveryState.WAITING)

    def _take(self, pk: UUID, seen: datetime | None) -> NotificationDelivery | None:
        """The delivery, which is ours until the lease ends; None if another process has it."""
        mine = self._waiting().filter(pk=pk, next_attempt_at=seen)
        if mine.update(next_attempt_at=self._now() + LEASE, attempts=F("attempts") + 1) != 1:
            return None
        return NotificationDelivery.objects.using(self._alias).select_related("rule").get(pk=pk)

    def _try(self, delivery: NotificationDelivery) -> None:
        extra = {"event": "notification_sent"}
        where = f"{delivery.channel} {shown_target(delivery.channel, delivery.target)}"
        try:
            if delivery.attempts > MOST_ATTEMPTS:
                raise SendFailed("whoever tried to send it has not come back, each time", is_final=True)
            self._send(delivery)
        except SendFailed as error:
            self._failed(delivery, error, where)
            return
        except (TransientError, DatabaseError):
            raise  # of our own statements: the lease runs out
        except Exception as error:  # noqa: BLE001 - what cannot be put into words must not be tried for ever
            self._failed(delivery, SendFailed(f"{type(error).__name__}: {error}"), where)
            return
        # Whoever has it now, since the lease may have run out: it is sent.
        self._waiting().filter(pk=delivery.pk).update(
            state=DeliveryState.SENT, finished_at=self._now(), next_attempt_at=None, error=""
        )
        logger.info("notification %r is sent to %s (%s)", delivery.rule_name, where, delivery.pk, extra=extra)

    def _failed(self, delivery: NotificationDelivery, error: SendFailed, where: str) -> None:
        text = str(error).replace("\x00", "")[:_KEPT_CHARACTERS]
        mine = self._waiting().filter(pk=delivery.pk, attempts=delivery.attempts)
        now = self._now()
        if error.is_final or delivery.attempts >= MOST_ATTEMPTS:
            with transaction.atomic(using=self._alias):
                if mine.update(state=DeliveryState.FAILED, finished_at=now, next_attempt_at=None, error=text):
                    record_event(EventKind.NOTIFICATION_FAILED, delivery.rule_name, {"error": text}, now=now)
            line = "notification %r cannot be sent to %s, given up after %s attempts: %s (%s)"
            extra = {"event": "notification_failed"}
            logger.error(line, delivery.rule_name, where, delivery.attempts, text, delivery.pk, extra=extra)
            return
        delay = DELAYS[delivery.attempts - 1]
        mine.update(next_attempt_at=now + delay, error=text)
        extra_of_delay = {"event": "notification_delayed", "delay_seconds": delay.total_seconds()}
        line = "notification %r cannot be sent to %s, tried again in %g s: %s (%s)"
        logger.warning(line, delivery.rule_name, where, delay.total_seconds(), text, delivery.pk, extra=extra_of_delay)

    def _send(self, delivery: NotificationDelivery) -> None:
        """One attempt; raises SendFailed."""
        rule = delivery.rule
        if rule is None:
            raise SendFailed("the rule was deleted", is_final=True)
        links = self._links
        with translation.override(django_settings.LANGUAGE_CODE):
            rule_link = links.of_rule(rule.pk)
            if delivery.channel == NotificationChannel.MAIL:
                text = "\n".join(lines_of(delivery, links.of_change, rule_link)) + "\n"
                send_mail(delivery.pk, delivery.target.split(), title_of(delivery), text, timeout=self._timeout)
                return
            body = json.dumps(document_of(delivery, links.of_change, rule_link)).encode()
        if not host_is_allowed(delivery.target, self._settings.webhook_hosts):
            raise SendFailed("WEBHOOK_HOSTS does not allow the host", is_final=True)
        try:
            headers = signed_headers(rule.secret, str(delivery.pk), self._now(), body)
        except ValueError as error:
            raise SendFailed("the rule has no secret that can sign", is_final=True) from error
        post(delivery.target, body, headers, timeout=self._timeout)


def shown_target(channel: str, target: str) -> str:
    """Where a notification goes, for everybody to see: of a webhook its host alone, since its path may be a secret."""
    if channel != NotificationChannel.WEBHOOK:
        return ", ".join(target.split())
    scheme, _colon, rest = target.partition("://")
    return f"{scheme}://{rest.partition('/')[0].partition('?')[0]}/…"
