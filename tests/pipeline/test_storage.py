"""Storage of a lake's files: the local disk, and Hadoop, tested with its access to the local disk."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sqlqueue_app.lake.data_files import local_path
from sqlqueue_app.pipeline.storage import HadoopStorage, LakeStorage, LocalStorage, PipelineError, open_lake, open_storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ODD = "messages/queue=a%2Fb c/day=2026-01-01/x.parquet"


@pytest.fixture(params=["local", "hadoop"])
def storage(request: pytest.FixtureRequest, tmp_path: Path, spark: SparkSession) -> LakeStorage:
    folder = tmp_path / "a lake"
    return LocalStorage(folder) if request.param == "local" else HadoopStorage(lambda: spark, f"file://{folder}/")


def test_small_file_is_written_once(storage: LakeStorage) -> None:
    assert storage.read("a.json") is None
    assert storage.write_new("a.json", "first ä")
    assert not storage.write_new("a.json", "second")
    assert storage.read("a.json") == "first ä"


def test_files_are_put_listed_moved_and_deleted(storage: LakeStorage, tmp_path: Path) -> None:
    source = tmp_path / "x"
    source.write_bytes(b"12345")
    assert storage.names("_inflight") == []
    assert storage.sizes("_inflight/b") == {}

    storage.put(source, f"_inflight/b/{ODD}")
    storage.sync([f"_inflight/b/{ODD}"])

    assert storage.names("_inflight") == ["b"]
    assert storage.sizes("_inflight/b") == {f"_inflight/b/{ODD}": 5}
    for _ in range(2):  # an interrupted move is repeated
        storage.move(f"_inflight/b/{ODD}", ODD)
    assert storage.sizes("messages") == {ODD: 5}
    storage.delete("_inflight/b")
    storage.delete("_inflight/b")
    assert storage.names("_inflight") == []
    storage.delete(ODD)
    assert storage.sizes("messages") == {}


def test_interrupted_move_is_finished(storage: LakeStorage, tmp_path: Path) -> None:
    source = tmp_path / "x"
    source.write_bytes(b"12345")
    storage.put(source, "_inflight/b/x.parquet")
    storage.put(source, "x.parquet")

    storage.move("_inflight/b/x.parquet", "x.parquet")

    assert storage.sizes("") == {"x.parquet": 5}


def test_missing_file_is_named_in_the_error(storage: LakeStorage) -> None:
    with pytest.raises(
        PipelineError, match=r"the file 'x\.parquet' is in the manifest of the lake .*, but neither there nor at 'y'"
    ):
        storage.move("y", "x.parquet")


def test_file_in_place_of_a_folder_is_a_clear_error(storage: LakeStorage, tmp_path: Path) -> None:
    (tmp_path / "a lake").write_text("no folder")

    with pytest.raises(PipelineError, match=r"failed to (write|open|read) "):
        open_lake(storage)


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.ENOSPC, r"the lake .* is full: free space, and start the pipeline again; nothing is lost"),
        (errno.EROFS, r"failed to write 'x' in the lake .*: Read-only file system; give the user"),
        (errno.EACCES, r"failed to write 'x' in the lake .*: Permission denied; give the user"),
        (errno.EIO, r"failed to write 'x' in the lake .*: Input/output error"),
    ],
)
def test_disk_error_is_explained(tmp_path: Path, number: int, expected: str) -> None:
    storage = LocalStorage(tmp_path)

    with pytest.raises(PipelineError, match=expected), storage._refused("write", "x"):
        raise OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    ("lake", "folder"),
    [
        ("/srv/lake", "/srv/lake"),
        ("file:///srv/a%20b", "/srv/a b"),
        ("file:/srv/lake", "/srv/lake"),
        ("lake", "lake"),
        ("s3a://bucket/lake", None),
        ("abfss://c@account.dfs.core.windows.net/lake", None),
        ("file://other/srv", None),
    ],
)
def test_local_path_recognizes_lakes_on_this_machine(lake: str, folder: str | None, spark: SparkSession) -> None:
    found = local_path(lake)

    assert found == (None if folder is None else Path(folder))
    if folder is not None:
        assert isinstance(open_storage(lake, lambda: spark), LocalStorage)


MARKERS: list[tuple[str, str]] = [
    ("", "not that of a lake of sqlqueue"),
    ("[]", "not that of a lake of sqlqueue"),
    ('{"format": 1, "id": "x"}', "not that of a lake of sqlqueue"),
    ('{"format": 2, "id": "11111111-2222-3333-4444-555555555555", "written_by": "9.0"}',
     r"it has the format 2, written by sqlqueue 9\.0, and this version knows formats up to 1: upgrade sqlqueue here, or choose"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), MARKERS)
def test_lake_of_an_unknown_format_is_refused_unchanged(storage: LakeStorage, text: str, expected: str) -> None:
    storage.write_new("_sqlqueue.json", text)

    with pytest.raises(PipelineError, match=expected):
        open_lake(storage)
    assert storage.sizes("") == {}
    assert storage.read("_sqlqueue.json") == text


def test_marker_in_another_encoding_is_refused(storage: LakeStorage, tmp_path: Path) -> None:
    written = tmp_path / "written"
    written.write_text("{}", encoding="utf-16")
    storage.put(written, "_sqlqueue.json")

    with pytest.raises(PipelineError, match="not that of a lake of sqlqueue"):
        open_lake(storage)


def test_lake_keeps_its_id(storage: LakeStorage) -> None:
    first = open_lake(storage)

    assert open_lake(storage) == first
    assert storage.names("_inflight") == []


def test_read_only_lake_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = LocalStorage(tmp_path)
    open_lake(storage)
    link: Callable[..., None] = os.link

    def refuse(*arguments: object, **named: object) -> None:
        del arguments, named
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(PipelineError, match="Permission denied; give the user of this process the right to write there"):
        open_lake(storage)
    monkeypatch.setattr(os, "link", link)
    open_lake(storage)
