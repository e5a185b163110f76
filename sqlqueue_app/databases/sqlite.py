"""SQLite: limits, value expressions and error codes (the low byte of `sqlite_errorcode`)."""

from __future__ import annotations

import sqlite3

from sqlqueue_app.messages.errors import ConnectionLost, ConstraintViolation, DatabaseError, LockTimeout

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

# SQLite has no code for a missing table (its 1 is any error of a statement): the queue table asks the database itself then.
_KINDS: dict[int, type[DatabaseError]] = {
    sqlite3.SQLITE_BUSY: LockTimeout,
    sqlite3.SQLITE_LOCKED: LockTimeout,
    sqlite3.SQLITE_CONSTRAINT: ConstraintViolation,
    sqlite3.SQLITE_CANTOPEN: ConnectionLost,
    sqlite3.SQLITE_IOERR: ConnectionLost,
}


def error_kind(error: BaseException) -> type[DatabaseError] | None:
    """The kind of a sqlite3 error by its code."""
    code = getattr(error, "sqlite_errorcode", None)
    if not isinstance(error, sqlite3.Error) or code is None:
        return None
    return _KINDS.get(code & 0xFF)
