"""What the pipeline has computed of audited and failed messages, for the pages of the admin.

Each batch adds to these rows in the transaction that records it, so they say what all batches together hold. The same figures,
batch by batch, are tables of the lake. Times are those of operations reference 3.1: sums in seconds, negative critical times as
they are, sketches as `lake.sketches` has them, as JSON.
"""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from sqlqueue_app.queue_models.fields import UtcInstantField
from sqlqueue_app.queue_models.json_text import JsonTextField


class NotableKind(models.TextChoices):
    """By what a message is worth a look."""

    SLOWEST = "slowest", _("slowest")
    LARGEST = "largest", _("largest")


class MessageFigures(models.Model):
    """What an endpoint did with messages of one type in a minute, an hour or a day, by when it was done with them.

    `processed` counts audited messages, `failed` those that came to an error queue. A mean is a sum divided by its count.
    """

    endpoint = models.CharField("endpoint", max_length=255, blank=True, default="")
    message_type = models.CharField("message type", max_length=255, blank=True, default="")
    seconds = models.PositiveIntegerField("seconds", help_text="the length of its time: 60, 3600 or 86400")
    at = UtcInstantField("at", help_text="the begin of its time, in UTC")
    processed = models.PositiveBigIntegerField("processed", default=0)
    failed = models.PositiveBigIntegerField("failed", default=0)
    retried = models.PositiveBigIntegerField("retried by an operator", default=0)
    delayed_retries = models.PositiveBigIntegerField("delayed retries", default=0)
    processing_count = models.PositiveBigIntegerField("processed with a processing time", default=0)
    processing_sum = models.FloatField("processing time", default=0)
    processing_sketch = JsonTextField("processing times", default=dict)
    critical_count = models.PositiveBigIntegerField("processed with a critical time", default=0)
    critical_sum = models.FloatField("critical time", default=0)
    critical_negative = models.PositiveBigIntegerField("processed with a negative critical time", default=0)
    critical_sketch = JsonTextField("critical times", default=dict)
    body_bytes = models.PositiveBigIntegerField("bytes of bodies", default=0)

    class Meta:
        verbose_name = _("figures of messages")
        verbose_name_plural = _("figures of messages")
        default_permissions = ()
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["endpoint", "message_type", "seconds", "at"], name="sqlqueue_figures_once"),
        ]
        indexes: ClassVar = [models.Index(fields=["seconds", "at"], name="sqlqueue_figures_time")]

    def __str__(self) -> str:
        return f"{self.endpoint}: {self.message_type} at {self.at:%Y-%m-%d %H:%M}"


class GroupFigures(models.Model):
    """How many failures of a group there were in an hour or a day; the id is ServiceControl's."""

    group_id = models.UUIDField("group id")
    classifier = models.CharField("classifier", max_length=64)
    title = models.TextField("title")
    seconds = models.PositiveIntegerField("seconds", help_text="the length of its time: 3600 or 86400")
    at = UtcInstantField("at", help_text="the begin of its time, in UTC")
    count = models.PositiveBigIntegerField("failures", default=0)
    first_seen = UtcInstantField("first failure")
    last_seen = UtcInstantField("last failure")

    class Meta:
        verbose_name = _("figures of a group of failures")
        verbose_name_plural = _("figures of groups of failures")
        default_permissions = ()
        constraints: ClassVar = [models.UniqueConstraint(fields=["group_id", "seconds", "at"], name="sqlqueue_group_figures_once")]
        indexes: ClassVar = [models.Index(fields=["seconds", "at"], name="sqlqueue_group_figures_time")]

    def __str__(self) -> str:
        return f"{self.title} at {self.at:%Y-%m-%d %H:%M}"


class ConversationEdge(models.Model):
    """What one endpoint has sent to another in an hour or a day, by when it was handled there, and how long it took."""

    sender = models.CharField("sender", max_length=255, blank=True, default="")
    receiver = models.CharField("receiver", max_length=255, blank=True, default="")
    message_type = models.CharField("message type", max_length=255, blank=True, default="")
    seconds = models.PositiveIntegerField("seconds", help_text="the length of its time: 3600 or 86400")
    at = UtcInstantField("at", help_text="the begin of its time, in UTC")
    count = models.PositiveBigIntegerField("messages", default=0)
    critical_count = models.PositiveBigIntegerField("messages with a critical time", default=0)
    critical_sum = models.FloatField("critical time", default=0)
    critical_sketch = JsonTextField("critical times", default=dict)

    class Meta:
        verbose_name = _("edge of conversations")
        verbose_name_plural = _("edges of conversations")
        default_permissions = ()
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["sender", "receiver", "message_type", "seconds", "at"], name="sqlqueue_edge_once"),
        ]
        indexes: ClassVar = [models.Index(fields=["seconds", "at"], name="sqlqueue_edge_time")]

    def __str__(self) -> str:
        return f"{self.sender} to {self.receiver} at {self.at:%Y-%m-%d %H:%M}"


class EndpointSeen(models.Model):
    """An instance of an endpoint that has handled messages, successfully or not."""

    endpoint = models.CharField("endpoint", max_length=255, blank=True, default="")
    machine = models.CharField("machine", max_length=255, blank=True, default="")
    host_id = models.CharField("host id", max_length=64, blank=True, default="")
    host = models.CharField("host", max_length=255, blank=True, default="", help_text="its name for people, as last seen")
    first_seen = UtcInstantField("first seen")
    last_seen = UtcInstantField("last seen")
    messages = models.PositiveBigIntegerField("messages", default=0)

    class Meta:
        verbose_name = _("endpoint seen")
        verbose_name_plural = _("endpoints seen")
        default_permissions = ()
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["endpoint", "machine", "host_id"], name="sqlqueue_seen_once"),
        ]

    def __str__(self) -> str:
        return f"{self.endpoint} on {self.machine}"


class QueueFigures(models.Model):
    """How many rows of a queue the pipeline has taken or copied, by their day in UTC."""

    queue = models.CharField("queue", max_length=400)
    day = models.DateField("day")
    taken = models.PositiveBigIntegerField("taken", default=0)
    copied = models.PositiveBigIntegerField("copied", default=0)
    expired = models.PositiveBigIntegerField("expired", default=0, help_text="how many of them were over their time")
    unreadable = models.PositiveBigIntegerField("unreadable", default=0, help_text="how many have headers that cannot be read")
    bytes = models.PositiveBigIntegerField("bytes", default=0, help_text="of headers and bodies")

    class Meta:
        verbose_name = _("figures of a queue")
        verbose_name_plural = _("figures of queues")
        default_permissions = ()
        constraints: ClassVar = [models.UniqueConstraint(fields=["queue", "day"], name="sqlqueue_queue_figures_once")]
        indexes: ClassVar = [models.Index(fields=["day"], name="sqlqueue_queue_figures_day")]

    def __str__(self) -> str:
        return f"{self.queue} on {self.day}"


class NotableMessage(models.Model):
    """One of the slowest or largest messages of a day in UTC; `value` is in seconds, or in bytes."""

    day = models.DateField("day")
    kind = models.CharField("kind", max_length=16, choices=NotableKind.choices)
    rank = models.PositiveIntegerField("rank", help_text="from 1")
    endpoint = models.CharField("endpoint", max_length=255, blank=True, default="")
    message_type = models.CharField("message type", max_length=255, blank=True, default="")
    message_id = models.CharField("message id", max_length=255, blank=True, default="")
    conversation_id = models.CharField("conversation id", max_length=255, blank=True, default="")
    value = models.FloatField("value")
    at = UtcInstantField("at")

    class Meta:
        verbose_name = _("notable message")
        verbose_name_plural = _("notable messages")
        default_permissions = ()
        constraints: ClassVar = [models.UniqueConstraint(fields=["day", "kind", "rank"], name="sqlqueue_notable_once")]

    def __str__(self) -> str:
        return f"{self.kind} {self.rank} of {self.day}: {self.message_id}"


class UsageDay(models.Model):
    """What an endpoint has handled on a day in UTC; bytes are those of headers and bodies."""

    endpoint = models.CharField("endpoint", max_length=255, blank=True, default="")
    day = models.DateField("day")
    messages = models.PositiveBigIntegerField("messages", default=0)
    failures = models.PositiveBigIntegerField("failures", default=0)
    bytes = models.PositiveBigIntegerField("bytes", default=0)

    class Meta:
        verbose_name = _("usage on a day")
        verbose_name_plural = _("usage by day")
        default_permissions = ()
        constraints: ClassVar = [models.UniqueConstraint(fields=["endpoint", "day"], name="sqlqueue_usage_once")]
        indexes: ClassVar = [models.Index(fields=["day"], name="sqlqueue_usage_day")]

    def __str__(self) -> str:
        return f"{self.endpoint} on {self.day}"
