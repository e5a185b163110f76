"""Every action of the dashboard as a walk through its pages: the place of its button, the input, the effect."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlqueue_app.conf import get_settings
from sqlqueue_app.failures.operations import request_operation
from sqlqueue_app.failures.retrying import create_redirect
from sqlqueue_app.failures.selection import FailureSelection
from sqlqueue_app.messages.failure_groups import deterministic_guid
from sqlqueue_app.models import (
    CheckResult,
    Claim,
    FailedMessage,
    FailureGroup,
    FailureStatus,
    Instance,
    NotificationDelivery,
    NotificationRule,
    Operation,
    OperationState,
    Redirect,
    Schedule,
)
from sqlqueue_app.monitoring.check_results import claim_of_custom
from sqlqueue_app.sending.subscribers import subscribers_of
from sqlqueue_app.status.endpoints import read_minimums
from sqlqueue_app.status.events import Actor
from sqlqueue_app.status.queues import address_book_of
from sqlqueue_app.tables.delayed import list_rows
from tests.browser.filling import PENDING, fill
from tests.support.databases import QueueDatabase
from tests.support.delayed_rows import delayed, put
from tests.support.error_rows import failed
from tests.support.failing import fail
from tests.support.filling import count, instance, message, table

_MESSAGES: Final = (
    "one",
    "edited",
    "archived",
    "back",
    "deleted",
    "chosen",
    "chosen_too",
    "ticked",
    "ticked_too",
    "grouped",
    "grouped_too",
    "sampled",
    "left",
    "sent",
)
_TYPES: Final = {"grouped": "Shop.Group", "grouped_too": "Shop.Group", "sampled": "Shop.Sample", "left": "Shop.Sample"}


@dataclass(frozen=True, slots=True)
class Scene:
    """The objects of the actions: values for the addresses of pages, by name."""

    database: QueueDatabase
    ids: Mapping[str, Any]

    def status(self, name: str) -> FailureStatus:
        return FailureStatus(FailedMessage.objects.get(pk=self.ids[name]).status)

    def left(self) -> set[str]:
        """The keys of the remaining delayed messages."""
        return {row.key for row in list_rows(delayed(self.database), 1_000)}

    def row(self, name: str) -> Instance:
        return Instance.objects.get(pk=self.ids[name])

    def rule(self, name: str = "rule") -> NotificationRule:
        return NotificationRule.objects.get(pk=self.ids[name])


@dataclass(frozen=True, slots=True)
class Walk:
    """A walk from the `page` by the button `label`, the first one `within` a part of it, to the action with this name.

    On the first page, `asks` are fields to fill in and `chosen` are boxes to tick, named as in the scene; `fields` are filled in on
    the action page. `steps` is the number of confirmations. The final message contains `says`, and `effect` is then true.
    """

    name: str
    page: str
    label: str
    says: str
    effect: Callable[[Scene], object]
    within: str = "#content"
    fields: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)
    chosen: tuple[str, ...] = ()
    steps: int = 1


def create_scene(database: QueueDatabase) -> Scene:
    """Create separate data for every walk, so that walks do not affect each other."""
    fill(database)
    now = datetime.now(UTC)
    rows = [failed(f"the {name}", NServiceBus_EnclosedMessageTypes=_TYPES.get(name, f"Shop.{name}")) for name in _MESSAGES]
    ids: dict[str, Any] = {name: each.pk for name, each in zip(_MESSAGES, fail(database, rows), strict=True)}
    settings, operator = get_settings(), Actor("operator")
    for kind, name in (("archive", "back"), ("retry", "sent")):
        request_operation(settings, kind, FailureSelection(ids=(ids[name],)), actor=operator)
    ids |= {"pending": PENDING, "group": deterministic_guid("Message Type", "Shop.Group")}
    ids |= {"sample": deterministic_guid("Message Type", "Shop.Sample")}
    create_redirect(settings, "Sales", "Sales.Priority")
    table(database, "Sales.Priority").send([message(lifetime_ms=-1_000), message(lifetime_ms=-1_000)])
    ids |= {name: put(database) for name in ("due", "void", "due_1", "due_2", "void_1", "void_2")}
    # They send no heartbeats during the walks.
    Instance.objects.filter(name="here").update(heartbeat_at=now + timedelta(hours=1))
    ids["here"] = Instance.objects.get(name="here").pk
    ids["paused"] = instance(name="paused", pid=1, callback_queue=None, silent=-timedelta(hours=1), paused=True).pk
    ids["dead"] = instance(name="dead", host="dead", callback_queue=None, silent=timedelta(minutes=5)).pk
    instance(name="lost", host="lost", pid=2, callback_queue="Sales.here-3", silent=timedelta(minutes=5))
    values = {"kind": "retry", "requested_at": now, "state": OperationState.RUNNING}
    ids["operation"] = Operation.objects.create(id=uuid.uuid4(), **values).pk
    muted = {"failing": True, "since": now, "checked_at": now, "muted_until": now + timedelta(days=1), "muted_by": "anna"}
    ids["muted"] = CheckResult.objects.create(name="muted check", **muted).pk
    Claim.objects.create(name=claim_of_custom("payment gateway"), until=now + timedelta(hours=1))
    values = {"kind": "queue_longer", "threshold": 5, "channel": "mail", "target": "ops@example.com", "changed_at": now}
    ids |= {"rule": 1, "off": NotificationRule.objects.create(name="off", enabled=False, **values).pk}
    ids["given_up"] = NotificationDelivery.objects.get(state="failed").pk
    return Scene(database, ids)


def _subscribers(scene: Scene) -> set[str]:
    found = subscribers_of(scene.database.alias, address_book_of(get_settings())).table.all()
    return {each.endpoint for each in found}


def _schedule(name: str) -> Schedule:
    return Schedule.objects.get(name=name)


FAILURES: Final = (
    Walk("failedmessage_retry", "failedmessage/{one}/", "Retry", "1 message sent for retry.",
         lambda scene: scene.status("one") == FailureStatus.RETRY_ISSUED),
    Walk("failedmessage_retry", "failedmessage/group/{group}/", "Retry", "2 messages sent for retry.",
         lambda scene: {scene.status("grouped"), scene.status("grouped_too")} == {FailureStatus.RETRY_ISSUED},
         within="#content div.sq-submit"),
    Walk("failedmessage_retry", "failedmessage/messages/", "Retry", "2 messages sent for retry.",
         lambda scene: {scene.status("ticked"), scene.status("ticked_too")} == {FailureStatus.RETRY_ISSUED},
         within="#content p.sq-submit", chosen=("ticked", "ticked_too")),
    Walk("failedmessage_retry", "failedmessage/group/{sample}/", "Retry a sample", "1 message sent for retry.",
         lambda scene: {scene.status("sampled"), scene.status("left")} == {FailureStatus.RETRY_ISSUED, FailureStatus.UNRESOLVED},
         parameters={"sample": "1"}),
    Walk("failedmessage_note", "failedmessage/group/{sample}/", "Add a note", "The note is saved.",
         lambda scene: FailureGroup.objects.get(pk=scene.ids["sample"]).note == "look at this", fields={"note": "look at this"}),
    Walk("failedmessage_edit", "failedmessage/{edited}/", "Edit and retry", "The edited message was sent",
         lambda scene: scene.status("edited") == FailureStatus.RETRY_ISSUED, fields={"body": '{"changed": true}'}, steps=2),
    Walk("failedmessage_archive", "failedmessage/{archived}/", "Archive", "1 message archived.",
         lambda scene: scene.status("archived") == FailureStatus.ARCHIVED),
    Walk("failedmessage_archive", "failedmessage/messages/", "Archive", "2 messages archived.",
         lambda scene: {scene.status("chosen"), scene.status("chosen_too")} == {FailureStatus.ARCHIVED},
         within="#content p.sq-submit", chosen=("chosen", "chosen_too")),
    Walk("failedmessage_unarchive", "failedmessage/archived/", "Unarchive", "1 message unarchived.",
         lambda scene: scene.status("back") == FailureStatus.UNRESOLVED, within="#content p.sq-submit", chosen=("back",)),
    Walk("failedmessage_complete", "failedmessage/pending/", "Mark as resolved", "1 message marked as resolved.",
         lambda scene: scene.status("pending") == FailureStatus.RESOLVED, within="#content p.sq-submit", chosen=("pending",)),
    Walk("failedmessage_delete", "failedmessage/{deleted}/", "Delete", "1 message deleted.",
         lambda scene: scene.status("deleted") == FailureStatus.DELETED),
)  # fmt: skip
REDIRECTS: Final = (
    Walk("failedmessage_redirect", "redirect/", "Apply to pending retries", "1 pending retry redirected.",
         lambda scene: "Sales.Priority" in FailedMessage.objects.get(pk=scene.ids["sent"]).retried_to),
    Walk("redirect_edit", "redirect/", "Change", "go to Sales.here",
         lambda scene: "Sales.here" in Redirect.objects.get().to_address, fields={"to": "Sales.here"}),
    Walk("redirect_remove", "redirect/", "Remove", "The redirect is removed.", lambda scene: not Redirect.objects.exists()),
    Walk("redirect_make", "redirect/", "Create a redirect", "Retries to Gone",
         lambda scene: "Sales.Priority" in Redirect.objects.get().to_address, fields={"from": "Gone", "to": "Sales.Priority"}),
)  # fmt: skip
DELAYED: Final = (
    Walk("delayedmessage_deliver", "delayedmessage/Sales.Delayed/{due}/", "Deliver now", "1 message was delivered.",
         lambda scene: scene.ids["due"] not in scene.left()),
    Walk("delayedmessage_deliver", "delayedmessage/Sales.Delayed/", "Deliver now", "2 messages were delivered.",
         lambda scene: not {scene.ids["due_1"], scene.ids["due_2"]} & scene.left(), chosen=("due_1", "due_2")),
    Walk("delayedmessage_cancel", "delayedmessage/Sales.Delayed/{void}/", "Cancel", "1 delayed message was cancelled.",
         lambda scene: scene.ids["void"] not in scene.left()),
    Walk("delayedmessage_cancel", "delayedmessage/Sales.Delayed/", "Cancel", "2 delayed messages were cancelled.",
         lambda scene: not {scene.ids["void_1"], scene.ids["void_2"]} & scene.left(), chosen=("void_1", "void_2")),
)  # fmt: skip
QUEUES: Final = (
    Walk("queue_message_delete", "queue/Sales/1/", "Delete", "Message 1 was deleted.",
         lambda scene: count(scene.database, "Sales", "RowVersion = 1") == 0),
    Walk("queue_message_move", "queue/Sales/2/", "Move to another queue", "Message 2 was moved to Sales.Priority.",
         lambda scene: count(scene.database, "Sales", "RowVersion = 2") == 0, fields={"to": "Sales.Priority"}),
    Walk("queue_purge_expired", "queue/Sales.Priority/", "Purge the expired messages", "2 messages deleted.",
         lambda scene: count(scene.database, "Sales.Priority", "Expires IS NOT NULL") == 0),
    Walk("queue_move_all", "queue/Sales.Priority/", "Move all messages", "moved.",
         lambda scene: count(scene.database, "Sales.Priority") == 0, fields={"to": "Sales"}),
    Walk("queue_purge", "queue/Sales/", "Purge the queue", "messages deleted.",
         lambda scene: count(scene.database, "Sales") == 0),
    Walk("queue_remove", "queue/Sales.here-2/", "Remove the queue", "Queue Sales.here-2 removed.",
         lambda scene: not table(scene.database, "Sales.here-2").exists()),
    Walk("queue_remove_gone", "queue/", "Remove the queues of dead instances", "removed.",
         lambda scene: not Instance.objects.filter(name="lost").exists()),
)  # fmt: skip
ENDPOINTS: Final = (
    Walk("endpoint_pause_instance", "endpoint/Sales/", "Pause", "Pause requested for 1 process.",
         lambda scene: scene.row("here").paused, within="tr[data-key='process {here}']"),
    Walk("endpoint_resume_instance", "endpoint/Sales/", "Resume", "Resume requested for 1 process.",
         lambda scene: not scene.row("paused").paused, within="tr[data-key='process {paused}']"),
    Walk("endpoint_concurrency", "endpoint/Sales/", "Concurrency", "requested for 1 process.",
         lambda scene: scene.row("here").concurrency == 2, within="tr[data-key='process {here}']", fields={"concurrency": "2"}),
    Walk("endpoint_remove_instance", "endpoint/Sales/", "Remove", "The row of the process was removed.",
         lambda scene: not Instance.objects.filter(pk=scene.ids["dead"]).exists(), within="tr[data-key='process {dead}']"),
    Walk("endpoint_pause", "endpoint/Sales/", "Pause", "Pause requested for 2 processes.",
         lambda scene: scene.row("here").paused and scene.row("paused").paused),
    Walk("endpoint_resume", "endpoint/Sales/", "Resume", "Resume requested for 2 processes.",
         lambda scene: not scene.row("here").paused and not scene.row("paused").paused),
    Walk("endpoint_minimum", "endpoint/Sales/", "Set the minimum of processes", "at least 5 live processes.",
         lambda scene: read_minimums()["Sales"] == 5, fields={"minimum": "5"}),
)  # fmt: skip
RUNNING: Final = (
    Walk("schedule_cancel_run", "schedule/", "Cancel the run", "The run of nightly is cancelled.",
         lambda scene: _schedule("nightly").run_requested_at is None, within="tr:has-text('nightly')"),
    Walk("schedule_run", "schedule/", "Run now", "A run of a schedule with a long name is requested",
         lambda scene: _schedule("a schedule with a long name").run_requested_at, within="tr:has-text('a long name')"),
    Walk("schedule_disable", "schedule/", "Disable", "a schedule with a long name is disabled.",
         lambda scene: not _schedule("a schedule with a long name").enabled, within="tr:has-text('a long name')"),
    Walk("schedule_enable", "schedule/", "Enable", "theirs is enabled.",
         lambda scene: _schedule("theirs").enabled, within="tr:has-text('theirs')"),
    Walk("schedule_make", "schedule/", "Create a schedule", "The schedule hourly is stored.",
         lambda scene: _schedule("hourly").every_seconds == 3600,
         fields={"name": "hourly", "message_type": "Sales.Hourly", "kind": "interval", "every_seconds": "3600",
                 "destination": "Sales"}),
    Walk("schedule_edit", "schedule/weekly report/Sales.Report/", "Change", "The schedule weekly report is stored.",
         lambda scene: _schedule("weekly report").cron == "0 7 * * mon", fields={"cron": "0 7 * * mon"}),
    Walk("schedule_delete", "schedule/monthly report/Sales.Report/", "Delete", "The schedule monthly report is deleted.",
         lambda scene: not Schedule.objects.filter(name="monthly report").exists()),
    Walk("subscription_unsubscribe", "subscription/", "Unsubscribe", "no longer gets Sales.OrderPlaced.",
         lambda scene: _subscribers(scene) == {"Sales"}, within="#content li:has-text('An.Endpoint')"),
    Walk("operation_cancel", "operation/{operation}/", "Cancel the operation", "The operation will stop before its next batch.",
         lambda scene: Operation.objects.get(pk=scene.ids["operation"]).cancel_requested),
    Walk("checkresult_run", "checkresult/", "Run now", "A worker runs it within 20 seconds.",
         lambda scene: not Claim.objects.filter(name=claim_of_custom("payment gateway")).exists(),
         within="tr:has-text('payment gateway')"),
    Walk("checkresult_mute", "checkresult/", "Mute", "The check is muted until",
         lambda scene: CheckResult.objects.get(name="payment gateway").muted_until, within="tr:has-text('payment gateway')",
         fields={"hours": "24"}),
    Walk("checkresult_unmute", "checkresult/", "Unmute", "The check counts again.",
         lambda scene: CheckResult.objects.get(pk=scene.ids["muted"]).muted_until is None, within="tr:has-text('muted check')"),
)  # fmt: skip
NOTIFICATIONS: Final = (
    Walk("notificationrule_again", "notificationrule/deliveries/", "Send again", "A worker sends it again.",
         lambda scene: NotificationDelivery.objects.get(pk=scene.ids["given_up"]).state == "waiting",
         within="tr[data-key='notificationdelivery {given_up}']"),
    Walk("notificationrule_edit", "notificationrule/{rule}/", "Change", "The rule is changed.",
         lambda scene: scene.rule().threshold == 7, fields={"threshold": "7"}),
    Walk("notificationrule_secret", "notificationrule/{rule}/", "Replace the secret", "signed with the new secret from now on.",
         lambda scene: scene.rule().secret.endswith("MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="),
         fields={"secret": "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="}),
    Walk("notificationrule_test", "notificationrule/{rule}/", "Send a test", "A worker sends the test",
         lambda scene: NotificationDelivery.objects.filter(rule=1, is_test=True).count() == 2),
    Walk("notificationrule_disable", "notificationrule/{rule}/", "Disable", "The rule is disabled.",
         lambda scene: not scene.rule().enabled),
    Walk("notificationrule_enable", "notificationrule/{off}/", "Enable", "The rule is enabled.",
         lambda scene: scene.rule("off").enabled),
    Walk("notificationrule_delete", "notificationrule/{off}/", "Delete", "The rule is deleted.",
         lambda scene: not NotificationRule.objects.filter(pk=scene.ids["off"]).exists()),
    Walk("notificationrule_make", "notificationrule/", "Create a rule", "The rule is created.",
         lambda scene: NotificationRule.objects.get(name="old").threshold == 90,
         fields={"name": "old", "kind": "queue_older", "threshold": "90", "target": "ops@example.com"}),
)  # fmt: skip
WALKS: Final = (*FAILURES, *REDIRECTS, *DELAYED, *QUEUES, *ENDPOINTS, *RUNNING, *NOTIFICATIONS)
# Downloads: the name of the address, the page, the link.
FILES: Final = (
    ("queue_save", "queue/Sales/", "Save all messages as a file"),
    ("queue_message_body", "queue/Sales/1/", "Save the body as a file"),
    ("delayedmessage_body", "delayedmessage/Sales.Delayed/{due}/", "Save the body as a file"),
)
