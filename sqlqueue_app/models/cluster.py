"""Models of a running cluster: processes, claims, samples, schedules, two-phase commit, handled messages, task results."""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from sqlqueue_app.models.fields import JsonTextField, UtcInstantField


class Instance(models.Model):
    """A running process of an endpoint, and the callback queue that it leases.

    A process inserts its row when it starts, renews `heartbeat_at`, and deletes the row when it ends. A `callback_queue` is unique:
    the loser of a race gets an IntegrityError and tries the next queue.
    """

    endpoint = models.CharField("endpoint", max_length=255)
    name = models.CharField(_("instance"), max_length=255, help_text=_("INSTANCE of the settings, else the name of the machine"))
    host = models.CharField("machine", max_length=255)
    pid = models.PositiveBigIntegerField("process id")
    process_identity = models.CharField(  # noqa: DJ001 - workers from before the migration write rows without it
        "process identity", max_length=100, null=True, blank=True, help_text="its boot, pid namespace and start"
    )
    callback_queue = models.CharField(  # noqa: DJ001 - NULL, so that rows without a queue do not violate the constraint
        _("callback queue"), max_length=255, null=True, blank=True, help_text=_("literal name of the leased table")
    )
    started_at = models.DateTimeField("started at")
    heartbeat_at = models.DateTimeField("last heartbeat")
    threads = models.JSONField("threads", default=dict, blank=True, help_text="live polling threads of each queue")
    # Nullable or with a default of the database: workers from before the migration write rows without it.
    busy = models.JSONField("busy threads", default=dict, null=True, blank=True, help_text="threads of each queue at a message")
    concurrency = models.PositiveIntegerField("concurrency", default=0, help_text="maximum number of messages handled at once")
    paused = models.BooleanField(
        "paused",
        default=False,
        db_default=False,
        help_text="whether an operator has paused the process; replies are still received",
    )
    paused_since = models.DateTimeField("paused since", null=True, blank=True, help_text="when the process applied the request")
    paused_by = models.CharField(
        "paused by", max_length=255, blank=True, default="", db_default="", help_text="the operator who paused it last"
    )
    asked_at = models.DateTimeField("asked at", null=True, blank=True, help_text="when an operator last made a request")
    version = models.CharField("version", max_length=50, blank=True, default="")

    class Meta:
        verbose_name = _("instance")
        verbose_name_plural = _("instances")
        ordering: ClassVar = ["endpoint", "name", "pid"]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["callback_queue"], condition=models.Q(callback_queue__isnull=False), name="sqlqueue_callback_queue_once"
            )
        ]

    def __str__(self) -> str:
        return f"{self.endpoint} on {self.host} ({self.pid})"


class CallbackQueue(models.Model):
    """A callback queue that a process holds or has held. `used_at` follows while it is held; `made`: not by the installer."""

    callback_queue = models.CharField("callback queue", max_length=255, unique=True, help_text="literal name of the table")
    endpoint = models.CharField("endpoint", max_length=255)
    name = models.CharField("instance", max_length=255)
    used_at = models.DateTimeField("last used at")
    made = models.BooleanField("made by a process", default=False)

    def __str__(self) -> str:
        return self.callback_queue


class Claim(models.Model):
    """A claim of work that one process does for the whole cluster: it is done or in progress until `until`.

    The process whose conditional UPDATE moves `until` forward does the work for that time; the others skip it.
    """

    name = models.CharField("name", max_length=100, unique=True)
    until = UtcInstantField("until")

    class Meta:
        verbose_name = "claim"
        verbose_name_plural = "claims"

    def __str__(self) -> str:
        return self.name


class QueueSample(models.Model):
    """The length of a queue at a time, for charts: counted every 10 seconds, or rolled up to longer intervals.

    `waiting`, `expired` and `overdue` are rounded means of `samples` counts; `most_waiting` and `head_age_seconds` are maxima. For
    a table of delayed messages `waiting` counts all messages and `overdue` those that should have left.
    """

    queue = models.CharField("queue", max_length=400)
    taken_at = UtcInstantField("taken at", help_text="the start of its interval, by the clock of the database")
    seconds = models.PositiveIntegerField("seconds", help_text="the length of its interval")
    samples = models.PositiveIntegerField("samples", default=1)
    waiting = models.PositiveBigIntegerField("waiting")
    most_waiting = models.PositiveBigIntegerField("most waiting")
    expired = models.PositiveBigIntegerField("expired", default=0)
    overdue = models.PositiveBigIntegerField("overdue", default=0)
    head_age_seconds = models.FloatField("age of the first message", null=True, blank=True)
    exact = models.BooleanField("exact", default=True, help_text="False if the length of a long queue was estimated")
    written = models.BigIntegerField(
        "written", null=True, blank=True, help_text="rows ever written into the table, as the database counts them"
    )

    class Meta:
        verbose_name = "queue sample"
        verbose_name_plural = "queue samples"
        constraints: ClassVar = [models.UniqueConstraint(fields=["queue", "seconds", "taken_at"], name="sqlqueue_sample_once")]
        indexes: ClassVar = [models.Index(fields=["seconds", "taken_at"], name="sqlqueue_sample_time")]

    def __str__(self) -> str:
        return f"{self.queue} at {self.taken_at:%Y-%m-%d %H:%M:%S}"


class EndpointCounts(models.Model):
    """Counters of an instance of an endpoint, shared by samples and totals."""

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
    """The work of an instance of an endpoint in an interval, for messages of one type; rows of the same interval add up.

    Times are sums over handled messages in seconds; divide by the number for a mean. The critical time is negative if a sender's
    clock is ahead, and unknown for messages without a time in their headers.
    """

    message_type = models.CharField("message type", max_length=255, blank=True, default="")
    taken_at = UtcInstantField("taken at", help_text="the start of its interval, by the clock of the database")
    seconds = models.PositiveIntegerField("seconds", help_text="the length of its interval")
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
    """Monotonic counters of an instance of an endpoint, written in the transaction of its samples, so that both agree."""

    class Meta:
        verbose_name = "total of an endpoint"
        verbose_name_plural = "totals of endpoints"
        constraints: ClassVar = [models.UniqueConstraint(fields=["endpoint", "instance"], name="sqlqueue_total_once")]

    def __str__(self) -> str:
        return f"{self.endpoint} on {self.instance}: {self.handled}"


class EndpointExpectation(models.Model):
    """The minimum of live instances of an endpoint; without a row nothing is expected."""

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
    """A run of a schedule: a tick whose message was sent, or a run by hand. A tick is unique: the loser of a race sends nothing.

    The first row of a schedule of the settings has no `message_id`: a worker has seen it, and earlier ticks are not made up for.
    """

    # Several projects on one database may each have a "nightly" of their own.
    schedule = models.CharField("schedule", max_length=255)
    message_type = models.CharField("message type", max_length=255)
    tick = UtcInstantField("tick")
    sent_at = UtcInstantField("sent at")
    message_id = models.CharField("message id", max_length=255, blank=True, default="")
    endpoint = models.CharField("sent as", max_length=255, blank=True, default="")
    # Part of the key: a run may be requested in the second of a tick.
    manual_run = models.CharField(
        "run by hand", max_length=64, blank=True, default="", db_default="", help_text="begin of its message id; empty for a tick"
    )

    class Meta:
        verbose_name = "tick of a schedule"
        verbose_name_plural = "ticks of schedules"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["schedule", "message_type", "tick", "manual_run"], name="sqlqueue_tick_once")
        ]

    def __str__(self) -> str:
        return f"{self.schedule} at {self.tick:%Y-%m-%d %H:%M}"


class ScheduleKind(models.TextChoices):
    """The kinds of schedules that are defined in the database."""

    CRON = "cron", _("crontab line")
    INTERVAL = "interval", _("interval")
    ONCE = "once", _("once")


class MissedPolicy(models.TextChoices):
    """What a worker does if a time of a schedule is in the past. Of several such times only the last one counts."""

    SEND = "send", _("send the last one, up to a day late")
    SKIP = "skip", _("skip it if it is more than a minute late")


class Schedule(models.Model):
    """A schedule that is defined in the database, or the state of an entry of SCHEDULES, whose `kind` is empty.

    An entry of SCHEDULES without a row is enabled and has no errors. A row with a kind has `next_at`, the time of its next
    message, NULL if there is none: the worker that changes it from that time to the following one sends the message.

    `run_requested_at` is set by a request to run now, and cleared in the transaction that sends the message, which sets `ran_at`
    and the following fields. `changed_at` is when it was last enabled or disabled, NULL for never; earlier ticks are not made up
    for. `failed_at` and `error` describe the last tick or run while it cannot be sent.
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
    error = models.TextField("error", blank=True, default="", help_text="the error that prevented its message from being sent")
    kind = models.CharField(_("kind"), max_length=20, choices=ScheduleKind, blank=True, default="", db_default="")
    cron = models.CharField(_("crontab line"), max_length=255, blank=True, default="", db_default="")
    every_seconds = models.PositiveIntegerField(_("interval (s)"), null=True, blank=True)
    at = UtcInstantField(_("time"), null=True, blank=True)
    time_zone = models.CharField(_("time zone"), max_length=64, blank=True, default="", db_default="")
    starts_at = UtcInstantField(_("start"), null=True, blank=True)
    ends_at = UtcInstantField(_("end"), null=True, blank=True)
    missed = models.CharField(
        _("missed times"), max_length=20, choices=MissedPolicy, default=MissedPolicy.SEND, db_default=MissedPolicy.SEND.value
    )
    destination = models.CharField(_("destination"), max_length=400, blank=True, default="", db_default="")
    body = JsonTextField(_("body"), null=True, blank=True)
    next_at = UtcInstantField("next time", null=True, blank=True)

    class Meta:
        verbose_name = _("recurring message")
        verbose_name_plural = _("recurring messages")
        default_permissions = ()
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["name", "message_type"], name="sqlqueue_schedule_once"),
            # SQL Server takes no NOT in the condition of an index.
            models.UniqueConstraint(
                fields=["name"],
                condition=models.Q(kind__gt=""),
                name="sqlqueue_schedule_name_once",
                violation_error_message=_("There is a schedule of this name."),
            ),
        ]

    def __str__(self) -> str:
        return self.name


class TwoPhaseCoordinator(models.Model):
    """The single row that identifies this database in branch ids on other servers."""

    number = models.PositiveSmallIntegerField("number", primary_key=True)
    id = models.UUIDField("id")

    class Meta:
        verbose_name = "coordinator"
        verbose_name_plural = "coordinators"
        default_permissions = ()

    def __str__(self) -> str:
        return str(self.id)


class DistributedTransaction(models.Model):
    """The log of two-phase commit: a receive transaction with branches in other databases. Present only once it is committed.

    Written in the receive transaction before the first branch is prepared; deleted when every branch has ended.
    """

    id = models.UUIDField("id", primary_key=True)
    queue = models.CharField("queue", max_length=255)
    branches = JsonTextField("branches", help_text="the aliases of its branches, in the order of their numbers")
    decided_at = UtcInstantField("decided at", help_text="by the clock of the database, before its commit")

    class Meta:
        verbose_name = _("in-doubt transaction")
        verbose_name_plural = _("in-doubt transactions")
        default_permissions = ()

    def __str__(self) -> str:
        return str(self.id)


class HandledMessage(models.Model):
    """A handled message, remembered so that a second copy is dropped (DEDUPLICATE_FOR).

    Written in the receive transaction, so the table is in the database of the queues. The key is a digest of queue and message id.
    """

    id = models.UUIDField("key", primary_key=True)
    queue = models.CharField("queue", max_length=255)
    handled_at = UtcInstantField("handled at", help_text="by the clock of the database")

    class Meta:
        verbose_name = "handled message"
        verbose_name_plural = "handled messages"
        indexes: ClassVar = [models.Index(fields=["queue", "handled_at"], name="sqlqueue_handled_age")]

    def __str__(self) -> str:
        return f"{self.queue}: {self.id}"


class UniqueMessage(models.Model):
    """The message that was last sent under a key, so that another is not sent (`send(…, unique_key=…)`).

    Written in the transaction of the message, so the table is in the database of the queues. The id is a digest of the
    destination and the key.
    """

    id = models.UUIDField("id", primary_key=True)
    key = models.CharField("key", max_length=255, help_text="its first characters")
    queue = models.CharField("queue", max_length=255)
    message_id = models.TextField("message id")
    sent_at = UtcInstantField("sent at", help_text="by the clock of the database")
    unique_until = UtcInstantField("unique until", db_index=True, help_text="and for as long as the message waits")

    class Meta:
        verbose_name = "unique message"
        verbose_name_plural = "unique messages"
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.queue}: {self.key}"


class RateReservation(models.Model):
    """The next free time of a rate limit: one row for each endpoint and message type that has one.

    Written in short transactions of their own. The id is a digest of endpoint and type. Deleting a row resets the limit.
    """

    id = models.UUIDField("id", primary_key=True)
    endpoint = models.CharField("endpoint", max_length=255)
    message_type = models.CharField("message type", max_length=255)
    reserved_until = models.BigIntegerField("reserved until", help_text="microseconds since 1970, by the clock of the database")
    handled_until = models.BigIntegerField("handled until", help_text="the end of the interval of the last message")

    class Meta:
        verbose_name = "rate reservation"
        verbose_name_plural = "rate reservations"
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.endpoint}: {self.message_type}"


class TaskResult(models.Model):
    """A task of Django's Tasks framework and its outcome.

    Written in the transactions that send and receive its message, whose id is `id`. Times are those of the processes, as in the
    framework. Arguments and results are text, because `jsonb` refuses parts of JSON.
    """

    id = models.CharField("id", max_length=64, primary_key=True)
    backend = models.CharField("backend", max_length=255, help_text="its alias in TASKS")
    task = models.TextField("task", help_text="dotted path of its function")
    queue_name = models.CharField("queue", max_length=255, help_text="as the task names it")
    priority = models.SmallIntegerField("priority", default=0, db_default=0)
    run_after = models.DateTimeField("run after", null=True, blank=True)
    args = JsonTextField("positional arguments")
    kwargs = JsonTextField("keyword arguments")
    status = models.CharField("status", max_length=16)
    enqueued_at = models.DateTimeField("enqueued at")
    started_at = models.DateTimeField("started at", null=True, blank=True)
    last_attempted_at = models.DateTimeField("last attempted at", null=True, blank=True)
    finished_at = models.DateTimeField("finished at", null=True, blank=True)
    errors = JsonTextField("errors", help_text="class path and traceback of each failed attempt")
    worker_ids = JsonTextField("workers", help_text="one for each attempt")
    return_value = JsonTextField("return value", null=True, blank=True)

    class Meta:
        verbose_name = _("task")
        verbose_name_plural = _("tasks")
        indexes: ClassVar = [
            models.Index(fields=["backend", "finished_at"], name="sqlqueue_task_finished"),
            models.Index(fields=["enqueued_at", "id"], name="sqlqueue_task_newest"),
        ]

    def __str__(self) -> str:
        return f"{self.task} ({self.id})"

    @property
    def duration(self) -> timedelta | None:
        """From the start of its last attempt to its end."""
        return self.finished_at - self.last_attempted_at if self.finished_at and self.last_attempted_at else None
