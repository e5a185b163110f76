"""The folder for what Spark writes while it runs: one per process, gone with it, also after a kill.

Spark cleans up when it ends in order. Killed, it leaves gigabytes behind; so whoever starts next removes what belongs to nobody.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from sqlqueue_app.messages.errors import ConfigurationError

if sys.platform == "win32":  # nobody can tell there what belongs to a process that is gone
    HAS_LOCKS = False
else:
    import fcntl

    HAS_LOCKS = True


class Scratch:
    """A new folder of this process below the system's folder for temporary files. While it is in use its lock file is locked."""

    def __init__(self) -> None:
        root = _root()
        with _only_one(root):
            _remove_left_behind(root)
            self.folder = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=root))
            self._lock_file = _lock_file_of(self.folder)
            self._held: IO[str] | None = _locked(self._lock_file)

    def remove(self) -> None:
        """Remove the folder with all that is in it; once is enough."""
        if self._held is None:
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        self._held.close()
        self._held = None
        if not self.folder.exists():
            # else the next start tries again
            self._lock_file.unlink(missing_ok=True)


def _root() -> Path:
    user = os.getuid() if hasattr(os, "getuid") else "user"
    root = Path(tempfile.gettempdir()) / f"sqlqueue-spark-{user}"
    try:
        root.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"Spark's folder for temporary files cannot be made: {error}; let TMPDIR name a folder where it can"
        ) from None
    if hasattr(os, "getuid") and root.stat().st_uid != os.getuid():
        raise ConfigurationError(f"{root} belongs to somebody else: remove it, or let TMPDIR name another folder")
    return root


def _lock_file_of(folder: Path) -> Path:
    return folder.with_name(folder.name + ".lock")


def _locked(path: Path, *, wait: bool = True) -> IO[str] | None:
    """The file, opened and locked until it is closed or the process ends in any way; None if another process holds it."""
    file = path.open("w", encoding="utf-8")
    if sys.platform != "win32":
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            file.close()
            return None
    return file


@contextmanager
def _only_one(root: Path) -> Iterator[None]:
    file = _locked(root / "starting")
    try:
        yield
    finally:
        if file is not None:
            file.close()


def _remove_left_behind(root: Path) -> None:
    if not HAS_LOCKS:
        return
    for lock_file in root.glob("*.lock"):
        held = _locked(lock_file, wait=False)
        if held is None:
            continue
        folder = lock_file.with_suffix("")
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            lock_file.unlink(missing_ok=True)
        held.close()
