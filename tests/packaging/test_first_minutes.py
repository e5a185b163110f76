"""The first minutes of a new user: the wheel in a new environment, a new project, the README word for word."""

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
# Managed by Django and our migrations; all other tables are queues or belong to one.
MANAGED = ("auth_", "django_", "sqlqueue_app_", "sqlite_")


@pytest.fixture(scope="module")
def python_with_drivers(python_of_a_user: Path, wheel: Path) -> Path:
    run(sys.executable, "-m", "pip", "--python", python_of_a_user, "install", "--quiet", f"{wheel}[postgres]", cwd=wheel.parent)
    return python_of_a_user


class Project:
    """A project of `django-admin startproject` and `startapp` that follows the README."""

    def __init__(self, python: Path, place: Path, database: dict[str, Any]) -> None:
        self.python = python
        self.place = place
        run(python, "-m", "django", "startproject", "mysite", place, cwd=place)
        run(python, "manage.py", "startapp", "shop", cwd=place)
        self.database = database

    def follow(self) -> None:
        """Write the code of the README into the files that it names, on the database of the test."""
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
        """Run a command and return its output; a non-zero exit code fails the test."""
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
        """A worker that runs until the end of the block and must exit with 0."""
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
        """The output and log of the worker."""
        return (self.place / "worker.log").read_text(encoding="utf-8")

    def _environment(self) -> dict[str, str]:
        ours = {"DJANGO_SETTINGS_MODULE", "PYTHONPATH", "SQLQUEUE_TEST_CHILD", "VIRTUAL_ENV"}
        return {name: value for name, value in os.environ.items() if name not in ours}


def block_with(text: str, kind: str) -> Block:
    """The one block of the README of this kind that contains the text and names no file."""
    (found,) = [block for block in blocks(README) if block.kind == kind and block.file is None and text in block.text]
    return found


@pytest.fixture
def sqlite_project(python_with_drivers: Path, tmp_path: Path) -> Project:
    project = Project(python_with_drivers, tmp_path, {})
    project.follow()
    return project


@pytest.fixture
def postgresql_project(python_with_drivers: Path, tmp_path: Path, postgresql_database: QueueDatabase) -> Iterator[Project]:
    """A project in a new database."""
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
    """The tables that neither Django nor our migrations create."""
    if not project.database:
        with closing(sqlite3.connect(project.place / "db.sqlite3")) as connection:
            found = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    else:
        code = "from django.db import connection; print('TABLES', *connection.introspection.table_names(), sep='\\n')"
        found = set(project.manage("shell", "-c", code).partition("TABLES\n")[2].splitlines())
    return {name for name in found if not name.startswith(MANAGED)}


def test_migrate_creates_few_tables(project: Project) -> None:
    project.manage("migrate")
    assert len(queue_tables(project)) <= MAX_QUEUE_TABLES


def test_first_migrate_prints_no_warnings(project: Project) -> None:
    printed = project.manage("migrate")
    assert "WARNING" not in printed
    assert "sqlqueue.W" not in printed
    assert "Created queue table" in printed


def test_readme_works_as_written(project: Project) -> None:
    project.manage("migrate")
    project.manage("shell", "-c", block_with("send(PlaceOrder", "python").text)
    assert "order 42 for 9.90" in project.manage("run_sqlqueue_worker", "--until-empty")


def test_worker_under_another_host_name_works_at_once(project: Project) -> None:
    """Only the instance name depends on the host name; this simulates a container that never ran `migrate`."""
    project.manage("migrate")
    project.append("mysite/settings.py", 'SQLQUEUE["ENDPOINTS"]["Sales"]["INSTANCE"] = "another-host"\n')
    project.manage("shell", "-c", block_with("send(PlaceOrder", "python").text)
    with project.worker("--processes", "2"):
        poll_until(lambda: "order 42 for 9.90" in project.log(), deadline=120, what="the order is handled")


def test_slow_handlers_of_the_readme_project_run_concurrently(postgresql_project: Project) -> None:
    """All four threads are in a handler at once; the concurrency model of version 2.1 would need 15 seconds."""
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


def test_worker_is_woken_with_default_settings(project: Project) -> None:
    """A poll would find the message after ten minutes."""
    project.append("mysite/settings.py", 'SQLQUEUE["ENDPOINTS"]["Sales"]["PEEK_DELAY"] = 600\n')
    project.manage("migrate")
    with project.worker():
        poll_until(lambda: "[event=wake_up_on" in project.log(), deadline=120, what="the worker listens")
        project.manage("shell", "-c", block_with("send(PlaceOrder", "python").text)
        poll_until(lambda: "order 42 for 9.90" in project.log(), deadline=120, what="the order is handled")


def test_another_process_takes_over_after_kill_9(project: Project) -> None:
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
