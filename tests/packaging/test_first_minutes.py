"""The first minutes of a stranger: the wheel in an empty environment, a bare project, the README word for word."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.packaging.conftest import run
from tests.support.databases import ROOT, QueueDatabase
from tests.support.doc_pages import Block, blocks
from tests.support.waiting import poll_until

README = ROOT / "README.md"
MAX_QUEUE_TABLES = 8
# What Django and we manage ourselves; everything else is a queue or stands beside one.
MANAGED = ("auth_", "django_", "sqlqueue_app_", "sqlite_")


@pytest.fixture(scope="module")
def python_with_drivers(python_of_a_user: Path, wheel: Path) -> Path:
    run(sys.executable, "-m", "pip", "--python", python_of_a_user, "install", "--quiet", f"{wheel}[postgres]", cwd=wheel.parent)
    return python_of_a_user


class Project:
    """A project of `django-admin startproject` and `startapp`, to which the README is applied."""

    def __init__(self, python: Path, place: Path, database: dict[str, Any]) -> None:
        self.python = python
        self.place = place
        run(python, "-m", "django", "startproject", "mysite", place, cwd=place)
        run(python, "manage.py", "startapp", "shop", cwd=place)
        self.database = database

    def follow(self) -> None:
        """Write what the README says into the files that it names, on the database of the test."""
        for block in blocks(README):
            if block.file is not None and (self.database or "DATABASES" not in block.text or self._is_sqlite):
                self.append(block.file, block.text)
        if not self._is_sqlite:
            self.append("mysite/settings.py", f'DATABASES["default"] = {self.database!r}\n')

    @property
    def _is_sqlite(self) -> bool:
        return not self.database

    def append(self, file: str, text: str) -> None:
        with (self.place / file).open("a", encoding="utf-8") as stream:
            stream.write("\n" + text)

    def manage(self, *arguments: str) -> str:
        """What the command printed; the test fails unless it ended with 0."""
        answer = subprocess.run(
            [str(self.python), "manage.py", *arguments],
            cwd=self.place,
            env=self._environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        printed = answer.stdout + answer.stderr
        assert answer.returncode == 0, f"{arguments} ended with {answer.returncode}:\n{printed}"
        return printed

    @contextmanager
    def worker(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """A worker that runs until the end of the block, and must end with 0."""
        with (self.place / "worker.log").open("w", encoding="utf-8") as log:
            process = subprocess.Popen(
                [str(self.python), "-u", "manage.py", "run_sqlqueue_worker", *arguments],
                cwd=self.place,
                env=self._environment(),
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
            )
            try:
                yield process
                process.terminate()
                assert process.wait(120) == 0, self.log()
            finally:
                process.kill()
                process.wait()

    def log(self) -> str:
        """What the worker has printed and logged."""
        return (self.place / "worker.log").read_text(encoding="utf-8")

    def _environment(self) -> dict[str, str]:
        ours = {"DJANGO_SETTINGS_MODULE", "PYTHONPATH", "SQLQUEUE_TEST_CHILD", "VIRTUAL_ENV"}
        return {name: value for name, value in os.environ.items() if name not in ours}


def block_with(text: str, kind: str) -> Block:
    """The one block of the README of this kind that holds the text, and names no file."""
    (found,) = [block for block in blocks(README) if block.kind == kind and block.file is None and text in block.text]
    return found


@pytest.fixture
def sqlite_project(python_with_drivers: Path, tmp_path: Path) -> Project:
    project = Project(python_with_drivers, tmp_path, {})
    project.follow()
    return project


@pytest.fixture
def postgresql_project(python_with_drivers: Path, tmp_path: Path, postgresql_database: QueueDatabase) -> Iterator[Project]:
    """In an empty database of its own."""
    server = postgresql_database._postgresql().server
    name = f"first_minutes_{uuid.uuid4().hex[:8]}"
    with server.connect() as admin:
        admin.execute(f"CREATE DATABASE {name}".encode())
    project = Project(python_with_drivers, tmp_path, {"ENGINE": "django.db.backends.postgresql", **server.settings(name)})
    project.follow()
    yield project
    with server.connect() as admin:
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.fixture(params=["sqlite", "postgresql"])
def project(request: pytest.FixtureRequest) -> Project:
    found: Project = request.getfixturevalue(f"{request.param}_project")
    return found


def queue_tables(project: Project) -> set[str]:
    """The tables that are neither Django's nor of our migrations."""
    if not project.database:
        with closing(sqlite3.connect(project.place / "db.sqlite3")) as connection:
            found = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    else:
        asked = "from django.db import connection; print('TABLES', *connection.introspection.table_names(), sep='\\n')"
        found = set(project.manage("shell", "-c", asked).partition("TABLES\n")[2].splitlines())
    return {name for name in found if not name.startswith(MANAGED)}


def test_migrate_makes_few_tables(project: Project) -> None:
    project.manage("migrate")
    assert len(queue_tables(project)) <= MAX_QUEUE_TABLES


def test_the_first_migrate_warns_of_nothing(project: Project) -> None:
    printed = project.manage("migrate")
    assert "WARNING" not in printed
    assert "sqlqueue.W" not in printed
    assert "Created queue table" in printed


def test_the_readme_works_as_it_stands(project: Project) -> None:
    project.manage("migrate")
    project.manage("shell", "-c", block_with("send(PlaceOrder", "python").text)
    assert "order 42 for 9.90" in project.manage("run_sqlqueue_worker", "--until-empty")


def test_a_worker_under_another_host_name_works_at_once(project: Project) -> None:
    """A host name counts by the name of the instance alone; this is the container that nobody ran `migrate` in."""
    project.manage("migrate")
    project.append("mysite/settings.py", 'SQLQUEUE["ENDPOINTS"]["Sales"]["INSTANCE"] = "another-host"\n')
    project.manage("shell", "-c", block_with("send(PlaceOrder", "python").text)
    with project.worker("--processes", "2"):
        poll_until(lambda: "order 42 for 9.90" in project.log(), deadline=120, what="the order is handled")


def test_slow_handlers_of_the_readme_project_run_side_by_side(postgresql_project: Project) -> None:
    """All four threads are in a handler at once, which the model of version 2.1 alone needs 15 seconds for."""
    project = postgresql_project
    project.append("shop/handlers.py", SLOW_HANDLER)
    project.append("mysite/settings.py", 'SQLQUEUE["ENDPOINTS"]["Sales"]["MAX_CONCURRENCY"] = 4\n')
    project.manage("migrate")
    project.manage("shell", "-c", "from sqlqueue_app import send_many; send_many('Sales.Slow', [{'n': n} for n in range(8)])")
    with project.worker():
        poll_until(lambda: project.log().count("four at once") == 8, deadline=120, what="all are handled")
    assert "Traceback" not in project.log()


SLOW_HANDLER = """
import threading

together = threading.Barrier(4)


@handles("Sales.Slow")
def slow(message, context):
    together.wait(10)
    print("four at once", message["n"], flush=True)
"""


def test_a_worker_is_woken_without_any_setting(project: Project) -> None:
    """By a poll it would find the message after ten minutes."""
    project.append("mysite/settings.py", 'SQLQUEUE["ENDPOINTS"]["Sales"]["PEEK_DELAY"] = 600\n')
    project.manage("migrate")
    with project.worker():
        poll_until(lambda: "[event=wake_up_on" in project.log(), deadline=120, what="the worker listens")
        project.manage("shell", "-c", block_with("send(PlaceOrder", "python").text)
        poll_until(lambda: "order 42 for 9.90" in project.log(), deadline=120, what="the order is handled")


def test_after_kill_9_another_process_takes_over_and_the_health_is_ok(project: Project) -> None:
    project.manage("migrate")
    with project.worker():
        poll_until(lambda: project.log().count("[event=worker_started") == 1, deadline=120, what="the worker receives")
        (killed,) = json.loads(project.manage("sqlqueue_status", "--format", "json"))["instances"]
        os.kill(killed["pid"], signal.SIGKILL)
        poll_until(lambda: project.log().count("[event=worker_started") == 2, deadline=120, what="another process receives")
        assert "died by SIGKILL, starting it again" in project.log()
        assert project.manage("sqlqueue_health").startswith("OK")
        project.manage("shell", "-c", block_with("send(PlaceOrder", "python").text)
        poll_until(lambda: "order 42 for 9.90" in project.log(), deadline=120, what="the order is handled")
