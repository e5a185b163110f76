"""Models of operator actions: bulk operations, and the record of every action."""

from __future__ import annotations

from typing import ClassVar, Final

from django.db import models
from django.utils.translation import gettext_lazy as _

from sqlqueue_app.models.fields import JsonTextField, UtcInstantField


class OperationState(models.TextChoices):
    """The state of a bulk operation. The last three are final."""

    WAITING = "waiting", _("waiting")
    RUNNING = "running", _("running")
    CANCELLED = "cancelled", _("cancelled")
    FAILED = "failed", _("failed")
    COMPLETED = "completed", _("completed")


OPEN: Final = (OperationState.WAITING, OperationState.RUNNING)


class Operation(models.Model):
    """A bulk operation, claimed and run batch by batch by any live worker.

    The numbers are written in the transaction of each batch, so that every message counts once even if the process is killed.
    `cursor` is the last processed message; `lease_until` ends the claim of the worker.
    """

    id = models.UUIDField("id", primary_key=True)
    kind = models.CharField("kind", max_length=40)
    scope = JsonTextField("scope", default=dict, help_text="the scope: ids, a group, a query, or a queue")
    description = models.TextField("on what", blank=True, default="", help_text="the description of the scope, as confirmed")
    state = models.CharField("state", max_length=16, choices=OperationState.choices, default=OperationState.WAITING)
    cancel_requested = models.BooleanField("cancel requested", default=False, db_default=False)
    total = models.PositiveBigIntegerField("total", default=0, help_text="the number of messages at the time of the request")
    done = models.PositiveBigIntegerField("done", default=0)
    skipped = models.PositiveBigIntegerField("skipped", default=0)
    failed = models.PositiveBigIntegerField("failed", default=0)
    cursor = models.CharField("cursor", max_length=64, blank=True, default="")
    log = JsonTextField("log", default=list, help_text="the reasons for skipped and failed messages, each once with its count")
    error = models.TextField("error", blank=True, default="", help_text="the error that ended it")
    user_key = models.CharField("key of the user", max_length=255, blank=True, default="")
    user_name = models.CharField("requested by", max_length=255, blank=True, default="")
    requested_at = UtcInstantField("requested at")
    started_at = UtcInstantField("started at", null=True, blank=True)
    finished_at = UtcInstantField("finished at", null=True, blank=True)
    lease_until = UtcInstantField("leased until", null=True, blank=True)
    worker = models.CharField("worker", max_length=255, blank=True, default="")

    class Meta:
        verbose_name = _("operation")
        verbose_name_plural = _("operations")
        default_permissions = ()
        indexes: ClassVar = [
            models.Index(fields=["state", "requested_at"], name="sqlqueue_operation_state"),
            models.Index(fields=["requested_at"], name="sqlqueue_operation_newest"),
        ]

    def __str__(self) -> str:
        return f"{self.kind}: {self.description}"

    @property
    def is_open(self) -> bool:
        """Whether it has not ended."""
        return self.state in OPEN

    @property
    def processed(self) -> int:
        """The number of processed messages: done, skipped or failed."""
        return self.done + self.skipped + self.failed


class ActionResult(models.TextChoices):
    """The result of an action."""

    DONE = "done", _("done")
    REQUESTED = "requested", _("requested")
    DENIED = "denied", _("denied")
    FAILED = "failed", _("failed")


class OperatorAction(models.Model):
    """The record of an action in the dashboard or by a command, including denied ones: author, action, time, count.

    Users may be in another database and may be deleted: the row keeps their key and name.
    """

    at = UtcInstantField("at")
    user_key = models.CharField("key of the user", max_length=255, blank=True, default="")
    user_name = models.CharField("who", max_length=255, blank=True, default="")
    address = models.CharField("network address", max_length=64, blank=True, default="")
    permission = models.CharField("permission", max_length=100, blank=True, default="")
    action = models.CharField("action", max_length=40)
    target = models.TextField("on what", blank=True, default="")
    count = models.PositiveBigIntegerField("on how many", default=1)
    result = models.CharField("result", max_length=16, choices=ActionResult.choices)
    reason = models.TextField("reason", blank=True, default="")
    operation = models.ForeignKey(Operation, on_delete=models.SET_NULL, null=True, blank=True, related_name="actions")

    class Meta:
        verbose_name = _("action")
        verbose_name_plural = _("actions")
        default_permissions = ()
        indexes: ClassVar = [models.Index(fields=["at"], name="sqlqueue_action_newest")]

    def __str__(self) -> str:
        return f"{self.user_name}: {self.action} ({self.result})"
