"""The files of a lake: paths, the marker file, and the Parquet options that make messages searchable."""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

from sqlqueue_app.lake.columns import FAILURES, MESSAGES
from sqlqueue_app.messages.errors import ConfigurationError, SqlQueueError


class LakeError(SqlQueueError):
    """The lake or one of its files cannot be read."""


class LakeEngineMissing(ConfigurationError):
    """The package that reads the lake is not installed; the message shows the command that installs it."""


# The tables with one row per message.
SEARCHED: Final = (MESSAGES.name, FAILURES.name)
_PLACE: Final = re.compile(r"(?P<table>[a-z_]+)/queue=(?P<queue>[^/]*)/day=(?P<day>[0-9]{4}-[0-9]{2}-[0-9]{2})/[^/]+\.parquet")
# Spark's URL scheme of a store, and DuckDB's.
_STORES: Final = {"s3a": "s3", "s3n": "s3", "s3": "s3", "gs": "gs", "abfss": "abfss", "abfs": "abfss", "az": "az", "r2": "r2"}


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file of a message table: its path below the lake and the values in that path. `rows` is 0 if unknown."""

    path: str
    table: str
    queue: str
    day: date
    rows: int = 0


def data_file(path: str, rows: int = 0) -> DataFile | None:
    """The file at this path below the lake; None if it is not a file of messages or failures."""
    place = _PLACE.fullmatch(path)
    if place is None or place["table"] not in SEARCHED:
        return None
    try:
        day = date.fromisoformat(place["day"])
    except ValueError:
        return None
    return DataFile(path, place["table"], unquote(place["queue"]), day, rows)


def local_path(lake: str) -> Path | None:
    """The directory of a local lake, given as a path or `file:` URL; None for any other store."""
    parts = urlsplit(lake)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return Path(url2pathname(parts.path))
    # A single letter is a Windows drive.
    return Path(os.path.expanduser(lake)) if len(parts.scheme) < 2 else None


def engine_root(lake: str) -> str:
    """The prefix of file paths for the search engine. Raises LakeError for a store that it cannot read."""
    local = local_path(lake)
    if local is not None:
        return str(local.absolute())
    scheme, _colon, rest = lake.partition(":")
    store = _STORES.get(scheme.lower())
    if store is None:
        raise LakeError(
            f"A lake at {lake!r} cannot be searched from here: the search reads directories of this machine (also as file: URLs) "
            f"and {', '.join(sorted(_STORES))}. Mount the store as a directory, or search it with Spark."
        )
    return f"{store}:{rest}".rstrip("/")


def glob_files(lake: str) -> Iterator[DataFile]:
    """List the files of a local lake that has no manifest, without those of unfinished batches.

    Raises LakeError for a lake that is not local.
    """
    root = local_path(lake)
    if root is None:
        raise LakeError(
            f"The files of {lake!r} are unknown: a remote lake cannot be listed, only the manifest of the pipeline lists its files."
        )
    for table in SEARCHED:
        for path in (root / table).glob("queue=*/day=*/*.parquet"):
            found = data_file(path.relative_to(root).as_posix())
            if found is not None:
                yield found


MARKER_NAME: Final = "_sqlqueue.json"
MARKER_FORMAT: Final = 1
"""The format that this version writes, and the newest that it reads."""


@dataclass(frozen=True, slots=True)
class LakeMarker:
    """The marker file: it identifies a directory as a lake and records format, id and writing version."""

    format: int
    id: uuid.UUID
    written_by: str

    def text(self) -> str:
        """The content of the file."""
        return json.dumps({"format": self.format, "id": str(self.id), "written_by": self.written_by}, indent=2) + "\n"


def read_marker(text: str) -> LakeMarker:
    """Parse the marker file. Raises ValueError for other text and for a newer format."""
    try:
        document = json.loads(text)
        found = LakeMarker(int(document["format"]), uuid.UUID(document["id"]), str(document.get("written_by", "")))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"its {MARKER_NAME} is not that of a lake of sqlqueue: {error}") from None
    if not 1 <= found.format <= MARKER_FORMAT:
        raise ValueError(
            f"it has the format {found.format}, written by sqlqueue {found.written_by or '?'}, and this version knows formats up "
            f"to {MARKER_FORMAT}: upgrade sqlqueue here, or choose another lake"
        )
    return found


def lake_id(lake: str) -> uuid.UUID | None:
    """The id in the marker file of a local lake; None for any other store, and without a readable marker."""
    folder = local_path(lake)
    try:
        return None if folder is None else read_marker((folder / MARKER_NAME).read_text(encoding="utf-8")).id
    except (OSError, ValueError):
        return None


ROWS_OF_A_GROUP: Final = 20_000
"""The smallest unit of a column that a search reads: about 30 MB of headers and body, in 0.02 s.

Rows keep the queue's order, which is nearly chronological, so a search over a few hours skips most groups, in compacted files too.
Sorting by time would need the memory of a whole batch.
"""
_IDS: Final = ("message_id", "conversation_id")
_LONG: Final = ("headers", "body")
_MOSTLY_UNIQUE: Final = (*_IDS, "native_id", "correlation_id", "related_to", *_LONG)
PARQUET_OPTIONS: Final[Mapping[str, str]] = {
    "compression": "zstd",
    "parquet.block.row.count.limit": str(ROWS_OF_A_GROUP),
    # A bloom filter of 32 KiB per group rules out 99 of 100 groups for an id. Parquet writes none for dictionary-encoded columns,
    # and a dictionary of unique values saves nothing.
    **{f"parquet.bloom.filter.enabled#{name}": "true" for name in _IDS},
    **{f"parquet.bloom.filter.expected.ndv#{name}": str(ROWS_OF_A_GROUP) for name in _IDS},
    **{f"parquet.enable.dictionary#{name}": "false" for name in _MOSTLY_UNIQUE},
    # Minimum and maximum of a body are useless to a search.
    **{f"parquet.column.statistics.enabled#{name}": "false" for name in _LONG},
}
"""For `DataFrameWriter.options` of message tables; measured with `benchmarks/lake_search.py`."""
