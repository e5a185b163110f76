"""Django models: the managed table of running instances, an anchor for permissions, and `queue_model` for queue tables."""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from sqlqueue_app.queue_models import queue_model, queue_models

__all__ = ["Instance", "Queue", "queue_model", "queue_models"]


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
    concurrency = models.PositiveIntegerField("concurrency", default=0, help_text="messages handled at once, at most")
    version = models.CharField("version", max_length=50, blank=True, default="")

    class Meta:
        verbose_name = "instance"
        verbose_name_plural = "instances"
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


class Queue(models.Model):
    """A place in the admin and a permission for the pages about queues; it has no table and no rows."""

    class Meta:
        managed = False
        default_permissions = ("view",)
        verbose_name = "queue"
        verbose_name_plural = "queues"

    def __str__(self) -> str:
        return str(self.pk)
