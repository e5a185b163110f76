"""Data of every kind that the pages show."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlqueue_app.conf import get_settings
from sqlqueue_app.failures.index import catch_up
from sqlqueue_app.messages.failure_groups import deterministic_guid
from sqlqueue_app.models import (
    CheckResult,
    EndpointSample,
    FailedAttempt,
    FailedMessage,
    FailureGroup,
    FailureStatus,
    NotificationRule,
    QueueSample,
    ScheduleTick,
)
from sqlqueue_app.monitoring.rules import new_delivery
from sqlqueue_app.monitoring.webhooks import new_secret
from sqlqueue_app.status.endpoints import set_minimum
from sqlqueue_app.status.events import Actor, EventKind, record_action, report_event
from sqlqueue_app.status.schedules import request_run, set_enabled
from sqlqueue_app.status.scheduling import schedule
from sqlqueue_app.tables.row_selection import remove_rows
from tests.support.conversations import sent
from tests.support.databases import QueueDatabase
from tests.support.delayed_rows import put
from tests.support.error_rows import failed
from tests.support.filling import install, instance, message, row, subscribe, table
from tests.support.task_results import ERROR, task

ONE, PENDING = deterministic_guid("m-1", "Sales"), deterministic_guid("m-2", "Sales")
GROUP = deterministic_guid("Message Type", "Shop.PlaceOrder")
FAILED = {
    "NServiceBus.FailedQ": "Sales",
    "NServiceBus.ExceptionInfo.ExceptionType": "shop.OutOfStock",
    "NServiceBus.ExceptionInfo.StackTrace": "   at shop.place() in /app/shop.py:line 4\n" * 30,
}


def fill(database: QueueDatabase) -> None:
    """Create queues, failures, schedules, rules and other data as in an installation in use."""
    nightly = {"CRON": "0 2 * * *", "SEND": "Sales.CloseDay"}
    install(database, SCHEDULES={"nightly": nightly, "a schedule with a long name": {**nightly, "SEND": "Sales.Other"}})
    instance()
    instance(name="there", host="there", callback_queue="Sales.here-2", silent=timedelta(minutes=5))
    table(database, "Sales").send([message(headers=FAILED), row("null", b"\x00"), *(message() for _ in range(30))])
    now = datetime.now(UTC).replace(microsecond=0)
    for number in range(60):
        QueueSample.objects.create(
            queue="Sales", taken_at=now - timedelta(seconds=10 * number), seconds=10, waiting=number, most_waiting=number,
            head_age_seconds=number, expired=number // 2, written=1000 - number,
        )  # fmt: skip
        EndpointSample.objects.create(
            endpoint="Sales", instance="here", message_type="Shop.PlaceOrder", taken_at=now - timedelta(seconds=10 * number),
            seconds=10, handled=number, processing_seconds=1, processing_max=1, critical_measured=1, critical_seconds=-1,
            critical_max=-1, failures=1,
        )  # fmt: skip
    table(database, "error").send([failed(), failed("m-2"), row("no json", b"x")])
    table(database, "Sales.Priority").send([sent("late", "m-1", by="Sales", intent="Publish"), sent("self", "late", by="Sales")])
    catch_up(get_settings(), limit=10, now=now)
    FailureGroup.objects.filter(pk=GROUP).update(note="known", noted_by="anna", noted_at=now)
    remove_rows(table(database, "error"), [FailedMessage.objects.get(pk=PENDING).row_version or 0])
    FailedAttempt.objects.filter(failure=PENDING).update(row_version=None)
    FailedMessage.objects.filter(pk=PENDING).update(status=FailureStatus.RETRY_ISSUED, row_version=None, retried_to="Sales")
    record_action(Actor("anna"), "purge", "Sales")
    ticked = {"message_type": "Sales.CloseDay", "tick": now - timedelta(days=2), "sent_at": now, "endpoint": "Sales"}
    ScheduleTick.objects.create(schedule="nightly", message_id=str(ONE), **ticked)
    ScheduleTick.objects.create(schedule="theirs", message_id=str(ONE), **ticked)
    set_enabled("theirs", "Sales.CloseDay", enabled=False, actor=Actor("anna"))
    request_run("nightly", "Sales.CloseDay")
    schedule("weekly report", "Sales.Report", {"week": 1}, cron="0 6 * * mon", timezone="Europe/Berlin", to="Sales")
    schedule("monthly report", "Sales.Report", every=timedelta(days=30), to="Sales")
    ScheduleTick.objects.create(schedule="weekly report", message_id=str(ONE), **{**ticked, "message_type": "Sales.Report"})
    _notifications(now)
    subscribe(database, "Sales", "Sales.OrderPlaced")
    set_minimum("Sales", 3, actor=Actor("anna"))
    subscribe(database, "An.Endpoint.With.A.Long.Name.That.Is.Gone", "Sales.OrderPlaced", "Nowhere.With.A.Long.Name@here")
    task("shop.tasks.bill", id=str(ONE), status="FAILED", errors=[ERROR], kwargs={"note": "x" * 300})
    report_event(EventKind.QUEUE_PURGED, "Sales", {"count": 7})
    put(database, timedelta(hours=1), **{"NServiceBus.IsSagaTimeoutMessage": "True"})
    put(database, -timedelta(hours=1), to="A.Queue.That.Does.Not.Exist.And.Has.A.Very.Long.Name@nowhere")
    check = {"failing": True, "since": now, "checked_at": now}
    CheckResult.objects.create(id=1, name="payment gateway", details={"text": "x" * 300}, **check)
    CheckResult.objects.create(name="sqlqueue.tables", subject="Sales", details={"sql": "x" * 300}, **check)


def _notifications(now: datetime) -> None:
    """A rule with sent, waiting and failed deliveries."""
    values = {"name": "long", "kind": "queue_longer", "threshold": 5, "channel": "webhook", "target": "https://hooks.example.com/"}
    rule = NotificationRule.objects.create(
        pk=1, secret=new_secret(), raised={"Sales": {}}, notified_at=now, changed_at=now, **values
    )
    changes = [{"change": "raised", "subject": name, "value": 9, "threshold": 5, "at": now.isoformat()} for name in ("A", "B")]
    for state, sent_changes in (("sent", changes[:1]), ("waiting", []), ("failed", changes)):
        delivery = new_delivery(rule, {"changes": sent_changes}, now, is_test=not sent_changes)
        delivery.state, delivery.error = state, "" if state == "sent" else "HTTP 500 " + "x" * 200
        delivery.save(force_insert=True)
