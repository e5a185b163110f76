"""Messages to ServiceControl, compared with those of a real endpoint's plug-ins."""

from __future__ import annotations

import base64
import json
import logging
import platform
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sqlqueue_app import health_check
from sqlqueue_app.conf import get_settings
from sqlqueue_app.health_checks import registry
from sqlqueue_app.messages.errors import ConfigurationError
from sqlqueue_app.models import CheckResult, Event
from sqlqueue_app.receiving.endpoint import endpoints_of
from sqlqueue_app.worker.service_control import HEARTBEAT_SECONDS, ServiceControl, service_control_jobs
from tests.support import golden
from tests.support.bench import Bench

QUEUE = "Particular.ServiceControl"
NOW = datetime(2026, 11, 20, 12, 14, 21, 868724, UTC)


def full() -> str:
    return "the disk is full"


def well() -> None:
    return None


def broken() -> None:
    raise OSError("no disk")


@pytest.fixture
def reporting_bench(bench: Bench) -> Bench:
    """Sales with three checks; it reports to ServiceControl, whose queue is not installed yet."""
    address = QUEUE if bench.database.vendor != "postgresql" else f'"{QUEUE}"'
    checks = {
        "Disk space": {"CHECK": "tests.worker.test_service_control.full", "CATEGORY": "Storage", "EVERY": 300},
        "Well": {"CHECK": "tests.worker.test_service_control.well"},
        "Broken": {"CHECK": "tests.worker.test_service_control.broken", "EVERY": 1},
    }
    bench.configure(SERVICE_CONTROL_QUEUE=address, CUSTOM_CHECKS=checks)
    return bench


def service_control(now: Callable[[], datetime] = lambda: NOW) -> ServiceControl:
    (endpoint,) = endpoints_of(get_settings(), None)
    return ServiceControl(endpoint, now=now)


def recorded(kind: str) -> dict[str, Any]:
    """The first recorded row of a message type."""
    return next(row for row in golden.rows("json") if f".{kind}" in (row.get("headers") or ""))


def written(bench: Bench) -> list[tuple[str, dict[str, Any], float | None]]:
    """The short type name, the body and the remaining lifetime in seconds of each message."""
    found = []
    for row in bench.rows(QUEUE):
        headers = json.loads(row.headers or "{}")
        kind = headers["NServiceBus.EnclosedMessageTypes"].rpartition(".")[2]
        there = recorded(kind)
        assert list(headers) == list(json.loads(there["headers"]))
        body = json.loads(row.body or b"")
        assert list(body) == list(json.loads(base64.b64decode(there["body_base64"])))
        found.append((kind, body, None if row.expires is None else (row.expires - datetime.now(UTC)).total_seconds()))
    return found


def test_start_is_reported_once_and_life_each_time(reporting_bench: Bench) -> None:
    reporting_bench.install_queues(QUEUE)
    speaker = service_control()
    speaker.beat()
    speaker.beat()

    messages = written(reporting_bench)
    assert [kind for kind, _, _ in messages] == ["RegisterEndpointStartup", "EndpointHeartbeat", "EndpointHeartbeat"]
    start, beat = messages[0][1], messages[1][1]
    assert (start["Endpoint"], start["StartedAt"]) == ("Sales", "2026-11-20T12:14:21.868724Z")
    assert list(start["HostProperties"]) == ["Machine", "ProcessID", "UserName", "PathToExecutable"]
    assert (beat["EndpointName"], beat["ExecutedAt"], beat["HostId"]) == ("Sales", "2026-11-20T12:14:21.868724Z", start["HostId"])
    for _, _, life in messages:
        assert life is not None
        assert HEARTBEAT_SECONDS < life <= 4 * HEARTBEAT_SECONDS


def test_check_is_reported_with_its_reason(reporting_bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    reporting_bench.install_queues(QUEUE)
    checks = get_settings().endpoint("Sales").custom_checks
    for name, function in (("Disk space", full), ("Well", well), ("Broken", broken)):
        service_control().report(checks[name], function)

    results = [
        (body["CustomCheckId"], body["Category"], body["HasFailed"], body["FailureReason"])
        for _, body, _ in written(reporting_bench)
    ]
    assert results == [
        ("Disk space", "Storage", True, "the disk is full"),
        ("Well", "Custom", False, None),
        ("Broken", "Custom", True, "OSError: no disk"),
    ]
    lives = [timedelta(seconds=round(life or 0, -1)) for _, _, life in written(reporting_bench)]
    assert lives == [timedelta(minutes=20), timedelta(minutes=4), timedelta(minutes=1)]
    assert [getattr(record, "event", None) for record in caplog.records if record.levelno >= logging.ERROR] == [
        "custom_check_failed"
    ]


def test_admin_shows_the_check_results(reporting_bench: Bench) -> None:
    checks = get_settings().endpoint("Sales").custom_checks
    for _ in range(2):
        service_control().report(checks["Disk space"], full)
        service_control().report(checks["Well"], well)

    rows = CheckResult.objects.order_by("name").values_list("name", "subject", "failing", "every_seconds")
    subject = f"Sales on {platform.node()}"
    assert list(rows) == [("Disk space", subject, True, 300), ("Well", subject, False, 60)]
    assert list(Event.objects.values_list("kind", "subject")) == [("check_failed", subject)]
    assert CheckResult.objects.get(failing=True).details == {"text": "the disk is full"}


def test_registered_check_is_exported_and_shown_once(reporting_bench: Bench) -> None:
    reporting_bench.install_queues(QUEUE)
    health_check("disk space")(full)
    try:
        service_control().report(get_settings().endpoint("Sales").custom_checks["Disk space"], full)
    finally:
        registry.remove("disk space")

    assert [body["FailureReason"] for _, body, _ in written(reporting_bench)] == ["the disk is full"]
    assert not CheckResult.objects.exists(), "the worker that runs it for all keeps its result"


@pytest.mark.parametrize(("answer", "reason"), [("", None), (" ", None), (7, "has returned 7: expected None if all is well")])
def test_check_result_means_the_same_as_that_of_a_registered_check(
    reporting_bench: Bench, answer: object, reason: str | None
) -> None:
    reporting_bench.install_queues(QUEUE)
    service_control().report(get_settings().endpoint("Sales").custom_checks["Well"], lambda: answer)

    ((_, body, _),) = written(reporting_bench)
    assert body["HasFailed"] is (reason is not None)
    assert (reason or "") in (body["FailureReason"] or "")


def test_missing_queue_is_logged_once_and_nothing_is_sent(reporting_bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    speaker = service_control()
    speaker.beat()
    speaker.beat()
    records = [record for record in caplog.records if getattr(record, "event", None) == "service_control_missing"]
    assert len(records) == 1
    assert QUEUE in records[0].getMessage()

    reporting_bench.install_queues(QUEUE)
    speaker.beat()
    assert [kind for kind, _, _ in written(reporting_bench)] == ["RegisterEndpointStartup", "EndpointHeartbeat"]


def test_worker_reports_to_service_control(reporting_bench: Bench) -> None:
    reporting_bench.install_queues(QUEUE)
    reporting_bench.run()

    kinds = {kind for kind, _, _ in written(reporting_bench)}
    assert kinds == {"RegisterEndpointStartup", "EndpointHeartbeat", "ReportCustomCheckResult"}


def test_nothing_runs_without_the_setting(bench: Bench) -> None:
    bench.configure(CUSTOM_CHECKS={"Well": {"CHECK": "tests.worker.test_service_control.well"}})
    (endpoint,) = endpoints_of(get_settings(), None)
    assert service_control_jobs(endpoint) == []


def test_check_that_cannot_be_imported_is_named(bench: Bench) -> None:
    bench.configure(SERVICE_CONTROL_QUEUE="any", CUSTOM_CHECKS={"Gone": {"CHECK": "tests.gone"}})
    (endpoint,) = endpoints_of(get_settings(), None)
    with pytest.raises(ConfigurationError, match=r"CUSTOM_CHECKS of endpoint 'Sales' names 'tests\.gone'"):
        service_control_jobs(endpoint)
