"""SQLite: limits, value expressions and error codes (the low byte of `sqlite_errorcode`)."""

from __future__ import annotations

import sqlite3

from sqlqueue_app.messages.errors import CannotConnect, ConnectionLost, ConstraintViolation, DatabaseError, LockTimeout

DEFAULT_SCHEMA = None
# 32,766 parameters a statement since SQLite 3.32, but Django's own limit for older builds is 999: 6 values a row.
ROWS_PER_SEND = 160

SEND_VALUES = {
    "Id": ":id",
    "CorrelationId": ":correlation_id",
    "ReplyToAddress": ":reply_to_address",
    "Recoverable": "1",
    "Expires": "strftime('%Y-%m-%d %H:%M:%f', 'now', (CAST(:time_to_be_received_ms AS INTEGER) / 1000.0) || ' seconds')",
    "Headers": ":headers",
    "Body": ":body",
}

# Column expressions for reading a whole table. As BLOB, because text that is not UTF-8 cannot be fetched. The id has dashes, as
# on the other databases.
READ_VALUES = {
    "RowVersion": "RowVersion",
    "Id": (
        "CAST(CASE WHEN length(Id) = 32 AND Id NOT GLOB '*[^0-9A-Fa-f]*' THEN lower(substr(Id, 1, 8) || '-' || substr(Id, 9, 4)"
        " || '-' || substr(Id, 13, 4) || '-' || substr(Id, 17, 4) || '-' || substr(Id, 21)) ELSE Id END AS blob)"
    ),
    "CorrelationId": "CAST(CorrelationId AS blob)",
    "ReplyToAddress": "CAST(ReplyToAddress AS blob)",
    "Expires": "CAST(Expires AS blob)",
    "Headers": "CAST(Headers AS blob)",
    "Body": "CAST(Body AS blob)",
}
# Text in another format is not a time for SQLite, but may be one for other readers, so it is kept.
_ODD = (
    " OR Expires NOT GLOB '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9] [0-9][0-9]:[0-9][0-9]:[0-9][0-9]*'"
    " OR substr(Expires, 20) GLOB '*[^0-9.]*')"
)
EXPIRES_BETWEEN = {"from": "(Expires >= '{}'" + _ODD, "before": "(Expires < '{}'" + _ODD}

# Column values from a table of staged messages; an id that is not a GUID is only in the headers.
STAGED_VALUES = {
    "Id": (
        "CASE WHEN length(replace(id, '-', '')) = 32 AND replace(id, '-', '') NOT GLOB '*[^0-9A-Fa-f]*'"
        " THEN lower(replace(id, '-', '')) ELSE lower(hex(randomblob(16))) END"
    ),
    "CorrelationId": "CASE WHEN length(correlation_id) <= 255 THEN correlation_id END",
    "ReplyToAddress": "CASE WHEN length(reply_to_address) <= 255 THEN reply_to_address END",
    "Recoverable": "1",
    "Expires": "strftime('%Y-%m-%d %H:%M:%f', 'now', (time_to_be_received_ms / 1000.0) || ' seconds')",
    "Headers": "headers",
    "Body": "body",
}

# SQLite has no code for a missing table (1 is any error in a statement): the queue table checks for it.
_KINDS: dict[int, type[DatabaseError]] = {
    sqlite3.SQLITE_BUSY: LockTimeout,
    sqlite3.SQLITE_LOCKED: LockTimeout,
    sqlite3.SQLITE_CONSTRAINT: ConstraintViolation,
    sqlite3.SQLITE_CANTOPEN: CannotConnect,
    sqlite3.SQLITE_NOTADB: CannotConnect,
    sqlite3.SQLITE_IOERR: ConnectionLost,
    sqlite3.SQLITE_READONLY: CannotConnect,
}


def error_kind(error: BaseException) -> type[DatabaseError] | None:
    """The kind of a sqlite3 error by its code."""
    code = getattr(error, "sqlite_errorcode", None)
    if not isinstance(error, sqlite3.Error) or code is None:
        return None
    return _KINDS.get(code & 0xFF)
