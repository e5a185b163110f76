"""What is known of messages that were handled: their ids, and the results of tasks."""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from sqlqueue_app.queue_models.fields import UtcInstantField
from sqlqueue_app.queue_models.json_text import JsonTextField


class HandledMessage(models.Model):
    """A message that was handled, remembered so that a second copy is dropped (DEDUPLICATE_FOR).

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


class TaskResult(models.Model):
    """A task of Django's Tasks framework: what was enqueued, and what has become of it.

    Written in the transaction that sends its message, and in the one that receives it. `id` is the id of that message. The times
    are those of the processes' clocks, as in the framework. Arguments and results are text, because `jsonb` refuses some of JSON.
    """

    id = models.CharField("id", max_length=64, primary_key=True)
    backend = models.CharField("backend", max_length=255, help_text="its alias in TASKS")
    task = models.TextField("task", help_text="dotted path of its function")
    queue_name = models.CharField("queue", max_length=255, help_text="as the task names it")
    run_after = models.DateTimeField("run after", null=True, blank=True)
    args = JsonTextField("positional arguments")
    kwargs = JsonTextField("keyword arguments")
    status = models.CharField("status", max_length=16)
    enqueued_at = models.DateTimeField("enqueued at")
    started_at = models.DateTimeField("started at", null=True, blank=True)
    last_attempted_at = models.DateTimeField("last attempted at", null=True, blank=True)
    finished_at = models.DateTimeField("finished at", null=True, blank=True)
    errors = JsonTextField("errors", help_text="class path and traceback of each attempt that failed")
    worker_ids = JsonTextField("workers", help_text="one for each attempt")
    return_value = JsonTextField("return value", null=True, blank=True)

    class Meta:
        verbose_name = "result of a task"
        verbose_name_plural = "results of tasks"
        indexes: ClassVar = [models.Index(fields=["backend", "finished_at"], name="sqlqueue_task_finished")]

    def __str__(self) -> str:
        return f"{self.task} ({self.id})"
