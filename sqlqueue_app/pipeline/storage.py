"""The files of a lake on this machine, and what all stores of files can do.

Paths are relative to the folder of the lake, with `/`. What was synced survives the loss of power.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit
from urllib.request import url2pathname

from sqlqueue_app.pipeline.errors import PipelineError


class LakeStorage(Protocol):
    """What the pipeline needs of the store in which a lake is. Every method raises PipelineError for what the store refuses."""

    @property
    def name(self) -> str:
        """The lake as a user knows it."""

    def url(self, path: str) -> str:
        """Where Spark finds the path."""

    def read(self, path: str) -> str | None:
        """The text of a small file; None if there is none."""

    def write_new(self, path: str, text: str) -> bool:
        """Write a small file that is there whole or not at all; False, and nothing done, where there is one already."""

    def put(self, source: Path, path: str) -> None:
        """Copy a file of this machine into the lake."""

    def names(self, path: str) -> list[str]:
        """The names directly in a folder, sorted; none where there is no such folder."""

    def sizes(self, path: str) -> dict[str, int]:
        """Every file in a folder and below it, with its bytes."""

    def sync(self, paths: list[str]) -> None:
        """Have these files, and their names, survive the loss of power."""

    def move(self, source: str, target: str) -> None:
        """Move a file, or find that it was moved before. PipelineError where it is neither here nor there."""

    def delete(self, path: str) -> None:
        """Delete a file, or a folder with all that is in it; nothing where there is none."""


def local_folder(lake: str) -> Path | None:
    """The folder of a lake on this machine, also as a `file:` URL; None for another store."""
    parts = urlsplit(lake)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return Path(url2pathname(parts.path))
    # a letter alone is a drive of Windows
    return Path(lake).expanduser() if len(parts.scheme) < 2 else None


class LocalStorage:
    """A lake in a folder of this machine, or of a file system that is mounted on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()

    @property
    def name(self) -> str:
        """The folder."""
        return str(self.folder)

    def url(self, path: str) -> str:
        """With a scheme, else it is in the default file system of a cluster; without escapes, which Hadoop takes as they are."""
        return f"file://{(self.folder / path).as_posix()}"

    def read(self, path: str) -> str | None:
        """The text."""
        with self._refused("read", path):
            try:
                return (self.folder / path).read_text(encoding="utf-8")
            except FileNotFoundError:
                return None

    def write_new(self, path: str, text: str) -> bool:
        """By a hard link, which never replaces; the folder is made where it is missing."""
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
        """Copied, for the file may be on another disk."""
        target = self.folder / path
        with self._refused("write", path):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)

    def names(self, path: str) -> list[str]:
        """The names."""
        with self._refused("list", path):
            try:
                return sorted(os.listdir(self.folder / path))
            except FileNotFoundError:
                return []

    def sizes(self, path: str) -> dict[str, int]:
        """The files, by their paths below the lake; without those whose names begin with a dot or an underscore."""
        found: dict[str, int] = {}
        with self._refused("list", path):
            for folder, _, files in os.walk(self.folder / path):
                for name in files:
                    if not name.startswith((".", "_")):
                        file = Path(folder, name)
                        found[file.relative_to(self.folder).as_posix()] = file.stat().st_size
        return found

    def sync(self, paths: list[str]) -> None:
        """`fsync` of each file, then of every folder on the way to it."""
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
        """`rename`, which is all or nothing."""
        old, new = self.folder / source, self.folder / target
        with self._refused("write", target):
            new.parent.mkdir(parents=True, exist_ok=True)
            try:
                old.replace(new)
            except FileNotFoundError:
                if not new.exists():
                    raise PipelineError(lost_file(self.name, source, target)) from None

    def delete(self, path: str) -> None:
        """The file or folder, and the folders above it that are empty then, up to that of the table."""
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
            raise PipelineError(self._in_words(doing, path, error)) from error

    def _in_words(self, doing: str, path: str, error: OSError) -> str:
        where = f"{path!r} in the lake {self.name}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return f"the lake {self.name} is full: make room, and start the pipeline again; nothing is lost"
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            return (
                f"failed to {doing} {where}: {error.strerror}; give the user of this process the right to write there. "
                "Nothing is lost"
            )
        return f"failed to {doing} {where}: {error.strerror or error}"


def lost_file(lake: str, source: str, target: str) -> str:
    """What to say where a file of the manifest is nowhere."""
    return (
        f"the file {target!r} is in the manifest of the lake {lake}, but neither there nor at {source!r}: somebody has moved or "
        "deleted it. Put it back, or delete its row of LakeFile if it is gone for good"
    )


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # Windows cannot, and need not
        return
    opened = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
