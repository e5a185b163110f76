"""Models of monitoring: events, check results, notification rules, and deliveries of notifications."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from sqlqueue_app.models.fields import JsonTextField, UtcInstantField


class Severity(models.TextChoices):
    """The severity of an event."""

    INFO = "info", _("information")
    WARNING = "warning", _("warning")
    ERROR = "error", _("error")


class Event(models.Model):
    """An event of queues, endpoints or operations, in the order of detection.

    The row stores kind and details instead of a text, so that each reader sees it in their own language.
    """

    at = UtcInstantField("at")
    severity = models.CharField("severity", max_length=16, choices=Severity.choices)
    kind = models.CharField("kind", max_length=64)
    subject = models.CharField(
        "subject", max_length=400, blank=True, default="", help_text="the queue, endpoint, check … it is about"
    )
    details = JsonTextField("details", default=dict)

    class Meta:
        verbose_name = _("event")
        verbose_name_plural = _("events")
        default_permissions = ()
        indexes: ClassVar = [models.Index(fields=["at", "id"], name="sqlqueue_event_newest")]

    def __str__(self) -> str:
        return f"{self.kind}: {self.subject}"


class CheckResult(models.Model):
    """The last result of a check for one subject; updated by each run, deleted when the subject is gone."""

    name = models.CharField("check", max_length=100)
    subject = models.CharField(
        "subject", max_length=400, blank=True, default="", help_text="the queue, instance, alias … that was checked"
    )
    failing = models.BooleanField("failing", default=False)
    details = JsonTextField("details", default=dict)
    every_seconds = models.PositiveIntegerField("every", default=60, help_text="seconds from one run to the next")
    checked_at = UtcInstantField("checked at")
    since = UtcInstantField("since", help_text="since when it has failed or passed")
    muted_until = UtcInstantField("muted until", null=True, blank=True)
    muted_by = models.CharField("muted by", max_length=255, blank=True, default="")

    class Meta:
        verbose_name = _("check")
        verbose_name_plural = _("checks")
        default_permissions = ()
        constraints: ClassVar = [models.UniqueConstraint(fields=["name", "subject"], name="sqlqueue_check_once")]

    def __str__(self) -> str:
        return f"{self.name}: {self.subject}"


class NotificationKind(models.TextChoices):
    """The condition of a rule."""

    NEW_GROUP = "new_group", _("a new group of failures")
    FAILURES_ABOVE = "failures_above", _("more failed messages than")
    INSTANCES_BELOW = "instances_below", _("fewer live instances than")
    QUEUE_LONGER = "queue_longer", _("more messages waiting than")
    QUEUE_OLDER = "queue_older", _("a message waiting for longer than")
    CHECK_FAILED = "check_failed", _("a check that fails")


class NotificationChannel(models.TextChoices):
    """The channel of a notification."""

    MAIL = "mail", _("mail")
    WEBHOOK = "webhook", _("webhook")


class NotificationRule(models.Model):
    """A condition and a recipient. `raised` names the subjects that were or will be reported and are not over yet.

    `pending` are the changes for the next notification; `seen` are the new groups that were found.
    """

    name = models.CharField("name", max_length=100, unique=True)
    enabled = models.BooleanField("enabled", default=True)
    kind = models.CharField("when there is", max_length=32, choices=NotificationKind.choices)
    subject = models.CharField(
        "of", max_length=400, blank=True, default="", help_text="a queue, an endpoint or a check; empty for all"
    )
    threshold = models.FloatField("threshold", null=True, blank=True)
    channel = models.CharField("by", max_length=16, choices=NotificationChannel.choices)
    target = models.TextField("to", help_text="mail addresses, or the URL of a webhook")
    secret = models.CharField(
        "secret", max_length=255, blank=True, default="", help_text="signs the requests of a webhook; never shown"
    )
    throttle_seconds = models.PositiveIntegerField(
        "at most one in", default=300, help_text="seconds; changes in between are sent together"
    )
    watched_from = UtcInstantField("watched from", null=True, blank=True, help_text="groups seen earlier do not count as new")
    raised = JsonTextField("raised", default=dict)
    pending = JsonTextField("pending", default=dict)
    seen = JsonTextField("seen", default=dict)
    notified_at = UtcInstantField("notified at", null=True, blank=True)
    changed_by = models.CharField("changed by", max_length=255, blank=True, default="")
    changed_at = UtcInstantField("changed at")

    class Meta:
        verbose_name = _("notification")
        verbose_name_plural = _("notifications")
        default_permissions = ()

    def __str__(self) -> str:
        return self.name


class DeliveryState(models.TextChoices):
    """The state of a delivery."""

    WAITING = "waiting", _("waiting")
    SENT = "sent", _("sent")
    FAILED = "failed", _("failed")


class NotificationDelivery(models.Model):
    """A waiting or sent notification: kept for its retention time, with the response of the other side.

    While it is being sent, `next_attempt_at` is the end of the sender's lease.
    """

    id = models.UUIDField("id", primary_key=True)
    rule = models.ForeignKey(NotificationRule, on_delete=models.SET_NULL, null=True, blank=True, related_name="deliveries")
    rule_name = models.CharField("rule", max_length=100)
    channel = models.CharField("by", max_length=16, choices=NotificationChannel.choices)
    target = models.TextField("to")
    is_test = models.BooleanField("test", default=False)
    payload = JsonTextField("payload", default=dict, help_text="payload of the notification")
    state = models.CharField("state", max_length=16, choices=DeliveryState.choices, default=DeliveryState.WAITING)
    attempts = models.PositiveIntegerField("attempts", default=0)
    created_at = UtcInstantField("created at")
    next_attempt_at = UtcInstantField("next attempt at", null=True, blank=True)
    finished_at = UtcInstantField("finished at", null=True, blank=True)
    error = models.TextField("error", blank=True, default="", help_text="the error of the last attempt")

    class Meta:
        verbose_name = _("delivery of a notification")
        verbose_name_plural = _("deliveries of notifications")
        default_permissions = ()
        indexes: ClassVar = [
            models.Index(fields=["state", "next_attempt_at"], name="sqlqueue_delivery_due"),
            models.Index(fields=["created_at"], name="sqlqueue_delivery_newest"),
        ]

    def __str__(self) -> str:
        return f"{self.rule_name}: {self.state}"
