"""Find the lake and its files: from the manifest, or by listing a local directory that has no manifest."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from typing import Final

from sqlqueue_app.conf import Settings
from sqlqueue_app.lake.data_files import SEARCHED, DataFile, LakeError, data_file, glob_files
from sqlqueue_app.messages.errors import ConnectionLost, DatabaseError
from sqlqueue_app.models import LakeBatch, LakeFile
from sqlqueue_app.receiving.instances import managed_alias
from sqlqueue_app.tables.connections import guarded_read

# A compacted lake has a few files per queue and day. DuckDB needs seconds to open more files than this.
MOST_FILES: Final = 20_000


@dataclass(frozen=True, slots=True)
class KnownLake:
    """A lake with its files and the time of its last commit; `lake` is empty if none is configured.

    `is_cut`: there are more files, of earlier days. `problem`: why the files are unknown.
    """

    lake: str
    files: tuple[DataFile, ...] = ()
    committed_at: datetime | None = None
    is_cut: bool = False
    problem: str = ""


def known_lake(settings: Settings, *, since: date | None = None, until: date | None = None, path: str = "") -> KnownLake:
    """The configured lake, else that of the last run, with its files of these days and below `path`.

    At most two statements. Raises ConnectionLost.
    """
    lake = (settings.pipeline.lake if settings.pipeline is not None else None) or ""
    alias = managed_alias()
    try:
        with guarded_read(alias, "read the manifest of the lake"):
            newest = LakeBatch.objects.using(alias).select_related("run").order_by("-committed_at").first()
            if not lake and newest is not None and newest.run is not None:
                lake = newest.run.lake
            if newest is not None and lake:
                rows = LakeFile.objects.using(alias).filter(
                    table__in=SEARCHED, retired_at__isnull=True, batch__lake_id=newest.lake_id, batch__published_at__isnull=False
                )
                if since is not None:
                    rows = rows.filter(day__gte=since)
                if until is not None:
                    rows = rows.filter(day__lte=until)
                if path:
                    rows = rows.filter(path__startswith=path)
                found = list(rows.order_by("-day", "pk").values_list("path", "rows")[: MOST_FILES + 1])
                files = (data_file(where, count) for where, count in found[:MOST_FILES])
                known = tuple(each for each in files if each is not None)
                return KnownLake(lake, known, newest.committed_at, len(found) > MOST_FILES)
    except ConnectionLost:
        raise
    except DatabaseError as error:
        return KnownLake(lake, problem=str(error))  # `migrate` has not been run
    return _list_directory(lake, since, until, path)


def _list_directory(lake: str, since: date | None, until: date | None, path: str) -> KnownLake:
    if not lake:
        return KnownLake("")
    try:
        found = [
            each
            for each in glob_files(lake)
            if (since is None or each.day >= since) and (until is None or each.day <= until) and each.path.startswith(path)
        ]
    except (LakeError, OSError) as error:
        return KnownLake(lake, problem=str(error))
    found.sort(key=lambda each: (each.day, each.path), reverse=True)
    return KnownLake(lake, tuple(found[:MOST_FILES]), is_cut=len(found) > MOST_FILES)
