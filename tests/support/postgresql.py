"""A temporary PostgreSQL server for one test session, on a socket and a loopback port. It ends with the session.

If SQLQUEUE_TEST_POSTGRES_URL is set, that server is used instead; its role must be able to create databases and roles.
"""

from __future__ import annotations

import json
import os
import pwd
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

import psycopg

from tests.support import postgresql_programs
from tests.support.directories import directory_for_databases
from tests.support.ports import free_port

URL_VARIABLE = "SQLQUEUE_TEST_POSTGRES_URL"

# Settings of the temporary server. Nothing waits for the disk, because no data needs to survive a power cut. Commits are still
# synchronous, so that committed data survives a killed server, as tests expect.
OPTIONS = [
    "fsync=off",
    "full_page_writes=off",
    "max_connections=200",
    "max_prepared_transactions=100",
    "shared_buffers=64MB",
    "max_wal_size=256MB",
    "checkpoint_timeout=1h",
    "autovacuum_naptime=1h",
    "log_min_messages=warning",
]


class PostgreSQLServer(Protocol):
    """The interface of a server that the fixtures use."""

    @property
    def description(self) -> str: ...

    def settings(self, database: str) -> dict[str, Any]:
        """HOST, PORT, USER, PASSWORD and NAME for Django."""
        ...

    def connect(self, database: str = "postgres") -> psycopg.Connection[tuple[Any, ...]]:
        """A new connection in autocommit mode that bypasses Django; the caller closes it."""
        ...

    def close(self) -> None: ...


def _connect(settings: dict[str, Any]) -> psycopg.Connection[tuple[Any, ...]]:
    return psycopg.connect(
        host=settings["HOST"],
        port=settings["PORT"],
        user=settings["USER"],
        password=settings["PASSWORD"] or None,
        dbname=settings["NAME"],
        application_name="sqlqueue-tests",
        autocommit=True,
    )


class GivenServer:
    """The server that SQLQUEUE_TEST_POSTGRES_URL names."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"postgres", "postgresql"} or not parts.hostname:
            raise RuntimeError(f"{URL_VARIABLE} must look like postgresql://user:password@host:port/database")
        self._parts = parts
        with self.connect() as connection:
            self._version = connection.info.parameter_status("server_version") or "?"

    @property
    def description(self) -> str:
        return f"{self._version} (from {URL_VARIABLE})"

    def settings(self, database: str) -> dict[str, Any]:
        return {
            "NAME": database,
            "HOST": unquote(self._parts.hostname or ""),
            "PORT": str(self._parts.port or 5432),
            "USER": unquote(self._parts.username or "postgres"),
            "PASSWORD": unquote(self._parts.password or ""),
        }

    def connect(self, database: str = "") -> psycopg.Connection[tuple[Any, ...]]:
        return _connect(self.settings(database or self._parts.path.strip("/") or "postgres"))

    def close(self) -> None:
        """Do nothing: the tests do not own this server."""


class ThrowAwayServer:
    """A cluster in temporary directories. A separate process runs it and ends it with this session.

    `settings()` names the socket (no password, fastest); `port` and `password` serve clients that need TCP.
    """

    def __init__(self, programs: postgresql_programs.Programs, options: Sequence[str] | None = None) -> None:
        """`options` are `name=value` settings that replace OPTIONS. With them, the data is on disk, for benchmarks."""
        self._programs = programs
        # short, because the path of a socket can have at most 107 bytes
        self.directory = Path(tempfile.mkdtemp(prefix="sqlq-pg-"))
        # separate: programs may be copied into the other directory, and file systems in memory often forbid running them
        self.data = directory_for_databases("sqlq-pg-data-") if options is None else Path(tempfile.mkdtemp(prefix="sqlq-pg-data-"))
        self.password = secrets.token_urlsafe(12)
        (self.directory / "password").write_text(self.password)
        self.port = free_port()
        user = self._hand_over() if os.geteuid() == 0 else None
        order = {
            "bin": str(self._programs.directory),
            "directory": str(self.directory),
            "data": str(self.data),
            "port": self.port,
            "user": user,
            "options": list(OPTIONS if options is None else options),
        }
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", str(Path(__file__).with_name("cluster_keeper.py")), json.dumps(order)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            self._order("initialise")
            self.start()
        except BaseException:
            self.close()
            raise

    @property
    def description(self) -> str:
        return f"{self._programs.version} ({self._programs.origin})"

    def settings(self, database: str) -> dict[str, Any]:
        return {
            "NAME": database,
            "HOST": str(self.directory),
            "PORT": str(self.port),
            "USER": "postgres",
            "PASSWORD": "",
        }

    def url(self, database: str) -> str:
        """The URL over TCP, for programs without support for Unix sockets."""
        return f"postgresql://postgres:{self.password}@127.0.0.1:{self.port}/{database}"

    def connect(self, database: str = "postgres") -> psycopg.Connection[tuple[Any, ...]]:
        return _connect(self.settings(database))

    def start(self) -> None:
        """Start the server again after stop(). Returns when it accepts connections."""
        self._order("start")

    def stop(self) -> None:
        """Close all sessions and stop the server as in a crash. Committed data is kept."""
        self._order("stop")

    def close(self) -> None:
        """End the keeper process, which stops the server and deletes the directories."""
        with self._keeper as keeper:
            if keeper.stdin:
                keeper.stdin.close()
            keeper.wait(timeout=60)

    def _order(self, word: str) -> None:
        assert self._keeper.stdin
        assert self._keeper.stdout
        self._keeper.stdin.write(word + "\n")
        self._keeper.stdin.flush()
        answer = self._keeper.stdout.readline().strip()
        if answer != "done":
            raise RuntimeError(f"could not {word} the PostgreSQL server for tests: {answer or 'its keeper died'}")

    def _hand_over(self) -> str:
        """Give the directories to an ordinary user, because PostgreSQL refuses to run as root. Returns the name of the user."""
        user = _ordinary_user()
        for path in (self.directory, self.directory / "password", self.data):
            os.chown(path, user.pw_uid, user.pw_gid)
        if not _can_run(self._programs.directory / "postgres", user):
            self._programs = _copy_to(self.directory / "programs", self._programs)
        return user.pw_name


def _ordinary_user() -> pwd.struct_passwd:
    for name in ("postgres", "nobody", "daemon"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise RuntimeError("PostgreSQL refuses to run as root, and there is no user 'postgres', 'nobody' or 'daemon' to run it as")


def _can_run(program: Path, user: pwd.struct_passwd) -> bool:
    try:
        answer = subprocess.run(
            [str(program), "--version"],
            user=user.pw_uid,
            group=user.pw_gid,
            extra_groups=[],
            cwd="/",
            capture_output=True,
            check=False,
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.returncode == 0


def _copy_to(target: Path, programs: postgresql_programs.Programs) -> postgresql_programs.Programs:
    """Copy the server from the wheel to a directory that the other user can read: the project may be in a private home."""
    installation = programs.directory.parent
    package = installation.parent
    shutil.copytree(installation, target / package.name / installation.name)
    libraries = package.with_name(package.name + ".libs")
    if libraries.is_dir():
        # the programs load them from next to the package
        shutil.copytree(libraries, target / libraries.name)
    return postgresql_programs.Programs(target / package.name / installation.name / "bin", programs.version, programs.origin)


def describe() -> str:
    """The version that the tests of this session use, for the report header. Starts nothing."""
    url = os.environ.get(URL_VARIABLE)
    if url:
        return GivenServer(url).description
    programs = postgresql_programs.find()
    return f"{programs.version} ({programs.origin})" if programs else "none found, to be installed with apt-get"


def get_server() -> GivenServer | ThrowAwayServer:
    """The server in SQLQUEUE_TEST_POSTGRES_URL, else a new temporary one. Raises RuntimeError if neither is available."""
    url = os.environ.get(URL_VARIABLE)
    return GivenServer(url) if url else ThrowAwayServer(postgresql_programs.find_or_install())
