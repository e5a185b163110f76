"""Reports of an endpoint to ServiceControl: its start, its heartbeats, and the results of `CUSTOM_CHECKS`.

The messages are those of the NServiceBus plug-ins (docs/internals/operations.md#heartbeats and the recorded rows), each with a
short lifetime, so that unread messages do not pile up. ServiceControl creates its queue itself; nothing is sent while it is
missing.
"""

from __future__ import annotations

import getpass
import logging
import os
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from sqlqueue_app.conf import CustomCheckSettings
from sqlqueue_app.conf.kinds import load_callable
from sqlqueue_app.health_checks import HealthCheck, registry
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.envelope import OutgoingMessage
from sqlqueue_app.messages.errors import QueueNotFound
from sqlqueue_app.messages.headers import Intent
from sqlqueue_app.messages.serializers import JSON_CONTENT_TYPE, serialize
from sqlqueue_app.monitoring.check_results import run_check, store_result
from sqlqueue_app.receiving.background import BackgroundJob
from sqlqueue_app.receiving.endpoint import ReceivingEndpoint
from sqlqueue_app.sending.composer import sender_identity, utc_now
from sqlqueue_app.sending.dispatcher import Dispatcher

logger = logging.getLogger("sqlqueue.background")

# Every 10 seconds; a heartbeat expires after four times that (docs/internals/operations.md#heartbeats).
HEARTBEAT_SECONDS = 10.0
BEATS_OF_LIFE = 4
# A result is useful until the fourth one after it; recorded ones live a minute at an interval of one second.
CHECK_LIFE_AT_LEAST = timedelta(minutes=1)

_HEARTBEATS = "ServiceControl.Plugin.Heartbeat.Messages."
_CHECKS = "ServiceControl.Plugin.CustomChecks.Messages."


def service_control_jobs(endpoint: ReceivingEndpoint) -> list[BackgroundJob]:
    """The background jobs that report to ServiceControl; none without SERVICE_CONTROL_QUEUE. ConfigurationError for a bad check."""
    if endpoint.config.service_control_queue is None:
        return []
    reporter = ServiceControl(endpoint)
    beat = BackgroundJob(f"heartbeat of {endpoint.name} for ServiceControl", HEARTBEAT_SECONDS, reporter.beat)
    return [beat, *(_check_job(reporter, check, endpoint.name) for check in endpoint.config.custom_checks.values())]


def _check_job(reporter: ServiceControl, check: CustomCheckSettings, endpoint: str) -> BackgroundJob:
    function = load_callable(check.check, setting=f"CUSTOM_CHECKS of endpoint {endpoint!r}")
    return BackgroundJob(f"custom check {check.name} of {endpoint}", check.every_seconds, lambda: reporter.report(check, function))


class ServiceControl:
    """Writes to the queue of ServiceControl as one endpoint. Its methods may be called from several threads."""

    def __init__(self, endpoint: ReceivingEndpoint, *, now: Callable[[], datetime] = utc_now) -> None:
        self._endpoint = endpoint
        self._now = now
        self._identity = sender_identity(endpoint.name, endpoint.book)
        self._queue = endpoint.book.parse(endpoint.config.service_control_queue or "")
        self._dispatcher = Dispatcher(endpoint.alias, endpoint.book)
        self._started_at = now()
        self._has_registered = False
        self._is_missing = False

    def beat(self) -> None:
        """Send a heartbeat, and the start of the endpoint until that has been sent once."""
        life = timedelta(seconds=HEARTBEAT_SECONDS * BEATS_OF_LIFE)
        host, endpoint = self._identity.machine, self._endpoint.name
        host_id = str(self._identity.host_id)
        if not self._has_registered:
            started = {
                "HostId": host_id,
                "Endpoint": endpoint,
                "StartedAt": self._started_at,
                "HostProperties": _host_properties(host),
                "HostDisplayName": host,
                "Host": host,
            }
            self._has_registered = self._send(_HEARTBEATS + "RegisterEndpointStartup", started, life)
        alive = {"ExecutedAt": self._now(), "EndpointName": endpoint, "HostId": host_id, "Host": host}
        self._send(_HEARTBEATS + "EndpointHeartbeat", alive, life)

    def report(self, check: CustomCheckSettings, function: Callable[..., Any]) -> None:
        """Run a check like any check of the project, and report its result to ServiceControl. Raises DatabaseError.

        The admin shows the result for this endpoint and machine, unless the function is registered with `health_check`: then it
        shows that result.
        """
        known = HealthCheck(check.name, check.every_seconds, function)
        reason = run_check(known, {"event": "custom_check_failed", "endpoint": self._endpoint.name}) or None
        result = {
            "HostId": str(self._identity.host_id),
            "CustomCheckId": check.name,
            "Category": check.category,
            "HasFailed": reason is not None,
            "FailureReason": reason,
            "ReportedAt": self._now(),
            "EndpointName": self._endpoint.name,
            "Host": self._identity.machine,
        }
        life = max(timedelta(seconds=check.every_seconds * BEATS_OF_LIFE), CHECK_LIFE_AT_LEAST)
        self._send(_CHECKS + "ReportCustomCheckResult", result, life)
        if all(each.function is not function for each in registry.all()):
            store_result(known, reason or "", f"{self._endpoint.name} on {self._identity.machine}")

    def _send(self, message_type: str, body: dict[str, Any], life: timedelta) -> bool:
        """Write one message. Returns False, logged once, while the queue does not exist."""
        headers: names.Headers = {
            names.ENCLOSED_MESSAGE_TYPES: message_type,
            names.CONTENT_TYPE: JSON_CONTENT_TYPE,
            names.MESSAGE_INTENT: Intent.SEND.value,
            names.REPLY_TO_ADDRESS: self._identity.reply_to,
        }
        try:
            self._dispatcher.dispatch([OutgoingMessage(self._queue, headers, serialize(body), life)])
        except QueueNotFound as error:
            if not self._is_missing:
                extra = {"event": "service_control_missing", "endpoint": self._endpoint.name, "queue": self._queue.table}
                logger.warning("nothing is reported to ServiceControl about %s: %s", self._endpoint.name, error, extra=extra)
            self._is_missing = True
            return False
        self._is_missing = False
        return True


def _host_properties(machine: str) -> dict[str, str]:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as containers have
        user = str(os.getuid()) if hasattr(os, "getuid") else ""
    return {"Machine": machine, "ProcessID": str(os.getpid()), "UserName": user, "PathToExecutable": sys.executable}
