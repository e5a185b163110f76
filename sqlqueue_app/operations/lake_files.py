"""Which lake there is, and which files it has: those of the manifest, or what lies there where nothing has written one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from typing import Final

from sqlqueue_app.conf import Settings
from sqlqueue_app.instances import managed_alias
from sqlqueue_app.lake.data_files import SEARCHED, DataFile, data_file, glob_files
from sqlqueue_app.lake.errors import LakeError
from sqlqueue_app.messages.errors import ConnectionLost, DatabaseError
from sqlqueue_app.models import LakeBatch, LakeFile
from sqlqueue_app.operations.looking import looking

# A lake that is compacted has some files for each queue and day; more than this the engine would take seconds to open.
MOST_FILES: Final = 20_000


@dataclass(frozen=True, slots=True)
class KnownLake:
    """A lake, its files, and when the pipeline last committed to it; an empty `lake`: nobody has named one.

    `is_cut`: there are more files, of earlier days. `problem`: why the files are not known.
    """

    lake: str
    files: tuple[DataFile, ...] = ()
    committed_at: datetime | None = None
    is_cut: bool = False
    problem: str = ""


def known_lake(settings: Settings, *, since: date | None = None, until: date | None = None, path: str = "") -> KnownLake:
    """The lake of the settings, or that of the last run; its files of these days, or below a path. At most two statements.

    Raises ConnectionLost.
    """
    lake = (settings.pipeline.lake if settings.pipeline is not None else None) or ""
    alias = managed_alias()
    try:
        with looking(alias, "read the manifest of the lake"):
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
        return KnownLake(lake, problem=str(error))  # the tables of `migrate` are missing
    return _lying_there(lake, since, until, path)


def _lying_there(lake: str, since: date | None, until: date | None, path: str) -> KnownLake:
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
