"""Rows of any shape are put into a queue, and each is found again: once, whole."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.errors import PoisonMessage
from sqlqueue_app.messages.headers import read_headers
from sqlqueue_app.tables.rows import NewRow
from tests.support.bench import Bench
from tests.support.shapes import MADE, Shape


def put(bench: Bench, rows: Iterable[Shape], queue: str = "Sales") -> list[Shape]:
    """The rows as they are in the queue then: no database holds half of a surrogate pair, PostgreSQL no NUL and no such columns."""
    held = [as_held(row, bench.database.vendor) for row in rows]
    table = bench.table(queue)
    table.send([NewRow(str(row.row_id), row.headers, row.body or b"", row.correlation_id, row.reply_to) for row in held])
    null = [row.row_id for row in held if row.body is None]
    if null:
        # Foreign senders alone write that.
        values = [each.hex if bench.database.vendor == "sqlite" else str(each) for each in null]
        with bench.database.connection.cursor() as cursor:
            cursor.execute(f"UPDATE {table.qualified} SET Body = NULL WHERE Id IN ({', '.join(['%s'] * len(values))})", values)
    return held


def as_held(row: Shape, vendor: str) -> Shape:
    """The row as the database can hold it."""

    def held(text: str | None) -> str | None:
        if text is None:
            return None
        text = text.encode("utf-8", "replace").decode()
        return text.replace("\0", "?") if vendor == "postgresql" else text

    columns = (None, None) if vendor == "postgresql" else (held(row.correlation_id), held(row.reply_to))
    return Shape(row.row_id, held(row.headers) or "", row.body, *columns)


@dataclass(frozen=True)
class Found:
    """A row as it came out: where, with which headers, with which body."""

    queue: str
    text: str
    body: bytes

    @property
    def headers(self) -> dict[str, Any]:
        try:
            return dict(read_headers(self.text))
        except PoisonMessage:
            return {}

    @property
    def is_ours(self) -> bool:
        """Whether a handler, or the acknowledgement of a retry, made it."""
        return MADE in self.headers or (names.RETRY_SUCCESSFUL in self.headers and names.MESSAGE_ID not in self.headers)


def found_in(bench: Bench, *queues: str) -> list[Found]:
    """What the worker left in the queues, without what handlers sent."""
    found = [Found(queue, row.headers or "", row.body or b"") for queue in queues for row in bench.rows(queue)]
    return [each for each in found if not each.is_ours]


def account(rows: Iterable[Shape], found: list[Found]) -> None:
    """Each row was found exactly once, whole: a poison row to the byte, another one with its body and every header of its own."""
    # A row that says little could be taken for many: those that say more are looked for first, among those that say the least.
    left = sorted(found, key=lambda each: len(each.text))
    for row in sorted(rows, key=_says, reverse=True):
        place = next((place for place, each in enumerate(left) if _is_of(each, row)), None)
        assert place is not None, f"lost: {row!r}\nleft: {left!r}"
        del left[place]
    assert left == [], f"nobody has put these in: {left!r}"


def _says(row: Shape) -> int:
    """How much of a row can be told from others: a row that says all that another says, and more, says more."""
    if row.is_poison:
        return len(row.headers)
    told = read_headers(row.headers) if row.headers != "null" else {}
    return sum(len(name) + len(value or "") + 1 for name, value in told.items() if name not in _MAY_CHANGE)


def _is_of(each: Found, row: Shape) -> bool:
    if each.body != (row.body or b""):
        return False
    if row.is_poison:
        return each.queue == "error" and each.text == row.headers
    if each.text == row.headers:
        # A satellite moves rows as they are, and the id of the row stays that of the message.
        return True
    told = read_headers(row.headers) if row.headers != "null" else {}
    headers = each.headers
    message_id = told.get(names.MESSAGE_ID) or (str(row.row_id) if row.has_id else headers.get(names.MESSAGE_ID))
    if message_id != headers.get(names.MESSAGE_ID) or (not headers and each.text not in ("", "{}")):
        return False
    return all(headers.get(name) == value for name, value in told.items() if name not in _MAY_CHANGE)


_MAY_CHANGE: Final = frozenset(
    {
        names.MESSAGE_ID,
        # Dropped in the error queue, and where a message was on its way to.
        names.DELAYED_RETRIES,
        names.IMMEDIATE_RETRIES,
        names.FORWARD_DESTINATION,
        # Of a delay that is over.
        names.TIMEOUT_EXPIRE,
        names.TIMEOUT_ROUTE_TO,
        names.TIMEOUT_REPLY_TO_ADDRESS,
        names.DELAYED_RETRIES_TIMESTAMP,
        # Written by the failure, or by the audit copy.
        names.FAILED_QUEUE,
        names.TIME_OF_FAILURE,
        names.PROCESSING_MACHINE,
        names.PROCESSING_ENDPOINT,
        names.PROCESSING_STARTED,
        names.PROCESSING_ENDED,
        names.HOST_ID,
        names.HOST_DISPLAY_NAME,
        names.EXCEPTION_TYPE,
        names.EXCEPTION_INNER_TYPE,
        names.EXCEPTION_MESSAGE,
        names.EXCEPTION_SOURCE,
        names.EXCEPTION_STACK_TRACE,
        names.RETRY_ACKNOWLEDGEMENT_SENT,
        # Said by the columns where the headers are silent.
        names.REPLY_TO_ADDRESS,
        names.CORRELATION_ID,
    }
)
