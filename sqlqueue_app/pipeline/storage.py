"""Storage of the files of a lake: a local folder, or any store that Hadoop supports (`s3a:`, `abfss:`, `hdfs:` and others).

Paths are relative to the lake, with `/`. A synced file survives a power failure. In an object store, moving a file copies it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar
from urllib.parse import quote

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped,unused-ignore]

from sqlqueue_app import __version__
from sqlqueue_app.lake.data_files import MARKER_FORMAT, MARKER_NAME, LakeMarker, local_path, read_marker
from sqlqueue_app.messages.errors import SqlQueueError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
Spark = Callable[[], "SparkSession"]
"""Returns the session of the run, and starts it if there is none."""
_MISSING = "FileNotFoundException"
_THERE = "FileAlreadyExistsException"
INFLIGHT: Final = "_inflight"


class PipelineError(SqlQueueError):
    """The pipeline cannot continue; the message contains the problem and the remedy. The queues are unchanged."""


class PipelineBusy(PipelineError):
    """Another pipeline is running on the same database."""


class BatchLost(PipelineError):
    """Another consumer took rows or files of the batch: it was rolled back and can be retried at once."""


def inflight(batch: uuid.UUID) -> str:
    """The private folder of an unpublished batch."""
    return f"{INFLIGHT}/{batch}"


def queue_folder(table: str, queue: str) -> str:
    """The partition folder of a queue, relative to the lake or to a batch folder."""
    return f"{table}/queue={quote(queue, safe='')}"


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file of a batch. `written_as` is its path below the batch folder."""

    table: str
    written_as: str
    day: date | None
    rows: int
    bytes: int

    def path(self, batch: uuid.UUID, number: int) -> str:
        """Its final path in the lake: the same folder, and a name unique to the batch."""
        folder = self.written_as.rpartition("/")[0]
        return f"{folder}/{batch}-{number}.parquet"


def open_storage(lake: str, spark: Spark) -> LakeStorage:
    """The store of a lake: local for a path or `file:` URL, else Hadoop."""
    folder = local_path(lake)
    if folder is not None:
        return LocalStorage(folder)
    return HadoopStorage(spark, lake)


def check_local_lake(lake: str) -> None:
    """Check a local lake before Spark starts, without writing. Raises PipelineError like `open_lake`."""
    folder = local_path(lake)
    if folder is not None:
        _marker_of(LocalStorage(folder))


def open_lake(storage: LakeStorage) -> uuid.UUID:
    """Return the id of the lake, creating the lake if necessary. Raises PipelineError if it is read-only or has a newer format."""
    found = _marker_of(storage)
    if found is None:
        storage.write_new(MARKER_NAME, LakeMarker(MARKER_FORMAT, uuid.uuid4(), __version__).text())
        found = _marker_of(storage)
    if found is None:
        raise PipelineError(f"the file {MARKER_NAME} of the lake {storage.name} has just been deleted: start the pipeline again")
    probe = f"{INFLIGHT}/{uuid.uuid4()}"
    storage.write_new(probe, "")
    storage.delete(probe)
    return found.id


def _marker_of(storage: LakeStorage) -> LakeMarker | None:
    text = storage.read(MARKER_NAME)
    try:
        return None if text is None else read_marker(text)
    except ValueError as error:
        raise PipelineError(f"the lake {storage.name} cannot be used: {error}") from None


class LakeStorage(Protocol):
    """The store of a lake. Every method raises PipelineError if the store refuses."""

    name: str
    """The lake as the user named it."""

    def url(self, path: str) -> str:
        """The URL of a path for Spark."""

    def read(self, path: str) -> str | None:
        """The text of a small file, with replacements for what is not UTF-8; None if there is none."""

    def write_new(self, path: str, text: str) -> bool:
        """Write a small file atomically; return False, and do nothing, if the file exists."""

    def put(self, source: Path, path: str) -> None:
        """Copy a local file into the lake."""

    def names(self, path: str) -> list[str]:
        """The sorted names in a folder; empty if it does not exist."""

    def sizes(self, path: str) -> dict[str, int]:
        """The sizes in bytes of all files below a folder, by path below the lake, without names that start with a dot or `_`."""

    def sync(self, paths: list[str]) -> None:
        """Make these files and their names survive a power failure."""

    def move(self, source: str, target: str) -> None:
        """Move a file, unless it was moved before. Raises PipelineError if it is at neither path."""

    def delete(self, path: str) -> None:
        """Delete a file or a folder with its content, if it exists."""


class LocalStorage:
    """A lake in a local or mounted folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.name = str(self.folder)

    def url(self, path: str) -> str:
        """A `file:` URL; without the scheme a cluster uses its default file system. Unescaped, because Hadoop does not unescape."""
        return f"file://{(self.folder / path).as_posix()}"

    def read(self, path: str) -> str | None:
        with self._refused("read", path):
            try:
                return (self.folder / path).read_text(encoding="utf-8", errors="replace")
            except FileNotFoundError:
                return None

    def write_new(self, path: str, text: str) -> bool:
        """Use a hard link, which never replaces a file. Creates the folder."""
        target = self.folder / path
        unfinished = target.with_name(f".{target.name}.{os.getpid()}")
        with self._refused("write", path):
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                with unfinished.open("w", encoding="utf-8") as file:
                    file.write(text)
                    file.flush()
                    os.fsync(file.fileno())
                try:
                    os.link(unfinished, target)
                except FileExistsError:
                    return False
            finally:
                unfinished.unlink(missing_ok=True)
            _sync_folder(target.parent)
        return True

    def put(self, source: Path, path: str) -> None:
        """Copy rather than move: the file may be on another disk."""
        target = self.folder / path
        with self._refused("write", path):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)

    def names(self, path: str) -> list[str]:
        with self._refused("list", path):
            try:
                return sorted(os.listdir(self.folder / path))
            except FileNotFoundError:
                return []

    def sizes(self, path: str) -> dict[str, int]:
        found: dict[str, int] = {}
        with self._refused("list", path):
            for folder, _, files in os.walk(self.folder / path):
                for name in files:
                    if not name.startswith((".", "_")):
                        file = Path(folder, name)
                        found[file.relative_to(self.folder).as_posix()] = file.stat().st_size
        return found

    def sync(self, paths: list[str]) -> None:
        """`fsync` each file, then every folder above it."""
        folders: set[Path] = set()
        with self._refused("write", paths[0] if paths else ""):
            for path in paths:
                file = self.folder / path
                with file.open("rb") as opened:
                    os.fsync(opened.fileno())
                folders.update(each for each in file.parents if each.is_relative_to(self.folder))
            for folder in sorted(folders, reverse=True):
                _sync_folder(folder)

    def move(self, source: str, target: str) -> None:
        """`rename`, which is atomic."""
        old, new = self.folder / source, self.folder / target
        with self._refused("write", target):
            new.parent.mkdir(parents=True, exist_ok=True)
            try:
                old.replace(new)
            except FileNotFoundError:
                if not new.exists():
                    raise PipelineError(lost_file_message(self.name, source, target)) from None

    def delete(self, path: str) -> None:
        """Also delete the folders above that are empty then, up to the table."""
        target = self.folder / path
        with self._refused("delete", path):
            if target.is_dir():
                shutil.rmtree(target, ignore_errors=False)
            else:
                target.unlink(missing_ok=True)
                self._delete_empty(target.parent)

    def _delete_empty(self, folder: Path) -> None:
        with contextlib.suppress(OSError):
            while folder.is_relative_to(self.folder) and folder.parent != self.folder and folder != self.folder:
                folder.rmdir()
                folder = folder.parent

    @contextmanager
    def _refused(self, doing: str, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise PipelineError(self._error_text(doing, path, error)) from error

    def _error_text(self, doing: str, path: str, error: OSError) -> str:
        where = f"{path!r} in the lake {self.name}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return f"the lake {self.name} is full: free space, and start the pipeline again; nothing is lost"
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            return (
                f"failed to {doing} {where}: {error.strerror}; give the user of this process the right to write there. "
                "Nothing is lost"
            )
        return f"failed to {doing} {where}: {error.strerror or error}"


class HadoopStorage:
    """A lake below a Hadoop URL. Spark settings (`spark.hadoop.…`) configure the store; a closed file is durable there."""

    def __init__(self, spark: Spark, url: str) -> None:
        self.name = url.rstrip("/")
        self._spark = spark
        self._opened_in: SparkSession | None = None
        self._opened: Any = None
        self._root: str = self._files.makeQualified(self._path_of(self.name)).toUri().getPath().rstrip("/")

    @property
    def _files(self) -> Any:
        """The file system in the Java of the current session."""
        session = self._spark()
        if session is not self._opened_in:
            configuration = session._jsc.hadoopConfiguration()  # type: ignore[attr-defined,unused-ignore]
            self._opened = self._call("open", "", lambda: self._path_of(self.name).getFileSystem(configuration))
            self._opened_in = session
        return self._opened

    def _path_of(self, path: str) -> Any:
        jvm: Any = self._spark()._jvm
        return jvm.org.apache.hadoop.fs.Path(path)

    def url(self, path: str) -> str:
        return f"{self.name}/{path}"

    def read(self, path: str) -> str | None:

        def read() -> str:
            stream = self._files.open(self._path(path))
            try:
                return bytes(stream.readAllBytes()).decode("utf-8", "replace")
            finally:
                stream.close()

        return self._call("read", path, read, missing=lambda: None)

    def write_new(self, path: str, text: str) -> bool:
        """Create without overwriting."""

        def write() -> bool:
            stream = self._files.create(self._path(path), False)
            try:
                stream.write(bytearray(text.encode("utf-8")))
            finally:
                stream.close()
            return True

        def was_there() -> bool:
            if not self._files.exists(self._path(path)):
                raise PipelineError(f"failed to write {path!r} in the lake {self.name}: a file is where a folder should be")
            return False

        return self._call("write", path, write, there=was_there)

    def put(self, source: Path, path: str) -> None:
        self._call(
            "write", path, lambda: self._files.copyFromLocalFile(False, True, self._path_of(source.as_uri()), self._path(path))
        )

    def names(self, path: str) -> list[str]:
        found = self._call("list", path, lambda: list(self._files.listStatus(self._path(path))), missing=list)
        return sorted(each.getPath().getName() for each in found)

    def sizes(self, path: str) -> dict[str, int]:

        def sizes() -> dict[str, int]:
            found: dict[str, int] = {}
            files = self._files.listFiles(self._path(path), True)
            while files.hasNext():
                each = files.next()
                if not each.getPath().getName().startswith((".", "_")):
                    found[each.getPath().toUri().getPath().removeprefix(f"{self._root}/")] = int(each.getLen())
            return found

        return self._call("list", path, sizes, missing=dict)

    def sync(self, paths: list[str]) -> None:
        """Nothing to do: closed files are durable."""

    def move(self, source: str, target: str) -> None:
        """`rename`. If an earlier move was interrupted between copy and deletion, finish it."""

        def move() -> None:
            old, new = self._path(source), self._path(target)
            if not self._files.exists(old):
                if not self._files.exists(new):
                    raise PipelineError(lost_file_message(self.name, source, target))
            elif self._files.exists(new):
                self._files.delete(old, False)
            else:
                self._files.mkdirs(new.getParent())
                if not self._files.rename(old, new) and self._files.exists(old):
                    raise PipelineError(f"the store refused to move {source!r} to {target!r} in the lake {self.name}")

        self._call("write", target, move)

    def delete(self, path: str) -> None:
        self._call("delete", path, lambda: self._files.delete(self._path(path), True), missing=lambda: False)

    def _path(self, path: str) -> Any:
        return self._path_of(f"{self.name}/{path}")

    def _call(
        self,
        doing: str,
        path: str,
        call: Callable[[], T],
        *,
        missing: Callable[[], T] | None = None,
        there: Callable[[], T] | None = None,
    ) -> T:
        try:
            return call()
        except Py4JJavaError as error:
            kind = str(error.java_exception.getClass().getSimpleName())
            if missing is not None and kind == _MISSING:
                return missing()
            if there is not None and kind == _THERE:
                return there()
            text = str(error.java_exception.getMessage() or kind).strip().splitlines()[0]
            raise PipelineError(f"failed to {doing} {path!r} in the lake {self.name}: {kind}: {text}. Nothing is lost") from None


def lost_file_message(lake: str, source: str, target: str) -> str:
    """The error text for a file of the manifest that does not exist."""
    return (
        f"the file {target!r} is in the manifest of the lake {lake}, but neither there nor at {source!r}: it was moved or deleted "
        "by hand. Put it back, or delete its row of LakeFile if the file is lost"
    )


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # neither possible nor necessary on Windows
        return
    opened = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
