"""PostgreSQL: limits, value expressions and error codes (SQLSTATE)."""

from __future__ import annotations

from sqlqueue_app.messages.errors import (
    ConnectionLost,
    ConstraintViolation,
    DatabaseError,
    Deadlock,
    DoomedTransaction,
    LockTimeout,
    QueueNotFound,
    SerializationFailure,
)

DEFAULT_SCHEMA = "public"
# 65,535 parameters a statement; fewer rows parse faster and gain nothing more (measured flat from about 200 rows up).
ROWS_PER_SEND = 500

# The value of each column of a send; the time to be received is an integer of milliseconds or NULL.
SEND_VALUES = {
    "Id": "CAST(:id AS uuid)",
    "Expires": "(clock_timestamp() AT TIME ZONE 'UTC') + CAST(:time_to_be_received_ms AS bigint) * interval '1 millisecond'",
    "Headers": ":headers",
    "Body": ":body",
}

# What a whole table is read by, column by column. Infinite times and those of other eras have no place in a timestamp of others; a
# day is left at both ends for time zones.
READ_VALUES = {
    "RowVersion": "seq",
    "Id": "CAST(id AS text)",
    "Expires": (
        "CASE WHEN expires < TIMESTAMP '0001-01-02' THEN TIMESTAMP '0001-01-02'"
        " WHEN expires > TIMESTAMP '9999-12-30' THEN TIMESTAMP '9999-12-30' ELSE expires END"
    ),
    "Headers": "headers",
    "Body": "body",
}
EXPIRES_BETWEEN = {"from": "expires >= TIMESTAMP '{}'", "before": "expires < TIMESTAMP '{}'"}

# What comes from a table of staged messages. The row id is the primary key, so it is a new one each time.
STAGED_VALUES = {
    "Id": "gen_random_uuid()",
    "Expires": "(clock_timestamp() AT TIME ZONE 'UTC') + time_to_be_received_ms * interval '1 millisecond'",
    "Headers": "headers",
    "Body": "body",
}

_KINDS: dict[str, type[DatabaseError]] = {
    "42P01": QueueNotFound,
    "3F000": QueueNotFound,
    "40P01": Deadlock,
    "40001": SerializationFailure,
    "55P03": LockTimeout,
    "25P02": DoomedTransaction,
    "57P01": ConnectionLost,
    "57P02": ConnectionLost,
    "57P03": ConnectionLost,
    "57P05": ConnectionLost,
}


def error_kind(error: BaseException) -> type[DatabaseError] | None:
    """The kind of an error of psycopg (3 and 2) or ADBC by its SQLSTATE.

    An operational error that the server did not send has no SQLSTATE: libpq makes those when the line is cut or nobody answers.
    """
    names = {kind.__name__ for kind in type(error).__mro__}
    if "Error" not in names or not type(error).__module__.startswith(("psycopg", "adbc_driver_manager")):
        return None
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if state is None:
        return ConnectionLost if {"OperationalError", "InterfaceError"} & names else None
    if state in _KINDS:
        return _KINDS[state]
    if state.startswith("08"):
        return ConnectionLost
    if state.startswith("23"):
        return ConstraintViolation
    return None
