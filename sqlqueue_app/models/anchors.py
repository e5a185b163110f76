"""Models without a table, which give pages a place in the admin and hold the permissions of the dashboard."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _


class Queue(models.Model):
    """The pages of queues, and the permissions of the dashboard."""

    class Meta:
        managed = False
        default_permissions = ("view",)
        permissions: ClassVar = [
            ("view_body", "Can see the bodies of messages"),
            ("export", "Can export lists and messages"),
            ("retry", "Can retry failed messages"),
            ("edit_message", "Can edit a failed message and retry it"),
            ("archive", "Can archive failed messages, and bring them back"),
            ("delete_message", "Can delete messages"),
            ("move_message", "Can move messages to another queue"),
            ("purge_queue", "Can purge queues, and remove callback queues"),
            ("control_endpoint", "Can pause and resume, and change the concurrency of instances"),
            ("manage_redirect", "Can manage redirects of retries"),
            ("manage_settings", "Can manage notes, schedules, subscriptions and notifications"),
        ]
        verbose_name = _("queue")
        verbose_name_plural = _("queues")

    def __str__(self) -> str:
        return str(self.pk)


class Dashboard(models.Model):
    """The overview."""

    class Meta:
        managed = False
        default_permissions = ()
        verbose_name = _("overview")
        verbose_name_plural = _("overview")

    def __str__(self) -> str:
        return str(self.pk)


class Endpoint(models.Model):
    """The pages of endpoints."""

    class Meta:
        managed = False
        default_permissions = ()
        verbose_name = _("endpoint")
        verbose_name_plural = _("endpoints")

    def __str__(self) -> str:
        return str(self.pk)


class DelayedMessage(models.Model):
    """The pages of delayed messages."""

    class Meta:
        managed = False
        default_permissions = ()
        verbose_name = _("delayed message")
        verbose_name_plural = _("delayed messages")

    def __str__(self) -> str:
        return str(self.pk)


class Subscription(models.Model):
    """The page of subscriptions."""

    class Meta:
        managed = False
        default_permissions = ()
        verbose_name = _("subscription")
        verbose_name_plural = _("subscriptions")

    def __str__(self) -> str:
        return str(self.pk)


class Conversation(models.Model):
    """The pages of conversations."""

    class Meta:
        managed = False
        default_permissions = ()
        verbose_name = _("conversation")
        verbose_name_plural = _("conversations")

    def __str__(self) -> str:
        return str(self.pk)


class Analytics(models.Model):
    """The pages of rollups by the pipeline."""

    class Meta:
        managed = False
        default_permissions = ()
        verbose_name = _("analytics")
        verbose_name_plural = _("analytics")

    def __str__(self) -> str:
        return str(self.pk)


class LakeSearch(models.Model):
    """The pages of old messages in the lake."""

    class Meta:
        managed = False
        default_permissions = ()
        verbose_name = _("old message")
        verbose_name_plural = _("old messages")

    def __str__(self) -> str:
        return str(self.pk)
