"""The tables of a lake and their columns: the one definition for the pipeline that writes them and the code that reads them.

A table is a directory: `<lake>/<table>/queue=<queue>/day=<day>/` for messages, `<lake>/<table>/day=<day>/` for computed tables.
`queue` and `day` exist only in the path, not in the files. Types are written as Spark DDL. Times are UTC with microseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_GROUPS: Final = "ARRAY<STRUCT<classifier: STRING, title: STRING, id: STRING>>"
_SKETCH: Final = "MAP<INT, BIGINT>"


@dataclass(frozen=True, slots=True)
class Column:
    """A column with its type as Spark DDL."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class LakeTable:
    """A table: the columns of its files, in order, and the partition columns of its path."""

    name: str
    columns: tuple[Column, ...]
    partitions: tuple[Column, ...]

    @property
    def ddl(self) -> str:
        """The file columns as Spark DDL."""
        return _ddl(self.columns)

    @property
    def full_ddl(self) -> str:
        """The file and partition columns as Spark DDL."""
        return _ddl(self.columns + self.partitions)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the file columns."""
        return tuple(each.name for each in self.columns)


def _ddl(columns: tuple[Column, ...]) -> str:
    return ", ".join(f"{each.name} {each.type}" for each in columns)


def _columns(text: str) -> tuple[Column, ...]:
    """Parse lines of the form `type: name, name`."""
    lines = (line.partition(": ") for line in text.strip().splitlines())
    return tuple(
        Column(name.strip(), _SHORT.get(kind.strip(), kind.strip())) for kind, _, names in lines for name in names.split(",")
    )


_SHORT: Final = {"SKETCH": _SKETCH, "GROUPS": _GROUPS}
_QUEUE: Final = Column("queue", "STRING")
_DAY: Final = Column("day", "DATE")

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

# Read from the headers. `counted_at` is the time at which rollups count the message, `day` its UTC day.
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
"""Handled messages, taken from audit queues."""

FAILURES: Final = LakeTable("failures", _ROW + _MESSAGE + _FAILURE + _TAKING, (_QUEUE, _DAY))
"""Copies of failed messages: one row each time a message arrives in an error queue."""

UNREADABLE: Final = LakeTable("unreadable", _ROW + _PROBLEM + _TAKING, (_QUEUE, _DAY))
"""Rows of either kind of queue whose headers cannot be parsed, unchanged."""


def _computed(name: str, columns: str) -> LakeTable:
    return LakeTable(name, _columns(columns), (_DAY,))


# Rollups: additive rows that each batch contributes.
MINUTES: Final = _computed(
    "minutes",
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
    """,
)
"""Throughput, failures and times per minute, endpoint and message type."""

GROUPS: Final = _computed(
    "groups",
    """
    STRING: group_id, classifier, title
    TIMESTAMP: at
    BIGINT: count
    TIMESTAMP: first_seen, last_seen
    """,
)
"""Failures per hour and failure group."""

EDGES: Final = _computed(
    "edges",
    """
    STRING: sender, receiver, message_type
    TIMESTAMP: at
    BIGINT: count, critical_count
    DOUBLE: critical_sum
    SKETCH: critical_sketch
    """,
)
"""Messages per hour, sender, receiver and message type, with their critical time."""

ENDPOINTS: Final = _computed(
    "endpoints",
    """
    STRING: endpoint, machine, host_id, host
    TIMESTAMP: first_seen, last_seen
    BIGINT: messages
    """,
)
"""Endpoint instances that handled messages on a day, successfully or not."""

QUEUES: Final = _computed(
    "queues",
    """
    STRING: queue
    BIGINT: taken, copied, expired, unreadable, bytes
    """,
)
"""Rows that the pipeline took or copied, per queue and day of the message."""

NOTABLE: Final = _computed(
    "notable",
    """
    STRING: kind
    INT: rank
    STRING: endpoint, message_type, message_id, conversation_id
    DOUBLE: value
    TIMESTAMP: at
    """,
)
"""The slowest and the largest messages per batch and day."""

USAGE: Final = _computed(
    "usage",
    """
    STRING: endpoint
    BIGINT: messages, failures, bytes
    """,
)
"""Messages that an endpoint handled on a day."""

FATES: Final = _computed(
    "fates",
    """
    STRING: queue
    BIGINT: row_version
    STRING: native_id, message_id, unique_message_id, fate
    TIMESTAMP: fate_at, copied_at
    STRING: batch
    """,
)
"""Outcomes of the copied failed messages."""

MESSAGE_TABLES: Final[Mapping[str, LakeTable]] = {each.name: each for each in (MESSAGES, FAILURES, UNREADABLE)}
ROLLUPS: Final[Mapping[str, LakeTable]] = {each.name: each for each in (MINUTES, GROUPS, EDGES, ENDPOINTS, QUEUES, NOTABLE, USAGE)}
TABLES: Final[Mapping[str, LakeTable]] = {**MESSAGE_TABLES, **ROLLUPS, FATES.name: FATES}

TOP_KINDS: Final = ("slowest", "largest")
TOP_N: Final = 20
"""Messages kept per kind and day."""
