"""Models without a table, which give pages a place in the admin and hold the permissions of the dashboard."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _, gettext_noop

from sqlqueue_app.conf.settings import check_installed

check_installed()  # otherwise Django only reports that a model has no app_label


class NoRows(models.Manager["Anchor"]):
    """Finds nothing, without a query: `dumpdata` reads every model, and these have no tables."""

    def get_queryset(self) -> models.QuerySet[Anchor]:
        """An empty set."""
        return super().get_queryset().none()


class Anchor(models.Model):
    """A model without a table and, unless it names some, without permissions."""

    objects = NoRows()

    class Meta:
        abstract = True
        managed = False
        default_permissions: ClassVar[tuple[str, ...]] = ()

    def __str__(self) -> str:
        return str(self.pk)


class Queue(Anchor):
    """The pages of queues, and the permissions of the dashboard."""

    class Meta(Anchor.Meta):
        default_permissions = ("view",)
        permissions: ClassVar = [
            ("view_body", gettext_noop("Can see the bodies of messages")),
            ("export", gettext_noop("Can export lists and messages")),
            ("retry", gettext_noop("Can retry failed messages")),
            ("edit_message", gettext_noop("Can edit a failed message and retry it")),
            ("archive", gettext_noop("Can archive failed messages, and bring them back")),
            ("delete_message", gettext_noop("Can delete messages")),
            ("move_message", gettext_noop("Can move messages to another queue")),
            ("purge_queue", gettext_noop("Can purge queues, and remove callback queues")),
            ("control_endpoint", gettext_noop("Can pause and resume, and change the concurrency of instances")),
            ("manage_redirect", gettext_noop("Can manage redirects of retries")),
            ("manage_settings", gettext_noop("Can manage notes, schedules, subscriptions and notifications")),
        ]
        verbose_name = _("queue")
        verbose_name_plural = _("queues")


class Dashboard(Anchor):
    """The overview."""

    class Meta(Anchor.Meta):
        verbose_name = verbose_name_plural = _("overview")


class Endpoint(Anchor):
    """The pages of endpoints."""

    class Meta(Anchor.Meta):
        verbose_name = _("endpoint")
        verbose_name_plural = _("endpoints")


class DelayedMessage(Anchor):
    """The pages of delayed messages."""

    class Meta(Anchor.Meta):
        verbose_name = _("delayed message")
        verbose_name_plural = _("delayed messages")


class Subscription(Anchor):
    """The page of subscriptions."""

    class Meta(Anchor.Meta):
        verbose_name = _("subscription")
        verbose_name_plural = _("subscriptions")


class Search(Anchor):
    """The page that searches messages everywhere."""

    class Meta(Anchor.Meta):
        verbose_name = verbose_name_plural = _("search")


class Conversation(Anchor):
    """The pages of conversations."""

    class Meta(Anchor.Meta):
        verbose_name = _("conversation")
        verbose_name_plural = _("conversations")


class Analytics(Anchor):
    """The pages of rollups by the pipeline."""

    class Meta(Anchor.Meta):
        verbose_name = verbose_name_plural = _("analytics")


class LakeSearch(Anchor):
    """The pages of old messages in the lake."""

    class Meta(Anchor.Meta):
        verbose_name = _("archived message")
        verbose_name_plural = _("message archive")
