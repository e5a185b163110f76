"""Deleting many rows of a table of ours without holding up others."""

from __future__ import annotations

from typing import Any, Final

from django.db.models import QuerySet

DELETED_AT_ONCE: Final = 1_000


def delete_in_portions(rows: QuerySet[Any]) -> int:
    """Delete the rows of an ordered queryset, a thousand in each transaction, until none is left; returns how many there were."""
    deleted = 0
    table = rows.model._default_manager.using(rows.db)
    while chosen := list(rows.values_list("pk", flat=True)[:DELETED_AT_ONCE]):
        table.filter(pk__in=chosen).delete()
        deleted += len(chosen)
        if len(chosen) < DELETED_AT_ONCE:
            break
    return deleted
