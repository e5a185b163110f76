"""Models of failed messages: the index of the error queues, and the data that operators add.

Messages stay in their error queue. Columns copied from headers can be read again at any time; status, notes and redirects cannot.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, Final

from django.db import models
from django.utils.translation import gettext_lazy as _

from sqlqueue_app.models.fields import UtcInstantField
from sqlqueue_app.tables.rows import cut_text


class FailureStatus(models.IntegerChoices):
    """The status of a failed message; the first four numbers are those of ServiceControl."""

    UNRESOLVED = 1, _("unresolved")
    RESOLVED = 2, _("resolved")
    RETRY_ISSUED = 3, _("retry issued")
    ARCHIVED = 4, _("archived")
    DELETED = 5, _("deleted")
    GONE = 6, _("gone from the error queue")


class FailureGroup(models.Model):
    """Failures with a common property; `id` is ServiceControl's id of the same group."""

    id = models.UUIDField("id", primary_key=True)
    classifier = models.CharField("classifier", max_length=64, help_text="the classifier that groups the failures")
    title = models.TextField("title", help_text="the common property of the failures")
    first_seen_at = UtcInstantField("first seen at", null=True, blank=True, help_text="when its first failure was detected")
    note = models.TextField("note", blank=True, default="", db_default="")
    noted_by = models.CharField("noted by", max_length=255, blank=True, default="", db_default="")
    noted_at = UtcInstantField("noted at", null=True, blank=True)

    class Meta:
        verbose_name = "group of failures"
        verbose_name_plural = "groups of failures"
        indexes: ClassVar = [models.Index(fields=["classifier", "first_seen_at"], name="sqlqueue_group_newest")]

    def __str__(self) -> str:
        return self.title


class FailedMessage(models.Model):
    """A failed message with all its attempts. `id` is the unique message id of ServiceControl.

    `queue` and `row_version` locate its row; `row_version` is NULL once the row is gone. Groups are those of the last failure.
    """

    id = models.UUIDField("unique message id", primary_key=True)
    status = models.PositiveSmallIntegerField("status", choices=FailureStatus.choices, default=FailureStatus.UNRESOLVED)
    status_at = UtcInstantField("status since")
    queue = models.CharField("error queue", max_length=400)
    row_version = models.BigIntegerField("row version", null=True, blank=True)
    message_id = models.CharField("message id", max_length=255)
    conversation_id = models.CharField("conversation id", max_length=255, blank=True, default="")
    message_type = models.CharField("message type", max_length=400, blank=True, default="")
    endpoint = models.CharField("endpoint", max_length=255, blank=True, default="", help_text="the endpoint at which it failed")
    failed_q = models.CharField(
        "failed queue", max_length=400, blank=True, default="", help_text="the queue from which it was received"
    )
    exception_type = models.CharField("exception type", max_length=400, blank=True, default="")
    exception_message = models.TextField("exception message", blank=True, default="", help_text="its first 1,000 characters")
    poison = models.TextField("poison", blank=True, default="", help_text="the error of reading its headers")
    attempts = models.PositiveIntegerField(
        "failures", default=1, help_text="the number of times that it was moved to an error queue"
    )
    first_failed_at = UtcInstantField("first failed at")
    failed_at = UtcInstantField("last failed at")
    sent_at = UtcInstantField("sent at", null=True, blank=True)
    size = models.PositiveBigIntegerField("size of the body", null=True, blank=True)
    exception_group = models.UUIDField("group by exception", null=True, blank=True)
    type_group = models.UUIDField("group by message type", null=True, blank=True)
    address_group = models.UUIDField("group by address", null=True, blank=True)
    instance_group = models.UUIDField("group by instance", null=True, blank=True)
    endpoint_group = models.UUIDField("group by endpoint", null=True, blank=True)
    retried_to = models.CharField("retried to", max_length=400, blank=True, default="", help_text="the target of the last retry")
    retry_row_id = models.CharField("row id of the retry", max_length=64, blank=True, default="")
    operation = models.UUIDField("operation", null=True, blank=True, help_text="the last bulk operation that changed its status")
    edit_of = models.UUIDField("edit of", null=True, blank=True, help_text="the message of which this is an edited copy")

    class Meta:
        verbose_name = _("failed message")
        verbose_name_plural = _("failed messages")
        default_permissions = ()
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["queue", "row_version"], condition=models.Q(row_version__isnull=False), name="sqlqueue_failure_once"
            )
        ]
        indexes: ClassVar = [
            models.Index(fields=["status", "failed_at", "id"], name="sqlqueue_failure_newest"),
            models.Index(fields=["status", "exception_group", "failed_at"], name="sqlqueue_failure_exception"),
            models.Index(fields=["status", "type_group", "failed_at"], name="sqlqueue_failure_type"),
            models.Index(fields=["status", "address_group", "failed_at"], name="sqlqueue_failure_address"),
            models.Index(fields=["status", "instance_group", "failed_at"], name="sqlqueue_failure_instance"),
            models.Index(fields=["status", "endpoint_group", "failed_at"], name="sqlqueue_failure_endpoint"),
            models.Index(fields=["message_id"], name="sqlqueue_failure_message"),
            models.Index(fields=["operation", "status"], name="sqlqueue_failure_operation"),
            models.Index(fields=["conversation_id"], name="sqlqueue_failure_talk"),
        ]

    def __str__(self) -> str:
        return f"{self.message_type or 'message'} {self.message_id}"

    @property
    def state_since(self) -> datetime:
        """When its status began; for an unresolved message, when it last failed, which may be indexed much later."""
        return self.failed_at if self.status == FailureStatus.UNRESOLVED else self.status_at


class FailedAttempt(models.Model):
    """One arrival of a failed message in an error queue. `row_version` is set while its row is there.

    `worker`, `started_at` and `delayed_at` come from its headers. `retried_at` is when it was sent again, by `operation` or as
    an edited copy with the message id `copy_id`.
    """

    failure = models.ForeignKey(FailedMessage, on_delete=models.CASCADE, related_name="history")
    queue = models.CharField("error queue", max_length=400)
    row_version = models.BigIntegerField("row version", null=True, blank=True)
    failed_at = UtcInstantField("failed at")
    exception_type = models.CharField("exception type", max_length=400, blank=True, default="")
    exception_message = models.TextField("exception message", blank=True, default="")
    failed_q = models.CharField("failed queue", max_length=400, blank=True, default="")
    worker = models.CharField("worker", max_length=255, blank=True, default="", db_default="", help_text="the host that handled it")
    started_at = UtcInstantField("handler started at", null=True, blank=True)
    delayed_at = UtcInstantField("last delayed retry at", null=True, blank=True)
    retried_at = UtcInstantField("retried at", null=True, blank=True)
    operation = models.UUIDField("operation", null=True, blank=True, help_text="the bulk operation that retried it")
    copy_id = models.CharField("message id of the copy", max_length=64, blank=True, default="", db_default="")

    class Meta:
        verbose_name = "attempt"
        verbose_name_plural = "attempts"
        default_permissions = ()
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["queue", "row_version"], condition=models.Q(row_version__isnull=False), name="sqlqueue_attempt_once"
            )
        ]
        indexes: ClassVar = [models.Index(fields=["failure", "failed_at"], name="sqlqueue_attempt_newest")]

    def __str__(self) -> str:
        return f"{self.exception_type} at {self.failed_at:%Y-%m-%d %H:%M:%S}"


class Redirect(models.Model):
    """The queue that retries go to instead of the queue where messages failed."""

    id = models.UUIDField("id", primary_key=True, help_text="derived from the redirected address")
    from_address = models.CharField("from", max_length=400, unique=True)
    to_address = models.CharField("to", max_length=400)
    created_by = models.CharField("made by", max_length=255, blank=True, default="")
    created_at = UtcInstantField("made at")
    used = models.PositiveBigIntegerField("used", default=0, help_text="the number of retries that it has redirected")

    class Meta:
        verbose_name = _("redirect")
        verbose_name_plural = _("redirects")
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.from_address} to {self.to_address}"


_MAX_LENGTHS: Final = {each.name: each.max_length for each in FailedMessage._meta.concrete_fields}


def fitting(column: str, value: Any) -> Any:
    """The value as the column of FailedMessage can store it: long texts cut, without NUL."""
    if not isinstance(value, str):
        return value
    return cut_text(value, _MAX_LENGTHS.get(column))
