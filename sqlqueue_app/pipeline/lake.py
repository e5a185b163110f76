"""Opening a lake: where its files are kept, and whether this version may write there."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from sqlqueue_app import __version__
from sqlqueue_app.lake.marker import FORMAT, NAME, LakeMarker, read_marker
from sqlqueue_app.pipeline.errors import PipelineError
from sqlqueue_app.pipeline.places import INFLIGHT
from sqlqueue_app.pipeline.storage import LakeStorage, LocalStorage, local_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def open_storage(lake: str, session: SparkSession) -> LakeStorage:
    """The store of the files of a lake: this machine's for a path or a `file:` URL, else that of Hadoop."""
    folder = local_folder(lake)
    if folder is not None:
        return LocalStorage(folder)
    from sqlqueue_app.pipeline.hadoop_storage import HadoopStorage  # noqa: PLC0415 -- what a lake on this machine does not need

    return HadoopStorage(session, lake)


def check_local_lake(lake: str) -> None:
    """What can be told of a lake on this machine before Spark is started; PipelineError as of `open_lake`. Writes nothing."""
    folder = local_folder(lake)
    if folder is not None:
        _read(LocalStorage(folder))


def open_lake(storage: LakeStorage) -> uuid.UUID:
    """The id of the lake, which is made where there is none. PipelineError for one that cannot be written, or by this version."""
    found = _read(storage)
    if found is None:
        storage.write_new(NAME, LakeMarker(FORMAT, uuid.uuid4(), __version__).text())
        found = _read(storage)
    if found is None:
        raise PipelineError(f"the file {NAME} of the lake {storage.name} was deleted at this moment: start the pipeline again")
    probe = f"{INFLIGHT}/{uuid.uuid4()}"
    storage.write_new(probe, "")
    storage.delete(probe)
    return found.id


def _read(storage: LakeStorage) -> LakeMarker | None:
    text = storage.read(NAME)
    try:
        return None if text is None else read_marker(text)
    except ValueError as error:
        raise PipelineError(f"the lake {storage.name} cannot be used: {error}") from None
