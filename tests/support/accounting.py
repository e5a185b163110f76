"""Put rows of any shape into a queue and check that each is found again, once and complete."""

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
    """Insert the rows and return them as stored.

    No database stores lone surrogates; PostgreSQL stores no NUL and lacks the columns for the correlation id and reply-to address.
    """
    held = [as_held(row, bench.database.vendor) for row in rows]
    table = bench.table(queue)
    table.send([NewRow(str(row.row_id), row.headers, row.body or b"", row.correlation_id, row.reply_to) for row in held])
    null = [row.row_id for row in held if row.body is None]
    if null:
        # Only foreign senders write NULL.
        values = [each.hex if bench.database.vendor == "sqlite" else str(each) for each in null]
        with bench.database.connection.cursor() as cursor:
            cursor.execute(f"UPDATE {table.qualified} SET Body = NULL WHERE Id IN ({', '.join(['%s'] * len(values))})", values)
    return held


def as_held(row: Shape, vendor: str) -> Shape:
    """The row as the database can store it."""

    def held(text: str | None) -> str | None:
        if text is None:
            return None
        text = text.encode("utf-8", "replace").decode()
        return text.replace("\0", "?") if vendor == "postgresql" else text

    columns = (None, None) if vendor == "postgresql" else (held(row.correlation_id), held(row.reply_to))
    return Shape(row.row_id, held(row.headers) or "", row.body, *columns)


@dataclass(frozen=True)
class Found:
    """A row after processing: its queue, header text and body."""

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
        """Whether a handler sent it, or it is the acknowledgement of a retry."""
        return MADE in self.headers or (names.RETRY_SUCCESSFUL in self.headers and names.MESSAGE_ID not in self.headers)


def found_in(bench: Bench, *queues: str) -> list[Found]:
    """The rows that the worker left in the queues, without those that handlers sent."""
    found = [Found(queue, row.headers or "", row.body or b"") for queue in queues for row in bench.rows(queue)]
    return [each for each in found if not each.is_ours]


def account(rows: Iterable[Shape], found: list[Found]) -> None:
    """Assert that each row was found exactly once: a poison row byte for byte, others with their body and all their headers."""
    # A row with few headers matches many. So match the most specific rows first, and try the shortest candidates first.
    left = sorted(found, key=lambda each: len(each.text))
    for row in sorted(rows, key=_length_of_headers, reverse=True):
        place = next((place for place, each in enumerate(left) if _is_of(each, row)), None)
        assert place is not None, f"lost: {row!r}\nleft: {left!r}"
        del left[place]
    assert left == [], f"unexpected rows: {left!r}"


def _length_of_headers(row: Shape) -> int:
    """The length of all headers, to sort rows: a row with additional headers comes after one without."""
    if row.is_poison:
        return len(row.headers)
    all_headers = read_headers(row.headers) if row.headers != "null" else {}
    return sum(len(name) + len(value or "") + 1 for name, value in all_headers.items() if name not in _MAY_CHANGE)


def _is_of(each: Found, row: Shape) -> bool:
    if each.body != (row.body or b""):
        return False
    if row.is_poison:
        return each.queue == "error" and each.text == row.headers
    if each.text == row.headers:
        # A satellite moves rows unchanged, so the row id remains the message id.
        return True
    all_headers = read_headers(row.headers) if row.headers != "null" else {}
    headers = each.headers
    message_id = all_headers.get(names.MESSAGE_ID) or (str(row.row_id) if row.has_id else headers.get(names.MESSAGE_ID))
    if message_id != headers.get(names.MESSAGE_ID) or (not headers and each.text not in ("", "{}")):
        return False
    return all(headers.get(name) == value for name, value in all_headers.items() if name not in _MAY_CHANGE)


_MAY_CHANGE: Final = frozenset(
    {
        names.MESSAGE_ID,
        # Dropped in the error queue, and the destination of a forwarded message.
        names.DELAYED_RETRIES,
        names.IMMEDIATE_RETRIES,
        names.RATE_RESERVATION,
        names.FORWARD_DESTINATION,
        # Headers of a finished delay.
        names.TIMEOUT_EXPIRE,
        names.TIMEOUT_ROUTE_TO,
        names.TIMEOUT_REPLY_TO_ADDRESS,
        names.DELAYED_RETRIES_TIMESTAMP,
        # Written on failure or for the audit copy.
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
        names.HANDLER_START_TIME,
        names.RETRY_ACKNOWLEDGEMENT_SENT,
        # Taken from the columns if the headers lack them.
        names.REPLY_TO_ADDRESS,
        names.CORRELATION_ID,
    }
)
