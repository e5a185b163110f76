"""SQL Server's errors, as its drivers raise them, by SQLSTATE and number."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest
from django.db.utils import ProgrammingError
from mssql_python import exceptions as mssql_python_errors

from sqlqueue_app.dialects.dialect import dialect
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
from sqlqueue_app.tables.connections import error_remedy

DRIVER = "[Microsoft][ODBC Driver 18 for SQL Server]"
SERVER = f"{DRIVER}[SQL Server]"
SQLSERVER = dialect("sqlserver")


def pyodbc_error(state: str, text: str) -> Exception:
    """An error like those of pyodbc: the SQLSTATE, then the texts of all diagnostics with their numbers, then the ODBC function."""
    # pyodbc itself needs a system library that most machines do not have
    kind: type[Exception] = type("ProgrammingError", (Exception,), {"__module__": "pyodbc"})
    return kind(state, f"[{state}] {text}")


PYODBC: list[tuple[str, str, type[DatabaseError] | None]] = [
    ("42S02", f"{SERVER}Invalid object name 'dbo.Sales'. (208) (SQLExecDirectW)", QueueNotFound),
    ("40001", f"{SERVER}Transaction (Process ID 52) was deadlocked ... (1205) (SQLExecDirectW)", Deadlock),
    ("42000", f"{SERVER}Lock request time out period exceeded. (1222) (SQLExecDirectW)", LockTimeout),
    ("42000", f"{SERVER}The current transaction cannot be committed ... (3930) (SQLExecDirectW)", DoomedTransaction),
    ("42000", f"{SERVER}Cannot roll back further. (3931) (SQLExecDirectW)", DoomedTransaction),
    ("42000", f"{SERVER}Snapshot isolation transaction aborted ... (3960) (SQLExecDirectW)", SerializationFailure),
    ("23000", f"{SERVER}Cannot insert the value NULL into column 'Headers' ... (515) (SQLExecDirectW)", ConstraintViolation),
    ("23000", f"{SERVER}Violation of PRIMARY KEY constraint ... (2627) (SQLExecDirectW)", ConstraintViolation),
    ("23000", f"{SERVER}Cannot insert duplicate key row ... (2601) (SQLExecDirectW)", ConstraintViolation),
    ("08S01", f"{DRIVER}TCP Provider: Error code 0x68 (104) (SQLExecDirectW)", ConnectionLost),
    ("08001", f"{DRIVER}TCP Provider: Error code 0x2749 (10057) (SQLDriverConnect)", ConnectionLost),
    ("HYT00", f"{DRIVER}Query timeout expired (0) (SQLExecDirectW)", LockTimeout),
    ("HYT00", f"{DRIVER}Login timeout expired (0) (SQLDriverConnect)", ConnectionLost),
    ("28000", f"{SERVER}Login failed for user 'shop'. (18456) (SQLDriverConnect)", CannotConnect),
    (
        "42000",
        f'{SERVER}Cannot open database "no" requested by the login. The login failed. (4060) (SQLDriverConnect)',
        CannotConnect,
    ),
    ("42000", f"{SERVER}The SELECT permission was denied on the object 'Sales'. (229) (SQLExecDirectW)", PermissionDenied),
    ("42000", f"{SERVER}CREATE TABLE permission denied in database 'shop'. (262) (SQLExecDirectW)", PermissionDenied),
    ("42000", f"{SERVER}Incorrect syntax near 'FROM'. (156) (SQLExecDirectW)", None),
    # several diagnostics; the first one is only a note
    (
        "42000",
        f"{SERVER}The statement has been terminated. (3621); [42000] {SERVER}Lock request time out. (1222) (SQLExecDirectW)",
        LockTimeout,
    ),
    # numbers in names and values are not error codes
    ("42000", f"{SERVER}Incorrect syntax near 'orders (1205) of (208)'. (102) (SQLExecDirectW)", None),
    ("42S02", f"{SERVER}Invalid object name 'a (1205) b'. (208) (SQLExecDirectW)", QueueNotFound),
]


@pytest.mark.parametrize(("state", "text", "kind"), PYODBC)
def test_pyodbc_error_has_its_kind(state: str, text: str, kind: type[DatabaseError] | None) -> None:
    assert SQLSERVER.error_kind(pyodbc_error(state, text)) is kind


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("42S02", QueueNotFound),
        ("40001", Deadlock),
        ("HYT00", LockTimeout),
        ("HYT01", ConnectionLost),
        ("08S01", ConnectionLost),
        ("08001", ConnectionLost),
        ("08003", ConnectionLost),
        ("23000", ConstraintViolation),
        ("28000", CannotConnect),
        ("08004", CannotConnect),
        ("42000", None),
        ("22001", None),
    ],
)
def test_mssql_python_error_has_its_kind(state: str, kind: type[DatabaseError] | None) -> None:
    """This driver keeps no SQLSTATE, so each state must still have its own exception class."""
    error: Any = mssql_python_errors.sqlstate_to_exception(state, f"{SERVER}whatever (1205) it says")
    assert SQLSERVER.error_kind(error) is kind


def test_missing_database_at_login_is_cannot_connect() -> None:
    text = f'{SERVER}Cannot open database "no" requested by the login. The login failed.'
    error: Any = mssql_python_errors.sqlstate_to_exception("42000", text)
    assert SQLSERVER.error_kind(error) is CannotConnect


@pytest.mark.parametrize("name", ["sqlserver", "postgresql", "sqlite"])
def test_cause_of_djangos_error_determines_the_kind(name: str) -> None:
    outer = ProgrammingError("in Django's words")
    outer.__cause__ = pyodbc_error("42S02", f"{SERVER}Invalid object name 'x'. (208) (SQLExecDirectW)")
    assert dialect(name).error_kind(outer) is (QueueNotFound if name == "sqlserver" else None)


def test_an_error_of_django_has_the_remedy_of_its_kind() -> None:
    outer = ProgrammingError("in Django's words")
    assert error_remedy(outer) == ""
    outer.__cause__ = pyodbc_error("42000", f"{SERVER}The SELECT permission was denied on the object 'x'. (229) (SQLExecDirectW)")
    assert error_remedy(outer) == PermissionDenied.remedy


@pytest.mark.parametrize("name", ["sqlserver", "postgresql", "sqlite"])
def test_other_errors_have_no_kind(name: str) -> None:
    for error in (ValueError("deadlock (1205)"), KeyError(1205), sqlite3.InterfaceError("no code")):
        assert dialect(name).error_kind(error) is None
