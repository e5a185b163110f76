"""What the commands about queues share: the argument that names a queue, and text that is safe on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta

from django.core.management.base import CommandParser

from sqlqueue_app.conf import Settings
from sqlqueue_app.messages.printable import terminal_line
from sqlqueue_app.operations.durations import Unit, two_units
from sqlqueue_app.operations.instance_status import read_instances
from sqlqueue_app.operations.known_queues import known_queues, table_of_argument
from sqlqueue_app.tables.queue import QueueTable

_UNITS = {Unit.DAYS: "d", Unit.HOURS: "h", Unit.MINUTES: "min", Unit.SECONDS: "s"}


def add_queue_argument(parser: CommandParser) -> None:
    """The queue, as a literal name or an address."""
    parser.add_argument("queue", metavar="QUEUE", help="the literal name of a queue's table, or an address such as 'Sales@[sales]'")


def named_table(settings: Settings, text: str) -> QueueTable:
    """The table that the argument names. ConfigurationError with the nearest name if there is none; DatabaseErrors."""
    _statuses, rows, _problem = read_instances()
    return table_of_argument(settings, text, known_queues(settings, rows))


def columns(rows: Iterable[Sequence[str]], *, right: frozenset[int] = frozenset()) -> list[str]:
    """Rows of cells as lines with aligned columns; those whose position is in `right` are aligned to the right."""
    cells = [[terminal_line(cell) for cell in row] for row in rows]
    widths = [max(len(row[index]) for row in cells) for index in range(len(cells[0]))] if cells else []
    return [
        "  ".join(
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def duration_text(value: timedelta) -> str:
    """The two largest units, in English; negative ones with a minus sign."""
    negative, parts = two_units(value)
    return ("-" if negative else "") + " ".join(f"{amount} {_UNITS[unit]}" for amount, unit in parts)
