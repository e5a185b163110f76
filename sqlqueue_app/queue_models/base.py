"""What the models of all queue tables share."""

from __future__ import annotations

from typing import Any

from django.db import models

from sqlqueue_app.conf import get_settings


class QueueMessageManager(models.Manager["QueueMessage"]):
    """Reads and writes the database of `SQLQUEUE["DATABASE"]`, also in a project without the router."""

    def get_queryset(self) -> models.QuerySet[QueueMessage]:
        """All rows of the queue, oldest first; `using()` is obeyed."""
        using = self._db or get_settings().database
        return models.QuerySet(self.model, using=using, hints=self._hints)  # type: ignore[attr-defined]


class QueueMessage(models.Model):
    """A row of a queue table. Rows come and go while workers receive: one that was read may be gone when it is saved."""

    objects = QueueMessageManager()

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self._meta.verbose_name} {self.pk}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Save into the database that the row came from, else into that of the queues."""
        if kwargs.get("using") is None:
            kwargs["using"] = self._state.db or get_settings().database
        super().save(*args, **kwargs)

    def delete(self, using: Any = None, keep_parents: bool = False) -> tuple[int, dict[str, int]]:
        """Delete from the database that the row came from, else from that of the queues."""
        return super().delete(using=using or self._state.db or get_settings().database, keep_parents=keep_parents)
