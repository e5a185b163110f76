"""`run_sqlqueue_worker --reload`: a changed file restarts the worker, and messages in progress are finished first."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from django.test import modify_settings
from django.utils.autoreload import StatReloader

from sqlqueue_app import send
from sqlqueue_app.receiving.stopping import StopSignal
from sqlqueue_app.worker.reloading import watching_files
from sqlqueue_app.worker.supervisor import Supervisor
from tests.support.bench import Bench
from tests.support.databases import ROOT
from tests.support.waiting import join_all, poll_until, read_until
from tests.support.worker_processes import address, handled, in_handler, prepare, worker_process

CODE = """
import os, sys, threading
from sqlqueue_app import handles

@handles("Reload.Message")
def handler(message, context):
    with context.connection.cursor() as cursor:
        cursor.execute("INSERT INTO handled (number, pid) VALUES (%s, %s)", (message["number"], {version}))
    print("in the handler", flush=True)
    while not os.path.exists(message["released"]):
        threading.Event().wait(0.01)
"""


class Project:
    """A module of handlers that a test rewrites."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "reloaded_handlers.py"
        self.released = folder / "released"
        self._times = count(2_000_000_000)

    def write(self, text: str) -> None:
        """Replace the module at once, with a later modification time than before at any resolution of the file system."""
        new = self.folder / "new"
        new.write_text(text)
        os.utime(new, (time := next(self._times), time))
        new.replace(self.file)

    def send(self, bench: Bench, number: int) -> None:
        send("Reload.Message", {"number": number, "released": str(self.released)}, to=address(bench, "Sales"))

    def worker(self, bench: Bench, *arguments: str) -> Any:
        arguments = ("--processes", "1", "--reload", *arguments)
        return worker_process(bench, *arguments, PYTHONPATH=f"{ROOT}{os.pathsep}{self.folder}", PYTHONDONTWRITEBYTECODE="1")


@pytest.fixture
def project(bench: Bench, tmp_path: Path) -> Project:
    made = Project(tmp_path)
    prepare(bench, HANDLERS=["reloaded_handlers"], MAX_CONCURRENCY=1)
    made.write(CODE.format(version=1))
    return made


def wait_for_log(process: subprocess.Popen[str], text: str) -> None:
    read_until(process, process.stderr, lambda line: text in line, what=f"the log has {text!r}")


def test_message_in_progress_is_finished_by_the_old_code_and_the_next_is_handled_by_the_new(bench: Bench, project: Project) -> None:
    project.send(bench, 1)
    with project.worker(bench) as process:
        in_handler(process)
        project.write(CODE.format(version=2))
        wait_for_log(process, "reloaded_handlers.py has changed")
        # only from here on is it certain that the old code receives no more messages
        wait_for_log(process, "stopping: finishing the messages")
        project.released.touch()
        project.send(bench, 2)
        poll_until(lambda: len(handled(bench)) == 2, deadline=60, what="both messages are handled")
        process.terminate()
        assert process.wait(60) == 0
    assert handled(bench) == [(1, 1), (2, 2)]


@pytest.mark.parametrize("broken", ["def handler(:\n", "raise LookupError('at import')\n"])
def test_code_that_cannot_be_imported_waits_for_the_next_change(bench: Bench, project: Project, broken: str) -> None:
    project.released.touch()
    with project.worker(bench) as process:
        wait_for_log(process, "started")
        project.write(broken)
        wait_for_log(process, "starts again when a file changes")
        project.write(CODE.format(version=3))
        project.send(bench, 1)
        poll_until(lambda: handled(bench) == [(1, 3)], deadline=60, what="the corrected code has handled it")
        process.terminate()
        assert process.wait(60) == 0


def test_signal_ends_a_worker_that_waits_for_a_change(bench: Bench, project: Project) -> None:
    with project.worker(bench) as process:
        wait_for_log(process, "started")
        project.write("def handler(:\n")
        wait_for_log(process, "starts again when a file changes")
        process.terminate()
        # the exit code of the last process
        assert process.wait(60) in (0, 1, 2)


def test_reload_without_a_supervisor_is_refused(bench: Bench) -> None:
    prepare(bench)
    with worker_process(bench, "--processes", "0", "--reload") as process:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 2
    assert "--reload needs a supervisor" in errors


def test_new_file_in_an_app_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = tmp_path / "watched_app"
    app.mkdir()
    (app / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("sqlqueue_app.worker.reloading.POLL_SECONDS", 0.01)
    stop, changed = StopSignal(), threading.Event()
    seen: list[object] = []

    def note(path: object) -> None:
        seen.append(path)
        changed.set()

    new = app / "orders.py"
    times = count(2_000_000_000)

    def touched() -> bool:
        os.utime(new, (time := next(times), time))
        return True

    with modify_settings(INSTALLED_APPS={"append": "watched_app"}), watching_files(stop, note):
        try:
            new.write_text("")
            # The first check that finds the file is not a change.
            poll_until(lambda: touched() and changed.is_set(), what="the change is noticed")
        finally:
            stop.set()
    assert {Path(str(path)).resolve() for path in seen} == {new.resolve()}
    sys.modules.pop("watched_app", None)


def test_folder_that_is_removed_during_a_check_does_not_end_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[object] = []

    def vanishing(self: object, include_globs: bool = True) -> Iterator[Path]:
        looks.append(self)
        yield Path(__file__)
        raise FileNotFoundError("a folder")

    monkeypatch.setattr("sqlqueue_app.worker.reloading.POLL_SECONDS", 0.01)
    monkeypatch.setattr(StatReloader, "watched_files", vanishing)
    stop = StopSignal()
    with watching_files(stop, lambda _: None):
        try:
            poll_until(lambda: len(looks) > 2, what="the files are checked again")
        finally:
            stop.set()


def test_restart_ends_the_pause_after_a_death(events: Callable[[], list[str]]) -> None:
    stop = StopSignal()
    supervisor = Supervisor([sys.executable, "-c", "import os; os._exit(3)"], 1, stop, reloads=True, restart_seconds=3_600)
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    try:
        poll_until(lambda: events().count("process_died") == 1, what="the process died")
        supervisor.restart("orders.py")
        poll_until(lambda: events().count("process_died") == 2, what="the process was started again and died")
    finally:
        stop.set()
        join_all([thread])
