"""From a received row to the message in it."""

from __future__ import annotations

from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.envelope import IncomingMessage, complete_headers
from sqlqueue_app.messages.errors import PoisonMessage
from sqlqueue_app.messages.headers import Headers, read_headers
from sqlqueue_app.tables.rows import ReceivedRow


class NullBody(PoisonMessage):
    """The body column is NULL, which blocks a real endpoint for ever (transport reference 18)."""


def read_message(row: ReceivedRow) -> IncomingMessage:
    """The message of a row; PoisonMessage if its headers cannot be read or it has no body at all.

    A control message has none: transport 1.x writes NULL there, later ones no bytes (transport reference 2.2 and 6.6).
    """
    headers = read_headers(row.headers)
    if row.body is None and names.CONTROL_MESSAGE not in headers:
        raise NullBody("the column Body is NULL")
    return IncomingMessage(
        row_id=row.id,
        headers=headers,
        body=row.body or b"",
        correlation_id=row.correlation_id,
        reply_to=row.reply_to_address,
    )


def headers_of_copy(row: ReceivedRow, headers: Headers) -> Headers:
    """The headers for a copy of the row, with what only its columns or its id said."""
    return complete_headers(headers, message_id=str(row.id), correlation_id=row.correlation_id, reply_to=row.reply_to_address)
