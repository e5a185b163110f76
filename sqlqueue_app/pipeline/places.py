"""Where things are in a lake: paths below its folder, with `/`."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import date
from typing import Final
from urllib.parse import quote

INFLIGHT: Final = "_inflight"


def inflight(batch: uuid.UUID) -> str:
    """The folder of a batch that is under way; nobody else looks there."""
    return f"{INFLIGHT}/{batch}"


def queue_folder(table: str, queue: str) -> str:
    """The folder of a queue in a table of messages, below the lake or below the folder of a batch."""
    return f"{table}/queue={quote(queue, safe='')}"


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file of a batch: where it was written, below the folder of the batch, and what is in it."""

    table: str
    written_as: str
    day: date | None
    rows: int
    bytes: int

    def path(self, batch: uuid.UUID, number: int) -> str:
        """Where it will be in the lake: in the folder of the same name, under a name that no other batch has."""
        folder = self.written_as.rpartition("/")[0]
        return f"{folder}/{batch}-{number}.parquet"
