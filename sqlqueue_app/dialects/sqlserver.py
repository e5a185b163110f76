"""SQL Server: limits, value expressions and error codes (SQLSTATE and the server's error number)."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from sqlqueue_app.messages.errors import (
    CannotConnect,
    ConnectionLost,
    ConstraintViolation,
    DatabaseError,
    Deadlock,
    DoomedTransaction,
    LockTimeout,
    PermissionDenied,
    QueueNotFound,
    SerializationFailure,
)

DEFAULT_SCHEMA = "dbo"
# The hints of a query that only reads.
SKIP_LOCKED = " WITH (READPAST, READCOMMITTEDLOCK)"
# 2,100 parameters a statement, two of them the driver's own, and 6 values a row; and 1,000 rows a VALUES list.
ROWS_PER_SEND = 349

# The types of the values of a row that is written, as ODBC takes them: type, size (0: max), digits. Without them the driver asks
# the server for the type of each NULL, and each length of a text creates another plan.
_VARCHAR, _NVARCHAR, _VARBINARY, _INT, _BIGINT = 12, -9, -3, 4, -5
_INPUT_SIZES: dict[str, tuple[int, int, int]] = {
    "id": (_VARCHAR, 36, 0),
    "correlation_id": (_VARCHAR, 255, 0),
    "reply_to_address": (_VARCHAR, 255, 0),
    "time_to_be_received_ms": (_INT, 0, 0),
    "headers": (_NVARCHAR, 0, 0),
    "body": (_VARBINARY, 0, 0),
    "delay_ms": (_BIGINT, 0, 0),
    "due": (_VARCHAR, 30, 0),
}


def input_sizes(names: Sequence[str]) -> Sequence[tuple[int, int, int]]:
    """The types of these values in order; none unless all of them are known."""
    try:
        return [_INPUT_SIZES[name] for name in names]
    except KeyError:
        return ()


_MARS = re.compile(r"(?:^|;)\s*mars_connection\s*=\s*\{?(\w+)", re.IGNORECASE)


def has_mars(options: Mapping[str, Any]) -> bool:
    """Whether connections with these OPTIONS have multiple active result sets, so that a transaction ends with its batch.

    The server rolls it back there (error 3997). mssql-django enables them for pyodbc on Windows unless `extra_params` sets them.
    """
    if match := _MARS.search(options.get("extra_params") or ""):
        return match[1].lower() == "yes"
    return sys.platform == "win32" and options.get("python_driver") != "mssql_python"


SEND_VALUES = {
    "Id": "CAST(:id AS uniqueidentifier)",
    "CorrelationId": ":correlation_id",
    "ReplyToAddress": ":reply_to_address",
    "Recoverable": "1",
    "Expires": "DATEADD(ms, CAST(:time_to_be_received_ms AS int), GETUTCDATE())",
    "Headers": ":headers",
    "Body": "CAST(:body AS varbinary(max))",
}

_AS_VARCHAR = (
    "CASE WHEN LEN({0}) <= 255 AND {0} COLLATE Latin1_General_BIN2 NOT LIKE N'%[^ -~]%' COLLATE Latin1_General_BIN2"
    " THEN CAST({0} AS varchar(255)) END"
)
# Column expressions for reading a whole table; `varchar` is converted to Unicode.
READ_VALUES = {
    "RowVersion": "RowVersion",
    "Id": "LOWER(CONVERT(nvarchar(36), Id))",
    "CorrelationId": "CAST(CorrelationId AS nvarchar(255))",
    "ReplyToAddress": "CAST(ReplyToAddress AS nvarchar(255))",
    "Expires": "CAST(Expires AS datetime2(3))",
    "Headers": "CAST(Headers AS nvarchar(max))",
    "Body": "CAST(Body AS varbinary(max))",
}
EXPIRES_BETWEEN = {"from": "Expires >= CONVERT(datetime2, '{}', 120)", "before": "Expires < CONVERT(datetime2, '{}', 120)"}

# Column values from a table of staged messages; values that are no GUID or no varchar are only in the headers.
STAGED_VALUES = {
    "Id": "COALESCE(TRY_CONVERT(uniqueidentifier, id), NEWID())",
    "CorrelationId": _AS_VARCHAR.format("correlation_id"),
    "ReplyToAddress": _AS_VARCHAR.format("reply_to_address"),
    "Recoverable": "1",
    "Expires": "DATEADD(ms, CAST(time_to_be_received_ms AS int), GETUTCDATE())",
    "Headers": "headers",
    "Body": "body",
}

# Error numbers are more specific than SQLSTATE (1222 and 3930 share 42000 with every syntax error).
_NUMBERS: dict[int, type[DatabaseError]] = {
    208: QueueNotFound,
    2760: QueueNotFound,  # the schema, when a table is created
    # The database of an address does not exist, is offline or being restored, or is closed to this login.
    911: QueueNotFound,
    916: QueueNotFound,
    927: QueueNotFound,
    942: QueueNotFound,
    229: PermissionDenied,
    230: PermissionDenied,
    262: PermissionDenied,
    1205: Deadlock,
    1222: LockTimeout,
    3930: DoomedTransaction,
    3931: DoomedTransaction,
    3960: SerializationFailure,
    515: ConstraintViolation,
    2601: ConstraintViolation,
    2627: ConstraintViolation,
    547: ConstraintViolation,
}
_STATES: dict[str, type[DatabaseError]] = {
    "28000": CannotConnect,
    "08004": CannotConnect,
    "42S02": QueueNotFound,
    "40001": Deadlock,
    "HYT00": LockTimeout,
    "HYT01": ConnectionLost,
    "08S01": ConnectionLost,
    "08001": ConnectionLost,
    "08003": ConnectionLost,
    "08007": ConnectionLost,
    "01002": ConnectionLost,
    "23000": ConstraintViolation,
}
# ODBC drivers end each of the server's messages with its number, "... (208) (SQLExecDirectW)" or "... (208); [42000] ...": a
# number elsewhere is part of a name or value.
_NUMBER = re.compile(r"\((\d{1,6})\)(?= \(SQL\w+\)|; \[|\Z)")
# The English text of error 4060, whose SQLSTATE depends on the kind of login: 28000, or 42000 as for any statement.
_NO_DATABASE = "requested by the login. The login failed"


def error_kind(error: BaseException) -> type[DatabaseError] | None:
    """The kind of an error of pyodbc (SQLSTATE first in its arguments) or mssql-python (one name per SQLSTATE)."""
    module = type(error).__module__.partition(".")[0]
    if module == "pyodbc":
        return _pyodbc_kind(error)
    if module == "mssql_python":
        if _NO_DATABASE in str(error):
            return CannotConnect
        known = _states_by_name(type(error).__module__).get(str(getattr(error, "driver_error", "")))
        return _NUMBERS.get(getattr(error, "sqlserver_number", 0), known)
    return None


def lacks_number(error: BaseException) -> bool:
    """Whether the SQLSTATE of an mssql-python error is ambiguous: the driver drops the server's number."""
    is_mssql_python = type(error).__module__.partition(".")[0] == "mssql_python"
    # A statement can fail with the state of a login, too: error 911, for a database that does not exist.
    return is_mssql_python and not hasattr(error, "sqlserver_number") and error_kind(error) in (None, CannotConnect)


def _pyodbc_kind(error: BaseException) -> type[DatabaseError] | None:
    state = str(error.args[0]) if error.args else ""
    text = str(error.args[1]) if len(error.args) > 1 else ""
    if "(SQLDriverConnect)" in text:
        # The numbers are those of statements; a login that times out has the state of a statement that times out.
        return ConnectionLost if state == "HYT00" else CannotConnect if _NO_DATABASE in text else _STATES.get(state)
    for number in _NUMBER.findall(text):
        if int(number) in _NUMBERS:
            return _NUMBERS[int(number)]
    return _STATES.get(state)


@cache
def _states_by_name(module: str) -> dict[str, type[DatabaseError]]:
    """mssql-python errors have no SQLSTATE but one fixed name for each: get those names from the driver."""
    name_of = sys.modules[module].sqlstate_to_exception
    return {name_of(state, "").driver_error: kind for state, kind in _STATES.items()}
