"""The tables of a lake and their columns, once for all who write and read them.

A table is a directory, `<lake>/<table>/queue=<queue>/day=<day>/` for those of messages and `<lake>/<table>/day=<day>/` for those
that are computed. `queue` and `day` stand in the path alone, not in the files. Types are texts as Spark's DDL has them; `duckdb` is
the same type as DuckDB has it. Instants are in UTC, with microseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_GROUPS: Final = "ARRAY<STRUCT<classifier: STRING, title: STRING, id: STRING>>"
_SKETCH: Final = "MAP<INT, BIGINT>"

_DUCKDB: Final[Mapping[str, str]] = {
    "STRING": "VARCHAR",
    "BINARY": "BLOB",
    "INT": "INTEGER",
    "TIMESTAMP": "TIMESTAMP WITH TIME ZONE",
    _GROUPS: "STRUCT(classifier VARCHAR, title VARCHAR, id VARCHAR)[]",
    _SKETCH: "MAP(INTEGER, BIGINT)",
}


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name, and its type in the DDL of Spark."""

    name: str
    type: str

    @property
    def duckdb(self) -> str:
        """Its type as DuckDB has it."""
        return _DUCKDB.get(self.type, self.type)


@dataclass(frozen=True, slots=True)
class LakeTable:
    """A table of the lake: the columns of its files in their order, and those of its path."""

    name: str
    columns: tuple[Column, ...]
    partitions: tuple[Column, ...]

    @property
    def ddl(self) -> str:
        """The columns of its files as Spark's DDL."""
        return _ddl(self.columns)

    @property
    def whole_ddl(self) -> str:
        """The columns of its files and of its path as Spark's DDL."""
        return _ddl(self.columns + self.partitions)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns of its files."""
        return tuple(each.name for each in self.columns)


def _ddl(columns: tuple[Column, ...]) -> str:
    return ", ".join(f"{each.name} {each.type}" for each in columns)


def _columns(text: str) -> tuple[Column, ...]:
    """Of lines `type: name, name`."""
    lines = (line.partition(": ") for line in text.strip().splitlines())
    return tuple(
        Column(name.strip(), _SHORT.get(kind.strip(), kind.strip())) for kind, _, names in lines for name in names.split(",")
    )


_SHORT: Final = {"SKETCH": _SKETCH, "GROUPS": _GROUPS}
_QUEUE: Final = Column("queue", "STRING")
_DAY: Final = Column("day", "DATE")

# --- messages -----------------------------------------------------------------------------------------------------------------

_ROW: Final = _columns(
    """
    BIGINT: row_version
    STRING: native_id
    TIMESTAMP: expires
    STRING: headers
    BINARY: body
    INT: body_bytes, header_bytes
    """
)

# What a message is, by its headers; `counted_at` is the instant at which the figures count it, `day` its day in UTC.
_MESSAGE: Final = _columns(
    """
    STRING: message_id, conversation_id, correlation_id, related_to
    STRING: message_type, enclosed_types, intent
    STRING: sending_endpoint, sending_machine, endpoint, machine, host_id, host
    TIMESTAMP: sent_at, due_at, started_at, ended_at, counted_at
    DOUBLE: processing_seconds, critical_seconds
    INT: delayed_retries
    BOOLEAN: is_retried, is_expired
    """
)

_FAILURE: Final = _columns(
    """
    TIMESTAMP: failed_at
    STRING: failed_queue, exception_type, exception_message, unique_message_id
    GROUPS: groups
    """
)

_TAKING: Final = _columns(
    """
    TIMESTAMP: taken_at
    STRING: batch
    """
)

_PROBLEM: Final = _columns("STRING: problem")

MESSAGES: Final = LakeTable("messages", _ROW + _MESSAGE + _TAKING, (_QUEUE, _DAY))
"""Messages that were handled: what was in an audit queue."""

FAILURES: Final = LakeTable("failures", _ROW + _MESSAGE + _FAILURE + _TAKING, (_QUEUE, _DAY))
"""Copies of what was in an error queue, each time that it came there."""

UNREADABLE: Final = LakeTable("unreadable", _ROW + _PROBLEM + _TAKING, (_QUEUE, _DAY))
"""Rows of either whose headers cannot be read, as they were."""

# --- figures: the rows of each batch, which add up ------------------------------------------------------------------------------

MINUTES: Final = LakeTable(
    "minutes",
    _columns(
        """
        STRING: endpoint, message_type
        TIMESTAMP: at
        BIGINT: processed, failed, retried, delayed_retries
        BIGINT: processing_count
        DOUBLE: processing_sum
        SKETCH: processing_sketch
        BIGINT: critical_count
        DOUBLE: critical_sum
        BIGINT: critical_negative
        SKETCH: critical_sketch
        BIGINT: body_bytes
        """
    ),
    (_DAY,),
)
"""What was done in a minute, by endpoint and message type."""

GROUPS: Final = LakeTable(
    "groups",
    _columns(
        """
        STRING: group_id, classifier, title
        TIMESTAMP: at
        BIGINT: count
        TIMESTAMP: first_seen, last_seen
        """
    ),
    (_DAY,),
)
"""How many failures of a group there were in an hour."""

EDGES: Final = LakeTable(
    "edges",
    _columns(
        """
        STRING: sender, receiver, message_type
        TIMESTAMP: at
        BIGINT: count, critical_count
        DOUBLE: critical_sum
        SKETCH: critical_sketch
        """
    ),
    (_DAY,),
)
"""Who has sent what to whom in an hour, how often, and how long it took."""

ENDPOINTS: Final = LakeTable(
    "endpoints",
    _columns(
        """
        STRING: endpoint, machine, host_id, host
        TIMESTAMP: first_seen, last_seen
        BIGINT: messages
        """
    ),
    (_DAY,),
)
"""Which instances of endpoints have handled messages, successfully or not, on a day."""

QUEUES: Final = LakeTable(
    "queues",
    _columns(
        """
        STRING: queue
        BIGINT: taken, copied, expired, unreadable, bytes
        """
    ),
    (_DAY,),
)
"""How many rows of a queue the pipeline has taken or copied, by their day."""

NOTABLE: Final = LakeTable(
    "notable",
    _columns(
        """
        STRING: kind
        INT: rank
        STRING: endpoint, message_type, message_id, conversation_id
        DOUBLE: value
        TIMESTAMP: at
        """
    ),
    (_DAY,),
)
"""The slowest and the largest messages of a day in a batch."""

USAGE: Final = LakeTable(
    "usage",
    _columns(
        """
        STRING: endpoint
        BIGINT: messages, failures, bytes
        """
    ),
    (_DAY,),
)
"""What an endpoint has handled on a day."""

FATES: Final = LakeTable(
    "fates",
    _columns(
        """
        STRING: queue
        BIGINT: row_version
        STRING: native_id, message_id, unique_message_id, fate
        TIMESTAMP: fate_at, copied_at
        STRING: batch
        """
    ),
    (_DAY,),
)
"""What has become of copies of the error queue."""

MESSAGE_TABLES: Final[Mapping[str, LakeTable]] = {each.name: each for each in (MESSAGES, FAILURES, UNREADABLE)}
FIGURES: Final[Mapping[str, LakeTable]] = {each.name: each for each in (MINUTES, GROUPS, EDGES, ENDPOINTS, QUEUES, NOTABLE, USAGE)}
TABLES: Final[Mapping[str, LakeTable]] = {**MESSAGE_TABLES, **FIGURES, FATES.name: FATES}

NOTABLE_KINDS: Final = ("slowest", "largest")
NOTABLE_ROWS: Final = 20
"""How many messages of each kind are kept of a day."""
