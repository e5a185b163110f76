"""The data files of a lake: where they lie, and what their paths say of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

from sqlqueue_app.lake.columns import FAILURES, MESSAGES
from sqlqueue_app.lake.errors import LakeError

# What can be searched: the tables with one row for each message.
SEARCHED: Final = (MESSAGES.name, FAILURES.name)
_PLACE: Final = re.compile(r"(?P<table>[a-z_]+)/queue=(?P<queue>[^/]*)/day=(?P<day>[0-9]{4}-[0-9]{2}-[0-9]{2})/[^/]+\.parquet")
# The names by which Spark knows a store, and those by which DuckDB does.
_STORES: Final = {"s3a": "s3", "s3n": "s3", "s3": "s3", "gs": "gs", "abfss": "abfss", "abfs": "abfss", "az": "az", "r2": "r2"}


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file of a table of messages: its path below the lake, and what the path says. `rows` is 0 where nobody knows."""

    path: str
    table: str
    queue: str
    day: date
    rows: int = 0


def data_file(path: str, rows: int = 0) -> DataFile | None:
    """The file at this path below the lake; None for what is no file of messages or failures."""
    place = _PLACE.fullmatch(path)
    if place is None or place["table"] not in SEARCHED:
        return None
    try:
        day = date.fromisoformat(place["day"])
    except ValueError:
        return None
    return DataFile(path, place["table"], unquote(place["queue"]), day, rows)


def local_path(lake: str) -> Path | None:
    """The directory of a lake on this machine; None for a lake in another store."""
    parts = urlsplit(lake)
    if parts.scheme == "file":
        return Path(url2pathname(parts.path))
    # A letter alone is a drive of Windows.
    return Path(lake) if len(parts.scheme) < 2 else None


def engine_root(lake: str) -> str:
    """What the engine puts before the path of a file. Raises LakeError for a store that it cannot read."""
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
    """The files that lie in a lake of this machine, for lakes without a manifest; those under way are left out.

    Raises LakeError for a lake that cannot be listed.
    """
    root = local_path(lake)
    if root is None:
        raise LakeError(
            f"The files of {lake!r} are not known: only the manifest of the pipeline says which files a remote lake has."
        )
    for table in SEARCHED:
        for path in (root / table).glob("queue=*/day=*/*.parquet"):
            found = data_file(path.relative_to(root).as_posix())
            if found is not None:
                yield found
