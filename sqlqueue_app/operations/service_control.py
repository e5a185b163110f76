"""What ServiceControl is told of an endpoint: that it has started, that it is alive, and how its custom checks went.

The messages are those that the plug-ins of NServiceBus write (operations reference 3.6 and the recorded rows), each with a short
life, so that nothing piles up where nobody reads them. ServiceControl makes its queue itself. While it is missing,
nothing is sent.
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
from sqlqueue_app.conf.callables import load_callable
from sqlqueue_app.endpoint import Endpoint
from sqlqueue_app.instances import managed_alias
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.envelope import Intent, OutgoingMessage
from sqlqueue_app.messages.errors import QueueNotFound
from sqlqueue_app.messages.serializers import JSON_CONTENT_TYPE, serialize
from sqlqueue_app.operations.watching.custom import LONGEST_TEXT
from sqlqueue_app.operations.watching.results import Report, write_reports
from sqlqueue_app.scheduler import BackgroundJob
from sqlqueue_app.sending.composer import sender_identity, utc_now
from sqlqueue_app.sending.dispatcher import Dispatcher
from sqlqueue_app.tables.clock import database_now
from sqlqueue_app.tables.connections import connection_of, database_errors, dialect_of_connection

logger = logging.getLogger("sqlqueue.background")

# Operations reference 3.6: every 10 seconds, and no longer of use after four times that.
HEARTBEAT_SECONDS = 10.0
BEATS_OF_LIFE = 4
# A check's result is of use until the fourth after it; recorded ones live a minute where they come every second.
CHECK_LIFE_AT_LEAST = timedelta(minutes=1)

_HEARTBEATS = "ServiceControl.Plugin.Heartbeat.Messages."
_CHECKS = "ServiceControl.Plugin.CustomChecks.Messages."


def service_control_jobs(endpoint: Endpoint) -> list[BackgroundJob]:
    """The background jobs that tell ServiceControl; none without SERVICE_CONTROL_QUEUE. ConfigurationError for a bad check."""
    if endpoint.config.service_control_queue is None:
        return []
    told = ServiceControl(endpoint)
    beat = BackgroundJob(f"heartbeat of {endpoint.name} for ServiceControl", HEARTBEAT_SECONDS, told.beat)
    return [beat, *(_check_job(told, check, endpoint.name) for check in endpoint.config.custom_checks.values())]


def _check_job(told: ServiceControl, check: CustomCheckSettings, endpoint: str) -> BackgroundJob:
    function = load_callable(check.check, setting=f"CUSTOM_CHECKS of endpoint {endpoint!r}")
    return BackgroundJob(f"custom check {check.name} of {endpoint}", check.every_seconds, lambda: told.report(check, function))


class ServiceControl:
    """Writes to the queue of ServiceControl as one endpoint. Its methods may be called from several threads."""

    def __init__(self, endpoint: Endpoint, *, now: Callable[[], datetime] = utc_now) -> None:
        self._endpoint = endpoint
        self._now = now
        self._identity = sender_identity(endpoint.name, endpoint.book)
        self._queue = endpoint.book.parse(endpoint.config.service_control_queue or "")
        self._dispatcher = Dispatcher(endpoint.alias, endpoint.book)
        self._started_at = now()
        self._has_registered = False
        self._is_missing = False

    def beat(self) -> None:
        """Tell that the endpoint is alive; the first time, and until that has come through, also that it has started."""
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
            self._has_registered = self._tell(_HEARTBEATS + "RegisterEndpointStartup", started, life)
        alive = {"ExecutedAt": self._now(), "EndpointName": endpoint, "HostId": host_id, "Host": host}
        self._tell(_HEARTBEATS + "EndpointHeartbeat", alive, life)

    def report(self, check: CustomCheckSettings, function: Callable[..., Any]) -> None:
        """Run a check and tell its result: well if it returns None, else what it returns or raises is the reason.

        The admin shows it as well. Raises DatabaseError.
        """
        try:
            found = function()
            reason = None if found is None else str(found)
        except Exception as error:
            logger.exception(
                "custom check %s failed by an exception",
                check.name,
                extra={"event": "custom_check_failed", "endpoint": self._endpoint.name},
            )
            reason = f"{type(error).__name__}: {error}"
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
        self._tell(_CHECKS + "ReportCustomCheckResult", result, life)
        self._show(check, reason)

    def _show(self, check: CustomCheckSettings, reason: str | None) -> None:
        """Have the admin show the result beside those of other checks, for this endpoint on this machine. Raises DatabaseError."""
        alias, subject = managed_alias(), f"{self._endpoint.name} on {self._identity.machine}"
        failing = {} if reason is None else {subject: {"text": reason[:LONGEST_TEXT]}}
        report = Report(check.name, max(1, round(check.every_seconds)), failing, frozenset({subject}))
        with database_errors(dialect_of_connection(connection_of(alias)), "write the result of a check"):
            write_reports(alias, [report], database_now(alias))

    def _tell(self, message_type: str, body: dict[str, Any], life: timedelta) -> bool:
        """Write one message; False, said once, while the queue is not there."""
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
                logger.warning("ServiceControl is not told of %s: %s", self._endpoint.name, error, extra=extra)
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
