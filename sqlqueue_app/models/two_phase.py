"""Two-phase commit: who the coordinator is, and its log (design 6.5)."""

from __future__ import annotations

from django.db import models

from sqlqueue_app.queue_models.fields import UtcInstantField
from sqlqueue_app.queue_models.json_text import JsonTextField


class TwoPhaseCoordinator(models.Model):
    """The one row that names this database in the ids of its branches on other servers."""

    number = models.PositiveSmallIntegerField("number", primary_key=True)
    id = models.UUIDField("id")

    class Meta:
        verbose_name = "coordinator"
        verbose_name_plural = "coordinators"
        default_permissions = ()

    def __str__(self) -> str:
        return str(self.id)


class DistributedTransaction(models.Model):
    """The log: a receive transaction in which other databases take part. Its row is there once it is committed, and only then.

    Written in the receive transaction, before the first branch is prepared; deleted when every branch has ended.
    """

    id = models.UUIDField("id", primary_key=True)
    queue = models.CharField("queue", max_length=255)
    branches = JsonTextField("branches", help_text="the aliases of its branches, in the order of their numbers")
    decided_at = UtcInstantField("decided at", help_text="by the clock of the database, before its commit")

    class Meta:
        verbose_name = "distributed transaction"
        verbose_name_plural = "distributed transactions"
        default_permissions = ()

    def __str__(self) -> str:
        return str(self.id)
