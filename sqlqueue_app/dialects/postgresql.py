"""PostgreSQL: limits, value expressions, error codes (SQLSTATE), branch ids of two-phase commit, and timeouts for lost hosts."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from typing import Any, Final

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

DEFAULT_SCHEMA = "public"
# 65,535 parameters a statement; fewer rows parse faster and gain nothing more (measured flat from about 200 rows up).
ROWS_PER_SEND = 500

# Column values of a send; the time to be received is in milliseconds or NULL.
SEND_VALUES = {
    "Id": "CAST(:id AS uuid)",
    "Expires": "(clock_timestamp() AT TIME ZONE 'UTC') + CAST(:time_to_be_received_ms AS bigint) * interval '1 millisecond'",
    "Headers": ":headers",
    "Body": ":body",
}

# Column expressions for reading a whole table. Infinite times and BC dates do not fit other systems' timestamps; one day
# is left at both ends for time zones.
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

# Column values from a table of staged messages. The row id is the primary key and therefore new each time.
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
    "42501": PermissionDenied,
    "55P03": LockTimeout,
    "25P02": DoomedTransaction,
    "57P01": ConnectionLost,
    "57P02": ConnectionLost,
    "57P03": ConnectionLost,
    "57P05": ConnectionLost,
}
# libpq drops the SQLSTATE of a refused login, so this is the only error identified by its text. A text in another language, or
# one that is not listed, counts as a lost connection, which a worker waits for.
_REFUSED: Final = re.compile(
    r"database \".*\" does not exist|role \".*\" does not exist|password authentication failed for user|no password supplied"
    r"|no pg_hba\.conf entry for|permission denied for database|is not permitted to log in"
)


def error_kind(error: BaseException) -> type[DatabaseError] | None:
    """The kind of an error of psycopg (3 and 2) or ADBC by its SQLSTATE.

    An operational error without SQLSTATE comes from libpq: the connection is lost or the server does not answer.
    """
    names = {kind.__name__ for kind in type(error).__mro__}
    if "Error" not in names or not type(error).__module__.startswith(("psycopg", "adbc_driver_manager")):
        return None
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if state is None:
        if _REFUSED.search(str(error)):
            return CannotConnect
        return ConnectionLost if {"OperationalError", "InterfaceError"} & names else None
    if state in _KINDS:
        return _KINDS[state]
    if state.startswith("08"):
        return ConnectionLost
    if state.startswith("23"):
        return ConstraintViolation
    return None


# Other databases cannot prepare transactions, or only the preparing session can finish them.
CAN_PREPARE: Final = ("postgresql",)

_GID: Final = re.compile(r"sqlqueue-(?P<coordinator>[0-9a-f]{32})-(?P<transaction>[0-9a-f]{32})-(?P<number>[0-9]+)")


@dataclass(frozen=True, slots=True)
class BranchId:
    """The global transaction id of one branch. `str` is the text on the server, at most 90 of its 199 characters.

    `coordinator` is the database of the queues, whose log decides; `number` distinguishes branches of one transaction on the same
    server.
    """

    coordinator: uuid.UUID
    transaction: uuid.UUID
    number: int

    def __str__(self) -> str:
        return f"sqlqueue-{self.coordinator.hex}-{self.transaction.hex}-{self.number}"

    @property
    def literal(self) -> str:
        """The id as an SQL literal; it needs no escaping."""
        return f"'{self}'"

    @classmethod
    def parse(cls, gid: str) -> BranchId | None:
        """The branch of this text; None if another program prepared it."""
        if (match := _GID.fullmatch(gid)) is None:
            return None
        return cls(uuid.UUID(match["coordinator"]), uuid.UUID(match["transaction"]), int(match["number"]))


ADVISED_SECONDS: Final = 10
_KEEPALIVES: Final = ("keepalives_idle", "keepalives_interval", "keepalives_count")


def options_for(seconds: int = ADVISED_SECONDS) -> dict[str, Any]:
    """`OPTIONS` of a PostgreSQL alias by which both sides detect a lost peer after about this many seconds.

    The first probe goes out after half of that time. `options` sets the same on the server for these sessions.
    """
    idle = max(1, seconds // 2)
    interval, count = max(1, (seconds - idle) // 3), 3
    ours = {"keepalives_idle": idle, "keepalives_interval": interval, "keepalives_count": count, "tcp_user_timeout": seconds * 1000}
    server_settings = {f"tcp_{name}" if name in _KEEPALIVES else name: value for name, value in ours.items()}
    return {
        "connect_timeout": max(2, seconds // 2),
        **ours,
        "options": " ".join(f"-c {key}={value}" for key, value in server_settings.items()),
    }


def seconds_until_given_up(idle: int, interval: int, count: int, user_timeout_ms: int) -> float:
    """Seconds until a kernel with these settings closes an idle connection to a lost peer, at most.

    With a user timeout the number of probes does not matter: the first unanswered probe after it is the last (Linux).
    """
    if not user_timeout_ms:
        return idle + interval * count
    return max(idle, user_timeout_ms / 1000) + interval
