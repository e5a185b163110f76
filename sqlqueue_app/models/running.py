"""What keeps a cluster together: processes, claims, samples, ticks of schedules."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from sqlqueue_app.queue_models.fields import UtcInstantField


class Instance(models.Model):
    """One running process of an endpoint, and the callback queue that it leases.

    A process inserts its row when it starts, renews `heartbeat_at` while it lives and deletes the row when it ends. No two rows
    hold the same `callback_queue`: who loses the race for one gets an IntegrityError and tries the next (design §6.12).
    """

    endpoint = models.CharField("endpoint", max_length=255)
    name = models.CharField("instance", max_length=255, help_text="INSTANCE of the settings, else the name of the machine")
    host = models.CharField("machine", max_length=255)
    pid = models.PositiveBigIntegerField("process id")
    callback_queue = models.CharField(  # noqa: DJ001 - several rows without a queue must not collide in the constraint
        "callback queue", max_length=255, null=True, blank=True, help_text="literal name of the leased table"
    )
    started_at = models.DateTimeField("started at")
    heartbeat_at = models.DateTimeField("last heartbeat")
    threads = models.JSONField("threads", default=dict, blank=True, help_text="live polling threads of each queue")
    # Nullable or with a default of the database: a worker of before the migration writes rows without it.
    busy = models.JSONField("busy threads", default=dict, null=True, blank=True, help_text="threads of each queue at a message")
    concurrency = models.PositiveIntegerField("concurrency", default=0, help_text="messages handled at once, at most")
    paused = models.BooleanField("paused", default=False, db_default=False, help_text="asked to receive nothing but replies")
    paused_since = models.DateTimeField("paused since", null=True, blank=True, help_text="when the process has followed")
    asked_at = models.DateTimeField("asked at", null=True, blank=True, help_text="when an operator last asked for something")
    version = models.CharField("version", max_length=50, blank=True, default="")

    class Meta:
        verbose_name = _("instance")
        verbose_name_plural = _("instances")
        ordering: ClassVar = ["endpoint", "name", "pid"]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["callback_queue"],
                condition=models.Q(callback_queue__isnull=False),
                name="sqlqueue_callback_queue_once",
            )
        ]

    def __str__(self) -> str:
        return f"{self.endpoint} on {self.host} ({self.pid})"


class Claim(models.Model):
    """Up to when a piece of work that one process of the cluster does for all is done, or being done.

    Who moves `until` forward by a conditional UPDATE does the work for the time in between; the others do nothing.
    """

    name = models.CharField("name", max_length=100, unique=True)
    until = UtcInstantField("until")

    class Meta:
        verbose_name = "claim"
        verbose_name_plural = "claims"

    def __str__(self) -> str:
        return self.name


class QueueSample(models.Model):
    """How much was in a queue at a time, for charts: as it was counted every 10 seconds, or rolled up to longer times.

    `waiting`, `expired` and `overdue` are means over `samples` counts, rounded; `most_waiting` and `head_age_seconds` are maxima.
    Of a table of delayed messages `waiting` counts all its messages, `overdue` those that should have left it.
    """

    queue = models.CharField("queue", max_length=400)
    taken_at = UtcInstantField("taken at", help_text="the begin of its time, by the clock of the database")
    seconds = models.PositiveIntegerField("seconds", help_text="the length of its time")
    samples = models.PositiveIntegerField("samples", default=1)
    waiting = models.PositiveBigIntegerField("waiting")
    most_waiting = models.PositiveBigIntegerField("most waiting")
    expired = models.PositiveBigIntegerField("expired", default=0)
    overdue = models.PositiveBigIntegerField("overdue", default=0)
    head_age_seconds = models.FloatField("age of the first message", null=True, blank=True)
    exact = models.BooleanField("exact", default=True, help_text="False where a long queue was estimated")
    written = models.BigIntegerField(
        "written", null=True, blank=True, help_text="rows ever written into the table, as the database counts them"
    )

    class Meta:
        verbose_name = "queue sample"
        verbose_name_plural = "queue samples"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["queue", "seconds", "taken_at"], name="sqlqueue_sample_once"),
        ]
        indexes: ClassVar = [models.Index(fields=["seconds", "taken_at"], name="sqlqueue_sample_time")]

    def __str__(self) -> str:
        return f"{self.queue} at {self.taken_at:%Y-%m-%d %H:%M:%S}"


class EndpointCounts(models.Model):
    """What an instance of an endpoint did: the columns that its samples and its totals share."""

    endpoint = models.CharField("endpoint", max_length=255)
    instance = models.CharField("instance", max_length=255)
    handled = models.PositiveBigIntegerField("handled", default=0)
    failures = models.PositiveBigIntegerField("failed attempts", default=0)
    immediate_retries = models.PositiveBigIntegerField("immediate retries", default=0)
    delayed_retries = models.PositiveBigIntegerField("delayed retries", default=0)
    moved_to_error = models.PositiveBigIntegerField("moved to the error queue", default=0)
    processing_seconds = models.FloatField("processing time", default=0)

    class Meta:
        abstract = True


class EndpointSample(EndpointCounts):
    """What an instance of an endpoint did in a time with messages of one type, for charts; rows of the same time add up.

    Times are of messages that were handled, their sums in seconds: a mean is a sum divided by its number of messages. The critical
    time is negative where a sender's clock is ahead, and unknown of messages without a time in their headers.
    """

    message_type = models.CharField("message type", max_length=255, blank=True, default="")
    taken_at = UtcInstantField("taken at", help_text="the begin of its time, by the clock of the database")
    seconds = models.PositiveIntegerField("seconds", help_text="the length of its time")
    processing_max = models.FloatField("longest processing time", default=0)
    critical_measured = models.PositiveBigIntegerField("handled with a critical time", default=0)
    critical_seconds = models.FloatField("critical time", default=0)
    critical_max = models.FloatField("longest critical time", null=True, blank=True)

    class Meta:
        verbose_name = "endpoint sample"
        verbose_name_plural = "endpoint samples"
        indexes: ClassVar = [
            models.Index(fields=["seconds", "taken_at"], name="sqlqueue_measure_time"),
            models.Index(fields=["endpoint", "seconds", "taken_at"], name="sqlqueue_measure_endpoint"),
        ]

    def __str__(self) -> str:
        return f"{self.endpoint}: {self.message_type} at {self.taken_at:%Y-%m-%d %H:%M:%S}"


class EndpointTotal(EndpointCounts):
    """What the processes of an instance of an endpoint have done since ever: what samples say, added up, for counters.

    It only grows. It is written in the transaction of the samples, so that both say the same.
    """

    class Meta:
        verbose_name = "total of an endpoint"
        verbose_name_plural = "totals of endpoints"
        constraints: ClassVar = [models.UniqueConstraint(fields=["endpoint", "instance"], name="sqlqueue_total_once")]

    def __str__(self) -> str:
        return f"{self.endpoint} on {self.instance}: {self.handled}"


class EndpointExpectation(models.Model):
    """How many live instances an endpoint must have at least; without a row nothing is expected of it."""

    endpoint = models.CharField("endpoint", max_length=255, unique=True)
    minimum = models.PositiveIntegerField("minimum of live instances")
    changed_by = models.CharField("changed by", max_length=255, blank=True, default="")
    changed_at = UtcInstantField("changed at")

    class Meta:
        verbose_name = "minimum of instances"
        verbose_name_plural = "minimums of instances"
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.endpoint}: {self.minimum}"


class ScheduleTick(models.Model):
    """A tick of a schedule whose message was sent. No two rows hold the same tick: who loses the race sends nothing.

    The first row of a schedule has no `message_id`: a worker has seen the schedule then, and earlier ticks are not made up for.
    """

    # Several projects on one database may each have a "nightly" of their own.
    schedule = models.CharField("schedule", max_length=255)
    message_type = models.CharField("message type", max_length=255)
    tick = UtcInstantField("tick")
    sent_at = UtcInstantField("sent at")
    message_id = models.CharField("message id", max_length=255, blank=True, default="")
    endpoint = models.CharField("sent as", max_length=255, blank=True, default="")

    class Meta:
        verbose_name = "tick of a schedule"
        verbose_name_plural = "ticks of schedules"
        constraints: ClassVar = [models.UniqueConstraint(fields=["schedule", "message_type", "tick"], name="sqlqueue_tick_once")]

    def __str__(self) -> str:
        return f"{self.schedule} at {self.tick:%Y-%m-%d %H:%M}"


class Schedule(models.Model):
    """What operators have said about an entry of SCHEDULES, and workers of it; without a row it is enabled, and all is well.

    `run_requested_at` is set when somebody asks for a run now, and cleared in the transaction that sends its message, of which
    `ran_at` and what follows tell. `changed_at` is when it was last enabled or disabled, NULL for never: ticks up to then are not
    made up for. `failed_at` and `error` are of the last tick or run, while it cannot be sent.
    """

    name = models.CharField("schedule", max_length=255)
    message_type = models.CharField("message type", max_length=255)
    enabled = models.BooleanField("enabled", default=True)
    changed_by = models.CharField("changed by", max_length=255, blank=True, default="")
    changed_at = UtcInstantField("changed at", null=True, blank=True)
    run_requested_at = UtcInstantField("run requested at", null=True, blank=True)
    ran_at = UtcInstantField("run by hand at", null=True, blank=True)
    ran_message_id = models.CharField("message id of that run", max_length=255, blank=True, default="")
    ran_endpoint = models.CharField("run as", max_length=255, blank=True, default="")
    failed_at = UtcInstantField("failed at", null=True, blank=True)
    error = models.TextField("error", blank=True, default="", help_text="why its message could not be sent")

    class Meta:
        verbose_name = _("recurring message")
        verbose_name_plural = _("recurring messages")
        default_permissions = ()
        constraints: ClassVar = [models.UniqueConstraint(fields=["name", "message_type"], name="sqlqueue_schedule_once")]

    def __str__(self) -> str:
        return self.name
