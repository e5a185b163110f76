"""Changes of the code on disk, for `run_sqlqueue_worker --reload`."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

from django.apps import apps
from django.utils.autoreload import StatReloader, autoreload_started

from sqlqueue_app.receiving.stopping import StopSignal

# As often as Django's own reloader.
POLL_SECONDS = 1.0


class _ProjectFiles(StatReloader):
    """Django's reloader as a list of changed files: the caller decides what follows, and waits between two checks."""

    SLEEP_TIME = 0

    def __init__(self) -> None:
        super().__init__()
        self.changed: list[str | os.PathLike[str]] = []
        # This process imports nothing after its start, so a module that is new since then is only found in its folder.
        installed = {Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib")}
        for app in apps.get_app_configs():
            folder = Path(app.path).resolve()
            if installed.isdisjoint(folder.parents):
                self.watch_dir(folder, "**/*.py")
        # Apps add what else they read, such as templates and translations.
        autoreload_started.send(sender=self)

    def watched_files(self, include_globs: bool = True) -> Iterator[Path]:
        """The files; a folder that is removed during a check ends it, and the next check finds the others."""
        with suppress(OSError):
            yield from super().watched_files(include_globs)

    def notify_file_changed(self, path: str | os.PathLike[str]) -> None:
        """Remember the file. Django's method would end this process."""
        self.changed.append(path)


@contextmanager
def watching_files(stop: StopSignal, changed: Callable[[object], None]) -> Iterator[None]:
    """While open, call `changed` in a thread of its own with one of the files that have changed since the last check.

    Watches what Django's development server watches: imported modules, the code of the project's apps, their templates and
    translations. Ends with the stop signal, which must be set before the context closes.
    """
    files = _ProjectFiles()

    def watch() -> None:
        for _ in files.tick():
            if files.changed:
                changed(files.changed[0])
                files.changed.clear()
            if stop.wait(POLL_SECONDS):
                return

    watcher = Thread(target=watch, name="reload-watch")
    watcher.start()
    try:
        yield
    finally:
        watcher.join()
