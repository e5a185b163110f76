"""Pages of long lists, the newest first: each begins behind the last row of the one before, and costs no more than the first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest

_LARGEST_KEY: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Portion:
    """The rows of one page; the query strings of the first and of the next page, None where there is none to go to."""

    rows: list[Any]
    first_query: str | None
    next_query: str | None

    @property
    def is_first(self) -> bool:
        """Whether nothing stands before it."""
        return self.first_query is None

    def links(self) -> dict[str, Any]:
        """What the template of the links to other pages asks for."""
        return {"first_query": self.first_query, "next_query": self.next_query}


def newest_first(request: HttpRequest, found: QuerySet[Any], instant: str, *, size: int) -> Portion:
    """At most `size` rows behind the one that `before` in the address names by its key; what names none is the first page.

    `found` is ordered by the column `instant`, then by the key, both descending. Two statements, one on the first page.
    """
    last = _row(found, request.GET.get("before", ""))
    if last is not None:
        at = getattr(last, instant)
        found = found.filter(Q(**{f"{instant}__lt": at}) | Q(**{instant: at}, pk__lt=last.pk))
    rows = list(found[: size + 1])
    query = request.GET.copy()
    query.pop("before", None)
    following = query.copy()
    if len(rows) > size:
        following["before"] = str(rows[size - 1].pk)
    return Portion(
        rows[:size],
        None if last is None else query.urlencode(),
        following.urlencode() if len(rows) > size else None,
    )


def _row(found: QuerySet[Any], text: str) -> Model | None:
    """The row whose key this is, whatever the filter says of it now."""
    if not text:
        return None
    try:
        key = found.model._meta.pk.to_python(text)
    except ValidationError:
        return None
    if isinstance(key, int) and not 0 <= key <= _LARGEST_KEY:
        return None
    row: Model | None = found.model._default_manager.using(found.db).filter(pk=key).first()
    return row
