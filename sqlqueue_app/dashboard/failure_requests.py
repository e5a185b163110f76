"""What a query string asks of a list of failures: which, from where on, how many."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final
from urllib.parse import urlencode

from django.http import QueryDict

from sqlqueue_app.models import FailureStatus
from sqlqueue_app.operations.failure_lists import PAGE_SIZES, Key
from sqlqueue_app.operations.failure_query import LONGEST, read_query, write_query
from sqlqueue_app.operations.failure_selection import FailureSelection

# The parameter of the query bar; without it the parts of a selection stand in the address.
BAR: Final = "q"
# More than the query bar reads, so that it says that this is too long.
LONGEST_BAR: Final = 2 * LONGEST


@dataclass(frozen=True, slots=True)
class ListRequest:
    """A selection and a page of it. `text` stands in the query bar, `query` is the part of the address that says the selection."""

    selection: FailureSelection
    text: str
    query: str
    after: Key | None
    size: int

    @classmethod
    def read(cls, query: QueryDict, now: datetime, *statuses: FailureStatus, fixed: bool = False) -> ListRequest:
        """From a query string, whatever stands in it. `statuses` where it says none, or with `fixed` whatever it says."""
        text = query.get(BAR, "").strip()
        said = read_query(text, now) if BAR in query else FailureSelection.from_query(query)
        selection = replace(said, statuses=statuses) if fixed else said.or_statuses(*statuses)
        text = text[:LONGEST_BAR] if BAR in query else write_query(said)
        address = urlencode({BAR: text}) if BAR in query else said.to_query()
        return cls(selection, text, address, _after(query), _size(query))

    @classmethod
    def of(cls, selection: FailureSelection, query: QueryDict, *statuses: FailureStatus) -> ListRequest:
        """A page of a selection that the address of the page says itself."""
        return cls(selection.or_statuses(*statuses), write_query(selection), "", _after(query), _size(query))

    def address(self, **more: object) -> str:
        """The query string of the list with further parameters."""
        return "?" + "&".join(filter(None, (self.query, urlencode({name: str(value) for name, value in more.items() if value}))))


def _after(query: QueryDict) -> Key | None:
    return Key.read(query.get("after", ""))


def _size(query: QueryDict) -> int:
    size = query.get("size", "")
    return next((each for each in PAGE_SIZES if size == str(each)), PAGE_SIZES[0])
