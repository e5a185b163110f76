"""What the pipeline has done: its runs, and the manifest of the lake, which says what is in it.

The manifest is written in the transaction that takes the rows out of their queue: a file that it does not name was never taken, and
one that it names is finished after a crash.
"""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from sqlqueue_app.queue_models.fields import UtcInstantField
from sqlqueue_app.queue_models.json_text import JsonTextField


class RunState(models.TextChoices):
    """How a run of the pipeline is, or ended."""

    RUNNING = "running", _("running")
    ENDED = "ended", _("ended")
    FAILED = "failed", _("failed")
    STOPPED = "stopped", _("stopped")


class PipelineRun(models.Model):
    """One run of the pipeline: a process, from its start to its end. One that runs and has no heartbeat any more was killed.

    The numbers are of what it has committed; they grow in the transaction of each batch.
    """

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
    bytes = models.PositiveBigIntegerField("bytes", default=0, help_text="of the files it has written")
    error = models.TextField("error", blank=True, default="", help_text="what ended it")

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


class BatchKind(models.TextChoices):
    """What a batch did."""

    AUDIT = "audit", _("taken from an audit queue")
    PEEK = "peek", _("read from an audit queue")
    FAILURES = "failures", _("copied from an error queue")
    FATES = "fates", _("what became of copies")
    COMPACTION = "compaction", _("compaction")
    RETENTION = "retention", _("retention")


class LakeBatch(models.Model):
    """One commit of the pipeline. `published_at` is NULL while its files may still be where readers do not look."""

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
    """A file of the lake. It counts from the commit of its batch until `retired_at`; after that its data is elsewhere, or too old.

    The row of a retired file is deleted once the file is.
    """

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
    """Up to which row an audit queue was read into a lake and left as it is; moved in the transaction of each batch.

    None where the rows are taken. `native_id` is that row's: in a table that was made anew its number belongs to another one.
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


class CopyFate(models.TextChoices):
    """What has become of a failed message of which the lake has a copy."""

    WAITING = "waiting", _("waiting")
    RETRIED = "retried", _("retried")
    RESOLVED = "resolved", _("resolved")
    ARCHIVED = "archived", _("archived")
    DELETED = "deleted", _("deleted")
    GONE = "gone", _("gone")


class LakeCopy(models.Model):
    """A row of an error queue that the lake has a copy of. Which row it is, its number and its id say together.

    `left_at` is NULL while the row lies in the queue; the fate may change after that, until it is final.
    """

    lake_id = models.UUIDField("lake")
    queue = models.CharField("error queue", max_length=400)
    row_version = models.BigIntegerField("row version")
    native_id = models.CharField("row id", max_length=64, blank=True, default="")
    message_id = models.CharField("message id", max_length=255, blank=True, default="")
    unique_message_id = models.CharField("unique message id", max_length=64, blank=True, default="")
    copied_at = UtcInstantField("copied at")
    batch = models.ForeignKey(LakeBatch, on_delete=models.CASCADE, related_name="copies")
    fate = models.CharField("fate", max_length=16, choices=CopyFate.choices, default=CopyFate.WAITING)
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
