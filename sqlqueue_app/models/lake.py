"""Models of the pipeline: its runs, the manifest of the lake, and the rollups that the admin shows.

The manifest is written in the transaction that takes the rows out of their queue: a file that is not in it was never taken, and a
file that is in it is completed after a crash. Rollups are updated in the transaction of each batch; tables of the lake hold the
same numbers per batch. Times are sums in seconds, critical times may be negative, sketches are JSON as in `lake.sketches`.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from sqlqueue_app.models.fields import JsonTextField, UtcInstantField


class RunState(models.TextChoices):
    """The state of a pipeline run."""

    RUNNING = "running", _("running")
    ENDED = "ended", _("ended")
    FAILED = "failed", _("failed")
    STOPPED = "stopped", _("stopped")


class PipelineRun(models.Model):
    """A process of the pipeline and its committed work. One that is RUNNING without a recent heartbeat was killed."""

    started_at = UtcInstantField("started at")
    ended_at = UtcInstantField("ended at", null=True, blank=True)
    heartbeat_at = UtcInstantField("last heartbeat")
    state = models.CharField("state", max_length=16, choices=RunState.choices, default=RunState.RUNNING)
    host = models.CharField("machine", max_length=255)
    pid = models.PositiveBigIntegerField("process id")
    master = models.CharField("Spark master", max_length=255)
    lake = models.TextField("lake")
    options = JsonTextField("options", default=dict)
    batches = models.PositiveBigIntegerField("batches", default=0)
    messages = models.PositiveBigIntegerField("messages", default=0, help_text="taken from the audit queues")
    failures = models.PositiveBigIntegerField("failures", default=0, help_text="copied from the error queues")
    unreadable = models.PositiveBigIntegerField("unreadable", default=0, help_text="rows whose headers cannot be read")
    bytes = models.PositiveBigIntegerField("bytes", default=0, help_text="the size of the files that it has written")
    error = models.TextField("error", blank=True, default="", help_text="the error that ended it")

    class Meta:
        verbose_name = _("pipeline run")
        verbose_name_plural = _("pipeline runs")
        default_permissions = ()
        indexes: ClassVar = [
            models.Index(fields=["started_at"], name="sqlqueue_run_newest"),
            models.Index(fields=["state"], name="sqlqueue_run_state"),
        ]

    def __str__(self) -> str:
        return f"{self.started_at:%Y-%m-%d %H:%M:%S}: {self.state}"

    def is_silent(self, now: datetime) -> bool:
        """Whether it was killed: a process that is alive renews its heartbeat every 10 seconds."""
        return self.state == RunState.RUNNING and now - self.heartbeat_at > timedelta(seconds=60)

    def duration(self, now: datetime) -> timedelta:
        """Until its end or until now; of one that was killed until its last heartbeat."""
        end = self.ended_at or (self.heartbeat_at if self.is_silent(now) else now)
        return max(end - self.started_at, timedelta())


class BatchKind(models.TextChoices):
    """The kind of a batch."""

    AUDIT = "audit", _("taken from an audit queue")
    PEEK = "peek", _("read from an audit queue")
    FAILURES = "failures", _("copied from an error queue")
    FATES = "fates", _("outcomes of copies")
    COMPACTION = "compaction", _("compaction")
    RETENTION = "retention", _("retention")


class LakeBatch(models.Model):
    """One commit of the pipeline. `published_at` is NULL while its files may still be in a folder that readers ignore."""

    id = models.UUIDField("id", primary_key=True)
    run = models.ForeignKey(PipelineRun, on_delete=models.SET_NULL, null=True, blank=True, related_name="commits")
    kind = models.CharField("kind", max_length=16, choices=BatchKind.choices)
    lake_id = models.UUIDField("lake", help_text="the id in the marker file of the lake")
    queue = models.CharField("queue", max_length=400, blank=True, default="")
    rows = models.PositiveBigIntegerField("rows", default=0)
    unreadable = models.PositiveBigIntegerField("unreadable", default=0)
    lowest = models.BigIntegerField("lowest row version", null=True, blank=True)
    highest = models.BigIntegerField("highest row version", null=True, blank=True)
    committed_at = UtcInstantField("committed at")
    published_at = UtcInstantField("published at", null=True, blank=True)

    class Meta:
        verbose_name = _("batch of the lake")
        verbose_name_plural = _("batches of the lake")
        default_permissions = ()
        indexes: ClassVar = [
            models.Index(fields=["published_at"], name="sqlqueue_batch_published"),
            models.Index(fields=["committed_at"], name="sqlqueue_batch_newest"),
            models.Index(fields=["queue", "kind", "highest"], name="sqlqueue_batch_position"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.id}"


class LakeFile(models.Model):
    """A file of the lake, valid until `retired_at`: then its data is elsewhere or expired, and the row outlives the file."""

    batch = models.ForeignKey(LakeBatch, on_delete=models.CASCADE, related_name="files")
    table = models.CharField("table", max_length=40)
    path = models.TextField("path", help_text="below the folder of the lake")
    written_as = models.TextField(
        "written as", blank=True, default="", help_text="below the folder of its batch, where it is until it is published"
    )
    rows = models.PositiveBigIntegerField("rows")
    bytes = models.PositiveBigIntegerField("bytes")
    day = models.DateField("day", null=True, blank=True)
    retired_at = UtcInstantField("retired at", null=True, blank=True)

    class Meta:
        verbose_name = _("file of the lake")
        verbose_name_plural = _("files of the lake")
        default_permissions = ()
        indexes: ClassVar = [
            models.Index(fields=["table", "day"], name="sqlqueue_file_day"),
            models.Index(fields=["retired_at"], name="sqlqueue_file_retired"),
        ]

    def __str__(self) -> str:
        return self.path


class LakePosition(models.Model):
    """The last row of an audit queue that was copied to a lake without taking it; moved in the transaction of each batch.

    There is no row if messages are taken. `native_id` is the id of that row: in a recreated table its RowVersion belongs to
    another row.
    """

    lake_id = models.UUIDField("lake")
    queue = models.CharField("audit queue", max_length=400)
    row_version = models.BigIntegerField("row version")
    native_id = models.CharField("row id", max_length=64, blank=True, default="")
    moved_at = UtcInstantField("moved at")

    class Meta:
        verbose_name = "position in an audit queue"  # no page shows it
        verbose_name_plural = "positions in audit queues"
        default_permissions = ()
        constraints: ClassVar = [models.UniqueConstraint(fields=["lake_id", "queue"], name="sqlqueue_position_once")]

    def __str__(self) -> str:
        return f"{self.queue} {self.row_version}"


class CopyOutcome(models.TextChoices):
    """The outcome of a failed message that was copied to the lake."""

    WAITING = "waiting", _("waiting")
    RETRIED = "retried", _("retried")
    RESOLVED = "resolved", _("resolved")
    ARCHIVED = "archived", _("archived")
    DELETED = "deleted", _("deleted")
    GONE = "gone", _("gone")


class LakeCopy(models.Model):
    """A row of an error queue that was copied to the lake, identified by RowVersion and id together.

    `left_at` is NULL while the row is in the queue; afterwards `fate` may change until it is final.
    """

    lake_id = models.UUIDField("lake")
    queue = models.CharField("error queue", max_length=400)
    row_version = models.BigIntegerField("row version")
    native_id = models.CharField("row id", max_length=64, blank=True, default="")
    message_id = models.CharField("message id", max_length=255, blank=True, default="")
    unique_message_id = models.CharField("unique message id", max_length=64, blank=True, default="")
    copied_at = UtcInstantField("copied at")
    batch = models.ForeignKey(LakeBatch, on_delete=models.CASCADE, related_name="copies")
    fate = models.CharField("fate", max_length=16, choices=CopyOutcome.choices, default=CopyOutcome.WAITING)
    fate_at = UtcInstantField("fate since", null=True, blank=True)
    left_at = UtcInstantField("left the queue at", null=True, blank=True)

    class Meta:
        verbose_name = _("copy of a failed message")
        verbose_name_plural = _("copies of failed messages")
        default_permissions = ()
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["lake_id", "queue", "row_version", "native_id"], name="sqlqueue_copy_once")
        ]
        indexes: ClassVar = [
            models.Index(fields=["lake_id", "queue", "left_at"], name="sqlqueue_copy_there"),
            models.Index(fields=["fate", "fate_at"], name="sqlqueue_copy_fate"),
        ]

    def __str__(self) -> str:
        return f"{self.queue} {self.row_version}: {self.fate}"


class NotableKind(models.TextChoices):
    """The ranking of a notable message."""

    SLOWEST = "slowest", _("slowest")
    LARGEST = "largest", _("largest")


class MessageFigures(models.Model):
    """Messages of one type at an endpoint per minute, hour or day of their processing.

    `processed` counts audited messages, `failed` those that were moved to an error queue. A mean is a sum divided by its count.
    """

    endpoint = models.CharField("endpoint", max_length=255, blank=True, default="")
    message_type = models.CharField("message type", max_length=255, blank=True, default="")
    seconds = models.PositiveIntegerField("seconds", help_text="the length of its interval: 60, 3600 or 86400")
    at = UtcInstantField("at", help_text="the start of its interval, in UTC")
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
            models.UniqueConstraint(fields=["endpoint", "message_type", "seconds", "at"], name="sqlqueue_figures_once")
        ]
        indexes: ClassVar = [models.Index(fields=["seconds", "at"], name="sqlqueue_figures_time")]

    def __str__(self) -> str:
        return f"{self.endpoint}: {self.message_type} at {self.at:%Y-%m-%d %H:%M}"


class GroupFigures(models.Model):
    """Failures of a group per hour or day; the id is ServiceControl's."""

    group_id = models.UUIDField("group id")
    classifier = models.CharField("classifier", max_length=64)
    title = models.TextField("title")
    seconds = models.PositiveIntegerField("seconds", help_text="the length of its interval: 3600 or 86400")
    at = UtcInstantField("at", help_text="the start of its interval, in UTC")
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
    """Messages from one endpoint to another per hour or day of their processing."""

    sender = models.CharField("sender", max_length=255, blank=True, default="")
    receiver = models.CharField("receiver", max_length=255, blank=True, default="")
    message_type = models.CharField("message type", max_length=255, blank=True, default="")
    seconds = models.PositiveIntegerField("seconds", help_text="the length of its interval: 3600 or 86400")
    at = UtcInstantField("at", help_text="the start of its interval, in UTC")
    count = models.PositiveBigIntegerField("messages", default=0)
    critical_count = models.PositiveBigIntegerField("messages with a critical time", default=0)
    critical_sum = models.FloatField("critical time", default=0)
    critical_sketch = JsonTextField("critical times", default=dict)

    class Meta:
        verbose_name = _("edge of conversations")
        verbose_name_plural = _("edges of conversations")
        default_permissions = ()
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["sender", "receiver", "message_type", "seconds", "at"], name="sqlqueue_edge_once")
        ]
        indexes: ClassVar = [models.Index(fields=["seconds", "at"], name="sqlqueue_edge_time")]

    def __str__(self) -> str:
        return f"{self.sender} to {self.receiver} at {self.at:%Y-%m-%d %H:%M}"


class EndpointSeen(models.Model):
    """An instance of an endpoint that has handled messages, successfully or not."""

    endpoint = models.CharField("endpoint", max_length=255, blank=True, default="")
    machine = models.CharField("machine", max_length=255, blank=True, default="")
    host_id = models.CharField("host id", max_length=64, blank=True, default="")
    host = models.CharField("host", max_length=255, blank=True, default="", help_text="its display name, as last seen")
    first_seen = UtcInstantField("first seen")
    last_seen = UtcInstantField("last seen")
    messages = models.PositiveBigIntegerField("messages", default=0)

    class Meta:
        verbose_name = _("endpoint seen")
        verbose_name_plural = _("endpoints seen")
        default_permissions = ()
        constraints: ClassVar = [models.UniqueConstraint(fields=["endpoint", "machine", "host_id"], name="sqlqueue_seen_once")]

    def __str__(self) -> str:
        return f"{self.endpoint} on {self.machine}"


class QueueFigures(models.Model):
    """Rows of a queue that the pipeline has taken or copied, per day in UTC."""

    queue = models.CharField("queue", max_length=400)
    day = models.DateField("day")
    taken = models.PositiveBigIntegerField("taken", default=0)
    copied = models.PositiveBigIntegerField("copied", default=0)
    expired = models.PositiveBigIntegerField("expired", default=0, help_text="the number of those that had expired")
    unreadable = models.PositiveBigIntegerField("unreadable", default=0, help_text="the number of those with unreadable headers")
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
    """Messages that an endpoint has handled per day in UTC; bytes include headers and bodies."""

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
